//! Where the coordinators' authority is kept: key and certificate in a Secret, and the certificates that agents are to
//! trust in a ConfigMap that is mounted into their pods. Who makes certificates, and when, is decided elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use thiserror::Error;
use tokio::time::timeout;

/// Name of the Secret, and of the ConfigMap.
const NAME: &str = "phalanx-ca";
/// Key of the certificates that agents trust, in both.
const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";
/// An authority that is published and does not sign yet.
const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
/// Certificate of the one before, which others may still use.
const PREVIOUS_CERTIFICATE: &str = "previous.crt";
/// Set by people who want a new authority.
const ROTATE: &str = "phalanx.dev/rotate";
/// When the last step of a replacement was made, in milliseconds since 1970.
const STEP_AT: &str = "phalanx.dev/rotation-step-ms";
const ANSWER: Duration = Duration::from_secs(10);

/// Why the authority could not be read or written.
#[derive(Debug, Error)]
pub enum AuthorityError {
    /// The API server's answer.
    #[error("{what} {NAME}: {cause}")]
    Api {
        /// Verb and kind.
        what: &'static str,
        /// The answer.
        cause: String,
    },
    /// Somebody else has written it meanwhile: read it again.
    #[error("{NAME} was changed meanwhile")]
    Changed,
    /// The Secret lacks something.
    #[error("Secret {NAME} has no {0}: restore it, or delete the Secret for a new authority")]
    Incomplete(&'static str),
}

/// Certificate and key of an authority, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityPems {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl std::fmt::Debug for AuthorityPems {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("AuthorityPems(..)")
    }
}

/// What the Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The one that signs.
    pub current: AuthorityPems,
    /// The one that will.
    pub next: Option<AuthorityPems>,
    /// Certificate of the one that did.
    pub previous: Option<String>,
    /// Somebody wants a new one.
    pub rotate: bool,
    /// When the last step was made, in milliseconds since 1970.
    pub step_at_ms: i64,
    /// Version of the Secret; empty before it is written.
    pub resource_version: String,
}

impl Stored {
    /// One that was just made.
    #[must_use]
    pub const fn first(current: AuthorityPems, step_at_ms: i64) -> Self {
        let resource_version = String::new();
        Self { current, next: None, previous: None, rotate: false, step_at_ms, resource_version }
    }

    /// All certificates that agents are to trust.
    #[must_use]
    pub fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| next.certificate.as_str());
        let all = [Some(self.current.certificate.as_str()), next, self.previous.as_deref()];
        all.into_iter().flatten().map(|pem| format!("{}\n", pem.trim_end())).collect()
    }

    fn data(&self) -> BTreeMap<String, ByteString> {
        let entries = [
            (CERTIFICATE, Some(&self.current.certificate)),
            (KEY, Some(&self.current.key)),
            (NEXT_CERTIFICATE, self.next.as_ref().map(|next| &next.certificate)),
            (NEXT_KEY, self.next.as_ref().map(|next| &next.key)),
            (PREVIOUS_CERTIFICATE, self.previous.as_ref()),
        ];
        let filled = entries.into_iter().filter_map(|(key, text)| Some((key, text?)));
        filled.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))).collect()
    }

    fn read(secret: Secret) -> Result<Self, AuthorityError> {
        let data = secret.data.unwrap_or_default();
        let text = |key: &str| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        let needed = |key: &'static str| text(key).ok_or(AuthorityError::Incomplete(key));
        let current = AuthorityPems { certificate: needed(CERTIFICATE)?, key: needed(KEY)? };
        let next = match (text(NEXT_CERTIFICATE), text(NEXT_KEY)) {
            (Some(certificate), Some(key)) => Some(AuthorityPems { certificate, key }),
            _ => None,
        };
        let annotations = secret.metadata.annotations.unwrap_or_default();
        Ok(Self {
            current,
            next,
            previous: text(PREVIOUS_CERTIFICATE),
            rotate: annotations.contains_key(ROTATE),
            step_at_ms: annotations.get(STEP_AT).and_then(|text| text.parse().ok()).unwrap_or_default(),
            resource_version: secret.metadata.resource_version.unwrap_or_default(),
        })
    }
}

