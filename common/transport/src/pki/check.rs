//! Whether the files of an authority or a peer are what was written, and belong together.

use std::path::Path;

use rcgen::KeyPair;
use rustls::pki_types::CertificateDer;

use super::PkiError;

/// `ecdsa-with-SHA256`: how everything made here is signed.
const ECDSA_WITH_SHA256: &str = "1.2.840.10045.4.3.2";
/// An uncompressed point of P-256.
const P256_KEY_BYTES: usize = 65;

pub(super) fn unfit(path: &Path, reason: impl std::fmt::Display) -> PkiError {
    PkiError::Unfit { path: path.to_owned(), reason: reason.to_string() }
}

/// The key must be that of the first certificate.
pub(super) fn check_key(path: &Path, chain: &[CertificateDer<'_>], key: &KeyPair) -> Result<(), PkiError> {
    let Some(first) = chain.first() else { return Ok(()) };
    let (_, parsed) = x509_parser::parse_x509_certificate(first).map_err(|error| unfit(path, error))?;
    if *parsed.public_key().subject_public_key.data == *key.public_key_raw() {
        Ok(())
    } else {
        Err(unfit(path, "it does not belong to the key beside it"))
    }
}

/// An authority signs itself, and must be one that both sides can trust.
pub(super) fn check_authority(path: &Path, chain: &[CertificateDer<'static>]) -> Result<(), PkiError> {
    for certificate in chain {
        let added = rustls::RootCertStore::empty().add(certificate.clone());
        added.map_err(|error| unfit(path, error))?;
    }
    check_signature(path, chain, chain, "it is not what was written")
}

/// One of these authorities must have signed the first certificate. Signatures that nothing here makes are left to
/// the handshake.
pub(super) fn check_signature(
    path: &Path,
    chain: &[CertificateDer<'_>],
    authorities: &[CertificateDer<'_>],
    wrong: &str,
) -> Result<(), PkiError> {
    let Some(first) = chain.first() else { return Ok(()) };
    let (_, signed) = x509_parser::parse_x509_certificate(first).map_err(|error| unfit(path, error))?;
    if signed.signature_algorithm != signed.tbs_certificate.signature {
        return Err(unfit(path, wrong));
    }
    if signed.signature_algorithm.algorithm.to_id_string() != ECDSA_WITH_SHA256 {
        return Ok(());
    }
    for authority in authorities {
        let (_, issuer) =
            x509_parser::parse_x509_certificate(authority).map_err(|error| unfit(path, error))?;
        let key = &*issuer.public_key().subject_public_key.data;
        let verifier = ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_ASN1, key);
        let is_other_kind = key.len() != P256_KEY_BYTES;
        if is_other_kind
            || verifier.verify(signed.tbs_certificate.as_ref(), &signed.signature_value.data).is_ok()
        {
            return Ok(());
        }
    }
    Err(unfit(path, wrong))
}
