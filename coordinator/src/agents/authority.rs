//! The authority of all replicas in Kubernetes: made by whoever comes first, replaced long before it ends.
//!
//! A replacement has three steps, each one write that only one replica wins: a new authority is made and published
//! beside the old one; after a grace time, in which agents read it, it signs; after another one, in which all replicas
//! have begun to use it, the old one is published no more. Connections that stand are touched by none of them.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use phalanx_kubernetes::identity::{AuthorityError, AuthorityPems, AuthorityStore, Stored};
use phalanx_transport::endpoint::server_endpoint_for;
use phalanx_transport::{
    CertificateAuthority, EndpointError, Identity, PeerCertificate, PkiError, SocketBuffers, TrustAnchor,
    server_config,
};
use quinn::Endpoint;
use thiserror::Error;
use tokio::time::MissedTickBehavior;

/// How often somebody else may have been faster before it is an error.
const TRIES: u32 = 5;

/// Times of a replacement.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// How long an authority lives. With a third of it left the next one is made.
    pub authority_life: Duration,
    /// How long a coordinator's certificate lives. With half of it left the next one is made.
    pub certificate_life: Duration,
    /// How long agents and other replicas have to learn of each step.
    pub grace: Duration,
    /// How often it is looked whether there is something to do.
    pub look: Duration,
}

impl Default for Rotation {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self {
            authority_life: 365 * day,
            certificate_life: 30 * day,
            // kubelet brings a changed ConfigMap to its pods within two minutes.
            grace: Duration::from_secs(600),
            look: Duration::from_secs(30),
        }
    }
}

