//! Who this agent is, and whom it trusts: a certificate of its own, or a token that the node is given and renewed.
//!
//! Files of a token and of an authority are read anew for each connection, and the token again and again while one
//! stands: whoever gives them out changes them long before the old ones end.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use phalanx_common::wire::{BearerToken, MAX_TOKEN_BYTES};
use phalanx_transport::endpoint::token_client_config;
use phalanx_transport::{
    COORDINATOR_NAME, EndpointError, Identity, KUBERNETES_COORDINATOR_NAME, PkiError, TrustAnchor,
    client_config,
};
use quinn::ClientConfig;
use thiserror::Error;
use tokio::time::{Interval, MissedTickBehavior};

/// How often it is looked whether there is a newer token.
const LOOK: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2_000 });

/// How an agent shows who it is.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// By a certificate of its node.
    Certificate {
        /// Certificate and key of the node.
        identity: Identity,
        /// Authority of the coordinators.
        authority: TrustAnchor,
    },
    /// By a token that Kubernetes gives to its pod.
    Token {
        /// File of the token.
        token_file: PathBuf,
        /// File of the coordinators' authority: one certificate, or more while it is being replaced.
        authority_file: PathBuf,
    },
}

/// Why this agent cannot show who it is, or does not know whom to trust.
#[derive(Debug, Error)]
pub enum CredentialError {
    /// The token.
    #[error("--token-file: {path}: {source}; mount a projected token with the audience phalanx there")]
    Token {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file holds no token.
    #[error("--token-file: {0}: must be one token of at most {MAX_TOKEN_BYTES} bytes")]
    NoToken(PathBuf),
    /// The authority.
    #[error("--ca-file: {0}; mount key ca.crt of the ConfigMap phalanx-ca there")]
    Authority(PkiError),
    /// The TLS library refuses them.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// Credentials as connections use them.
#[derive(Clone, Debug)]
pub(crate) enum Presented {
    Certificate(ClientConfig),
    Token { token_file: Arc<Path>, authority_file: Arc<Path> },
}

/// What one connection needs.
#[derive(Debug)]
pub(crate) struct Dialling {
    pub config: ClientConfig,
    /// Name that the coordinator's certificate must have.
    pub server_name: &'static str,
    pub renewals: Renewals,
}

impl Presented {
    /// Certificates are looked at here once and for all.
    pub(crate) fn new(credentials: &Credentials) -> Result<Self, EndpointError> {
        Ok(match credentials {
            Credentials::Certificate { identity, authority } => {
                Self::Certificate(client_config(identity, authority)?)
            }
            Credentials::Token { token_file, authority_file } => Self::Token {
                token_file: token_file.as_path().into(),
                authority_file: authority_file.as_path().into(),
            },
        })
    }

    pub(crate) fn dialling(&self) -> Result<Dialling, CredentialError> {
        match self {
            Self::Certificate(config) => Ok(Dialling {
                config: config.clone(),
                server_name: COORDINATOR_NAME,
                renewals: Renewals(None),
            }),
            Self::Token { token_file, authority_file } => {
                let authority = TrustAnchor::read(authority_file).map_err(CredentialError::Authority)?;
                Ok(Dialling {
                    config: token_client_config(&authority)?,
                    server_name: KUBERNETES_COORDINATOR_NAME,
                    renewals: Renewals(Some(Renewing::new(Arc::clone(token_file))?)),
                })
            }
        }
    }
}

/// Tokens of one connection, the first and those that replace it.
#[derive(Debug)]
pub(crate) struct Renewals(Option<Renewing>);

#[derive(Debug)]
struct Renewing {
    file: Arc<Path>,
    sent: BearerToken,
    looks: Interval,
}

impl Renewing {
    fn new(file: Arc<Path>) -> Result<Self, CredentialError> {
        let sent = read_token(&file)?;
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { file, sent, looks })
    }
}

impl Renewals {
    /// What is said first; nothing where a certificate has said it.
    pub(crate) fn first(&mut self) -> Option<BearerToken> {
        self.0.as_ref().map(|renewing| renewing.sent.clone())
    }

    /// The next token, as soon as there is one. A call that is dropped loses nothing.
    pub(crate) async fn next(&mut self) -> BearerToken {
        let Some(renewing) = &mut self.0 else { return std::future::pending().await };
        loop {
            renewing.looks.tick().await;
            match read_token(&renewing.file) {
                Ok(token) if token != renewing.sent => {
                    renewing.sent = token.clone();
                    return token;
                }
                Ok(_) => {}
                // While it is exchanged it may be away; the coordinator says when it is too late.
                Err(error) => tracing::debug!("{error}"),
            }
        }
    }
}

fn read_token(path: &Path) -> Result<BearerToken, CredentialError> {
    let failed = |source| CredentialError::Token { path: path.to_owned(), source };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_TOKEN_BYTES as u64 + 2).read_to_string(&mut text).map_err(failed)?;
    let token = text.trim();
    let is_token = !token.is_empty() && !token.contains(char::is_whitespace);
    BearerToken::new(token).filter(|_| is_token).ok_or_else(|| CredentialError::NoToken(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_holds_no_token_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let text = read_token(&path).unwrap_err().to_string();
        assert!(text.contains("--token-file: ") && text.contains("/token: No such file"), "{text}");
        for wrong in ["", "\n", "a b", &"a".repeat(MAX_TOKEN_BYTES + 1)] {
            std::fs::write(&path, wrong).unwrap();
            let text = read_token(&path).unwrap_err().to_string();
            assert!(text.ends_with("/token: must be one token of at most 16384 bytes"), "{text}");
        }
        std::fs::write(&path, "a.b.c\n").unwrap();
        assert_eq!(read_token(&path).unwrap().secret(), "a.b.c");
    }

    #[tokio::test]
    async fn a_newer_token_is_told_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, "one").unwrap();
        let mut renewals = Renewals(Some(Renewing::new(path.as_path().into()).unwrap()));
        assert_eq!(renewals.first().unwrap().secret(), "one");
        std::fs::remove_file(&path).unwrap();
        tokio::time::timeout(LOOK * 3, renewals.next()).await.unwrap_err();
        std::fs::write(&path, "two").unwrap();
        assert_eq!(renewals.next().await.secret(), "two");
        tokio::time::timeout(LOOK * 3, renewals.next()).await.unwrap_err();
    }
}
