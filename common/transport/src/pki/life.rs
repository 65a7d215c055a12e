//! Authorities that are replaced in time: how long one lives, how much of that is left, and its texts for keeping.

use std::time::{Duration, SystemTime};

use rcgen::KeyPair;

use super::{AUTHORITY_NAME, CertificateAuthority, Identity, PkiError, TrustAnchor};
use crate::KUBERNETES_COORDINATOR_NAME;

impl CertificateAuthority {
    /// Makes a new authority that lives so long.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn create_for(life: Duration) -> Result<Self, PkiError> {
        let failed = |source| PkiError::Make { subject: AUTHORITY_NAME.to_owned(), source };
        Self::from_key(KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?, life)
    }

    /// A coordinator's certificate for Kubernetes: also by the name of its Service.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn issue_kubernetes_coordinator(&self, life: Duration) -> Result<Identity, PkiError> {
        self.issue_coordinator_for(&[KUBERNETES_COORDINATOR_NAME], &[], life)
    }

    /// The key as PEM, which must be kept as well as the authority itself.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// The certificate as PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }
}

impl TrustAnchor {
    /// When the first certificate begins and ends to hold.
    ///
    /// # Errors
    /// It does not parse.
    pub fn life(&self) -> Result<(SystemTime, SystemTime), PkiError> {
        let bad = |reason: String| PkiError::Pem { what: "the authority's certificate".to_owned(), reason };
        let certificates = self.certificates()?;
        let first = certificates.first().ok_or_else(|| bad("it holds no certificate".to_owned()))?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(first).map_err(|error| bad(error.to_string()))?;
        let at = |seconds: i64| {
            let seconds = u64::try_from(seconds).unwrap_or_default();
            SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
        };
        let validity = parsed.validity();
        Ok((at(validity.not_before.timestamp()), at(validity.not_after.timestamp())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_lives_as_long_as_was_said_and_is_the_same_from_its_texts() {
        let life = Duration::from_secs(90_000);
        let authority = CertificateAuthority::create_for(life).unwrap();
        let (from, until) = authority.trust_anchor().life().unwrap();
        let now = SystemTime::now();
        assert!(from < now && until > now + life - Duration::from_secs(60) && until < now + life);
        let again =
            CertificateAuthority::from_pem(authority.certificate_pem(), &authority.key_pem()).unwrap();
        let identity = again.issue_kubernetes_coordinator(life).unwrap();
        let directory = tempfile::tempdir().unwrap();
        identity.check_issuer(&authority.trust_anchor(), directory.path(), "coordinator").unwrap();
    }
}