/// Why there is no authority.
#[derive(Debug, Error)]
pub enum KubernetesAuthorityError {
    /// Secret or ConfigMap.
    #[error(transparent)]
    Store(#[from] AuthorityError),
    /// What the Secret holds.
    #[error("Secret phalanx-ca: {0}; restore it, or delete it for a new authority")]
    Pki(#[from] PkiError),
    /// The TLS library.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// The authority, as this replica uses it.
#[derive(Debug)]
pub struct KubernetesAuthority {
    store: AuthorityStore,
    rotation: Rotation,
    stored: Stored,
    /// When this replica published something last.
    published: Option<Instant>,
    /// When this replica's certificate was made.
    issued: Instant,
}

impl KubernetesAuthority {
    /// Reads the authority, or makes one where there is none, and publishes it.
    ///
    /// # Errors
    /// The API server does not answer, or what it keeps is of no use.
    pub async fn open(store: AuthorityStore, rotation: Rotation) -> Result<Self, KubernetesAuthorityError> {
        let stored = first(&store, rotation).await?;
        let mut authority = Self { store, rotation, stored, published: None, issued: Instant::now() };
        for _ in 1..TRIES {
            match authority.publish().await {
                // Another replica publishes the same at this moment: it is read again.
                Err(AuthorityError::Changed) => {}
                other => return other.map(|()| authority).map_err(Into::into),
            }
        }
        authority.publish().await?;
        Ok(authority)
    }

    /// An endpoint that agents dial, with a token or a certificate of this authority.
    ///
    /// # Errors
    /// The address cannot be bound, or the authority cannot be used.
    pub fn endpoint(
        &mut self,
        listen: SocketAddr,
    ) -> Result<(Endpoint, SocketBuffers), KubernetesAuthorityError> {
        let (identity, anchor) = self.issue()?;
        Ok(server_endpoint_for(listen, &identity, &anchor, PeerCertificate::Optional)?)
    }

    /// Looks again and again whether there is something to do; never ends.
    pub async fn keep(mut self, endpoint: Endpoint) {
        let mut looks = tokio::time::interval(self.rotation.look);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            match self.look(&endpoint).await {
                // Another replica is at it.
                Ok(()) | Err(KubernetesAuthorityError::Store(AuthorityError::Changed)) => {}
                Err(error) => tracing::warn!("the authority of agents and coordinators: {error}"),
            }
        }
    }

    async fn look(&mut self, endpoint: &Endpoint) -> Result<(), KubernetesAuthorityError> {
        let Some(stored) = self.store.read().await? else {
            tracing::warn!("Secret phalanx-ca is gone: it is written anew with what this replica uses");
            let again = Stored { resource_version: String::new(), ..self.stored.clone() };
            self.stored = self.store.write(&again).await?;
            return Ok(());
        };
        let is_other = stored.current != self.stored.current || stored.bundle() != self.stored.bundle();
        let served = std::mem::replace(&mut self.stored, stored);
        if is_other || self.issued.elapsed() >= self.rotation.certificate_life / 2 {
            match self.issue() {
                Ok((identity, anchor)) => {
                    let config = server_config(&identity, &anchor, PeerCertificate::Optional)?;
                    endpoint.set_server_config(Some(config));
                    tracing::info!("new connections are served with a new certificate");
                }
                Err(error) => {
                    self.stored = served;
                    return Err(error);
                }
            }
        }
        self.publish().await?;
        let grace = self.rotation.grace;
        // Agents must have had the time to read what stands beside the certificate that signs next.
        if self.published.is_some_and(|at| at.elapsed() < grace) {
            return Ok(());
        }
        if let Some((what, next)) = step(&self.stored, now_ms(), self.rotation)? {
            self.store.write(&next).await?;
            tracing::info!("authority of agents and coordinators: {what}");
        }
        Ok(())
    }

    async fn publish(&mut self) -> Result<(), AuthorityError> {
        if self.store.publish(&self.stored.bundle()).await? {
            self.published = Some(Instant::now());
        }
        Ok(())
    }

    fn issue(&mut self) -> Result<(Identity, TrustAnchor), KubernetesAuthorityError> {
        let AuthorityPems { certificate, key } = &self.stored.current;
        let authority = CertificateAuthority::from_pem(certificate, key)?;
        let identity = authority.issue_kubernetes_coordinator(self.rotation.certificate_life)?;
        let anchor = TrustAnchor::from_pem(&self.stored.bundle())?;
        self.issued = Instant::now();
        Ok((identity, anchor))
    }
}

/// The authority that is stored, or one that is made now.
async fn first(store: &AuthorityStore, rotation: Rotation) -> Result<Stored, KubernetesAuthorityError> {
    for _ in 0..TRIES {
        if let Some(stored) = store.read().await? {
            return Ok(stored);
        }
        let made = Stored::first(make(rotation)?, now_ms());
        match store.write(&made).await {
            Ok(written) => {
                tracing::info!("a new authority of agents and coordinators was made");
                return Ok(written);
            }
            Err(AuthorityError::Changed) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(AuthorityError::Changed.into())
}

fn make(rotation: Rotation) -> Result<AuthorityPems, PkiError> {
    let made = CertificateAuthority::create_for(rotation.authority_life)?;
    Ok(AuthorityPems { certificate: made.certificate_pem().to_owned(), key: made.key_pem() })
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The next step of a replacement, where one is due.
fn step(
    stored: &Stored,
    now_ms: i64,
    rotation: Rotation,
) -> Result<Option<(&'static str, Stored)>, PkiError> {
    let grace_ms = i64::try_from(rotation.grace.as_millis()).unwrap_or(i64::MAX);
    let is_over = now_ms.saturating_sub(stored.step_at_ms) >= grace_ms;
    let mut after = Stored { step_at_ms: now_ms, ..stored.clone() };
    if let Some(next) = after.next.take() {
        after.previous = Some(std::mem::replace(&mut after.current, next).certificate);
        return Ok(is_over.then_some(("the new one signs from now on", after)));
    }
    if after.previous.take().is_some() {
        return Ok(is_over.then_some(("the old one is published no more", after)));
    }
    let (from, until) = TrustAnchor::from_pem(&stored.current.certificate)?.life()?;
    let life = until.duration_since(from).unwrap_or_default();
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(now_ms).unwrap_or_default());
    let is_old = until.duration_since(now).unwrap_or_default() < life / 3;
    if !(is_old || stored.rotate) {
        return Ok(None);
    }
    after.next = Some(make(rotation)?);
    after.rotate = false;
    Ok(Some(("a new one is published, and signs after the grace time", after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_goes_step_by_step_and_no_certificate_is_used_before_its_time() {
        let rotation = Rotation::default();
        let (life_ms, grace_ms) = (365 * 24 * 3600 * 1000_i64, 600_000);
        let start = now_ms();
        let first = Stored::first(make(rotation).unwrap(), start);
        assert_eq!(step(&first, start + life_ms / 2, rotation).unwrap(), None);
        // A third of its life is left.
        let at = start + life_ms * 7 / 10;
        let published = step(&first, at, rotation).unwrap().unwrap().1;
        assert_eq!(published.current, first.current);
        assert_eq!(published.bundle().matches("BEGIN CERTIFICATE").count(), 2);
        assert_eq!(step(&published, at + grace_ms - 1, rotation).unwrap(), None);
        let signs = step(&published, at + grace_ms, rotation).unwrap().unwrap().1;
        assert_eq!(Some(&signs.current), published.next.as_ref());
        assert_eq!(signs.previous.as_ref(), Some(&first.current.certificate));
        assert_eq!(signs.bundle().matches("BEGIN CERTIFICATE").count(), 2);
        assert_eq!(step(&signs, at + 2 * grace_ms - 1, rotation).unwrap(), None);
        let done = step(&signs, at + 2 * grace_ms, rotation).unwrap().unwrap().1;
        assert_eq!((done.previous.clone(), done.next.clone()), (None, None));
        assert_eq!(done.bundle().matches("BEGIN CERTIFICATE").count(), 1);
    }

    #[test]
    fn people_may_ask_for_a_new_one_at_any_time_and_get_one() {
        let rotation = Rotation::default();
        let now = now_ms();
        let asked = Stored { rotate: true, ..Stored::first(make(rotation).unwrap(), now) };
        let (_, published) = step(&asked, now, rotation).unwrap().unwrap();
        assert!(published.next.is_some() && !published.rotate);
        // Asked again meanwhile: after this one.
        let again = Stored { rotate: true, ..published };
        let (_, signs) = step(&again, now + 600_000, rotation).unwrap().unwrap();
        assert!(signs.rotate && signs.next.is_none());
    }
}
