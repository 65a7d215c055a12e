//! Who is at the other end, and for how long that holds: a certificate names a node for good, a token until it ends or
//! a newer one takes its place. Leases are never touched by any of it: whoever is cut off dials anew.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use phalanx_common::ids::NodeName;
use phalanx_common::wire::{BearerToken, FromAgent};
use phalanx_kubernetes::identity::{Reviewer, Speaker, TokenRefusal};
use phalanx_transport::pki::check_node_name;
use phalanx_transport::{ControlReader, PeerError, peer_node_name};
use quinn::Connection;
use tokio::time::Instant;

use super::Shared;

/// A newer token that could not be looked at now is looked at again after this time.
const AGAIN: Duration = Duration::from_secs(5);

/// What is found about a token.
pub type Review = Pin<Box<dyn Future<Output = Result<Speaker, TokenRefusal>> + Send>>;

/// Looks at tokens.
#[derive(Clone)]
pub struct TokenCheck(Arc<dyn Fn(BearerToken) -> Review + Send + Sync>);

impl fmt::Debug for TokenCheck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenCheck(..)")
    }
}

impl TokenCheck {
    /// Looks at tokens in this way.
    pub fn new<F>(check: impl Fn(BearerToken) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Speaker, TokenRefusal>> + Send + 'static,
    {
        Self(Arc::new(move |token| Box::pin(check(token))))
    }

    /// Asks the API server.
    #[must_use]
    pub fn by(reviewer: Reviewer) -> Self {
        Self::new(move |token| {
            let reviewer = reviewer.clone();
            async move { reviewer.review(token.secret()).await }
        })
    }

    fn look_at(&self, token: BearerToken) -> Review {
        (self.0)(token)
    }
}

/// Why nobody is let in by what was shown: a name for counting, and the text.
pub(super) type Unknown = (&'static str, String);

/// Who is at the other end of a connection.
pub(super) struct Credential {
    pub node: NodeName,
    /// In words: the certificate, or the token of which pod.
    pub what: String,
    token: Option<Held>,
}

/// A token that is held.
struct Held {
    check: TokenCheck,
    until: Instant,
    /// A newer one that is being looked at.
    newer: Option<(BearerToken, Review)>,
}

impl Credential {
    /// Takes what the peer has shown, or, where that may be a token, what it says first.
    pub(super) async fn of_peer(
        connection: &Connection,
        reader: &mut ControlReader,
        shared: &Shared,
    ) -> Result<Self, Unknown> {
        match (peer_node_name(connection), &shared.tokens) {
            (Ok(node), _) => {
                let what = format!("the certificate is for node {node}");
                Ok(Self { node, what, token: None })
            }
            (Err(PeerError::NoCertificate), Some(check)) => Self::by_token(reader, check).await,
            (Err(error), _) => Err(("certificate", error.to_string())),
        }
    }

    async fn by_token(reader: &mut ControlReader, check: &TokenCheck) -> Result<Self, Unknown> {
        let token = match reader.next::<FromAgent>().await {
            Ok(Some(FromAgent::Token(token))) => token,
            Ok(_) => {
                let message =
                    "an agent without a certificate must show a token first: start it with --token-file";
                return Err(("token", message.to_owned()));
            }
            Err(error) => return Err(("frame", format!("the first message cannot be read: {error}"))),
        };
        let speaker = check.look_at(token).await.map_err(|refusal| (refusal.name(), refusal.to_string()))?;
        let node = node_of(&speaker).map_err(|message| ("token", message))?;
        let what = format!("token of pod {} on node {node}", speaker.pod);
        Ok(Self {
            node,
            what,
            token: Some(Held { check: check.clone(), until: end_of(&speaker), newer: None }),
        })
    }

    pub(super) const fn is_token(&self) -> bool {
        self.token.is_some()
    }

    /// The peer shows a newer token. One that is shown while an older one is looked at takes its place.
    pub(super) fn renew(&mut self, token: BearerToken) {
        if let Some(held) = &mut self.token {
            held.newer = Some((token.clone(), held.check.look_at(token)));
        }
    }

    /// Ends when the peer may not speak any more, and says why. A call that is dropped loses nothing.
    pub(super) async fn ended(&mut self) -> String {
        let Some(held) = &mut self.token else { return std::future::pending().await };
        loop {
            let Some((token, review)) = &mut held.newer else {
                tokio::time::sleep_until(held.until).await;
                return "its token has expired, and no newer one came".to_owned();
            };
            let token = token.clone();
            let found = tokio::select! {
                found = review => found,
                () = tokio::time::sleep_until(held.until) => {
                    return "its token has expired, and the newer one could not be looked at in time".to_owned();
                }
            };
            match found.map(|speaker| (node_of(&speaker), end_of(&speaker))) {
                Ok((Ok(node), until)) if node == self.node => {
                    held.newer = None;
                    held.until = until;
                    tracing::debug!(%node, "the agent has shown a newer token");
                }
                Ok((Ok(node), _)) => {
                    return format!("its newer token is for node {node}, not for {}", self.node);
                }
                Ok((Err(message), _)) => return message,
                Err(refusal) if refusal.is_passing() => {
                    tracing::warn!(node = %self.node, "a newer token could not be looked at, it is tried again: {refusal}");
                    let (check, again) = (held.check.clone(), token.clone());
                    let review: Review = Box::pin(async move {
                        tokio::time::sleep(AGAIN).await;
                        check.look_at(again).await
                    });
                    held.newer = Some((token, review));
                }
                Err(refusal) => return format!("its newer token is refused: {refusal}"),
            }
        }
    }
}

fn node_of(speaker: &Speaker) -> Result<NodeName, String> {
    check_node_name(&speaker.node).map_err(|error| error.to_string())?;
    Ok(NodeName::from(speaker.node.as_str()))
}

/// The end of a token on a clock that nobody sets.
fn end_of(speaker: &Speaker) -> Instant {
    Instant::now() + speaker.expires.duration_since(SystemTime::now()).unwrap_or_default()
}