/// The Secret and the ConfigMap. Needs the verbs create, get and update of both.
#[derive(Clone, Debug)]
pub struct AuthorityStore {
    namespace: String,
    secrets: Api<Secret>,
    maps: Api<ConfigMap>,
}

impl AuthorityStore {
    /// Those of this namespace, through this client.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            secrets: Api::namespaced(client.clone(), namespace),
            maps: Api::namespaced(client, namespace),
        }
    }

    fn named(&self) -> ObjectMeta {
        let (name, namespace) = (Some(NAME.to_owned()), Some(self.namespace.clone()));
        ObjectMeta { name, namespace, ..ObjectMeta::default() }
    }

    /// What is stored; `None` where nothing is.
    ///
    /// # Errors
    /// The API server does not answer, or the Secret is not whole.
    pub async fn read(&self) -> Result<Option<Stored>, AuthorityError> {
        answer("get Secret", self.secrets.get_opt(NAME)).await?.map(Stored::read).transpose()
    }

    /// Writes it where nobody has written since it was read, or where nothing is, and gives what is stored then.
    ///
    /// # Errors
    /// `Changed`, or the API server does not answer.
    pub async fn write(&self, stored: &Stored) -> Result<Stored, AuthorityError> {
        let is_new = stored.resource_version.is_empty();
        let mut annotations = BTreeMap::from([(STEP_AT.to_owned(), stored.step_at_ms.to_string())]);
        if stored.rotate {
            annotations.insert(ROTATE.to_owned(), String::new());
        }
        let secret = Secret {
            metadata: ObjectMeta {
                annotations: Some(annotations),
                resource_version: (!is_new).then(|| stored.resource_version.clone()),
                ..self.named()
            },
            data: Some(stored.data()),
            ..Secret::default()
        };
        let parameters = PostParams::default();
        let written = if is_new {
            answer("create Secret", self.secrets.create(&parameters, &secret)).await
        } else {
            answer("update Secret", self.secrets.replace(NAME, &parameters, &secret)).await
        };
        Stored::read(written?)
    }

    /// Publishes certificates to agents where something else is published; true where something was written.
    ///
    /// # Errors
    /// `Changed`, or the API server does not answer.
    pub async fn publish(&self, bundle: &str) -> Result<bool, AuthorityError> {
        let parameters = PostParams::default();
        let Some(mut map) = answer("get ConfigMap", self.maps.get_opt(NAME)).await? else {
            let data = BTreeMap::from([(CERTIFICATE.to_owned(), bundle.to_owned())]);
            let map = ConfigMap { metadata: self.named(), data: Some(data), ..ConfigMap::default() };
            answer("create ConfigMap", self.maps.create(&parameters, &map)).await?;
            return Ok(true);
        };
        let data = map.data.get_or_insert_default();
        if data.get(CERTIFICATE).is_some_and(|published| published == bundle) {
            return Ok(false);
        }
        data.insert(CERTIFICATE.to_owned(), bundle.to_owned());
        answer("update ConfigMap", self.maps.replace(NAME, &parameters, &map)).await?;
        Ok(true)
    }
}

async fn answer<T>(
    what: &'static str,
    asking: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, AuthorityError> {
    match timeout(ANSWER, asking).await {
        Ok(Ok(answered)) => Ok(answered),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(AuthorityError::Changed),
        Ok(Err(error)) => Err(AuthorityError::Api { what, cause: error.to_string() }),
        Err(_) => {
            Err(AuthorityError::Api { what, cause: format!("no answer within {} s", ANSWER.as_secs()) })
        }
    }
}
