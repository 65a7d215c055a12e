//! Self-made certificates: one authority, one leaf per coordinator and per node.
//!
//! P-256 everywhere. A leaf says what it is for: a coordinator's only serves, an agent's only dials, so an
//! agent's key cannot pose as a coordinator. There is no rotation yet, hence the long life.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use phalanx_common::ids::NodeName;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use x509_parser::extensions::GeneralName;

use crate::{COORDINATOR_NAME, NODE_URI_PREFIX};

/// File name of the authority's certificate.
pub const AUTHORITY_FILE: &str = "ca.pem";

const LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Certificates are valid from a little before now: clocks of machines differ.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(3600);
/// Longest node name Kubernetes allows (a DNS subdomain).
const MAX_NODE_NAME_BYTES: usize = 253;

/// Why a certificate or key could not be made, read or written.
#[derive(Debug, Error)]
pub enum PkiError {
    /// The certificate library refused.
    #[error("certificate for {subject} cannot be made: {source}")]
    Make {
        /// Whom it was for.
        subject: String,
        /// What the library says.
        source: rcgen::Error,
    },
    /// The text is not PEM of the expected kind.
    #[error("{what} is not valid PEM: {reason}")]
    Pem {
        /// Which text.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A name that no node can have.
    #[error(
        "node name {0:?} is not valid: 1 to 253 lower-case letters, digits, '-' and '.', \
         beginning and ending with a letter or digit"
    )]
    NodeName(String),
}

/// Why a peer's certificate names no node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PeerError {
    /// The connection has no certificate.
    #[error("the peer showed no certificate")]
    NoCertificate,
    /// The certificate does not parse.
    #[error("the peer's certificate does not parse: {0}")]
    Malformed(String),
    /// No URI of a node, or more than one.
    #[error("the peer's certificate has {0} names of the form {NODE_URI_PREFIX}NAME, exactly one is needed")]
    NodeUris(usize),
    /// The URI names no possible node.
    #[error("the peer's certificate names the node {0:?}, which is no valid node name")]
    NodeName(String),
}

/// A certificate with its key, as PEM text.
#[derive(Clone)]
pub struct Identity {
    certificate_pem: String,
    key_pem: String,
    /// What a restarted coordinator shares with its predecessor: see `endpoint::server_endpoint`.
    reset_secret: Option<Vec<u8>>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Identity(..)")
    }
}

impl Identity {
    /// Takes a certificate chain and its key.
    ///
    /// # Errors
    /// One of the two is not PEM.
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Self, PkiError> {
        let identity = Self {
            certificate_pem: certificate_pem.to_owned(),
            key_pem: key_pem.to_owned(),
            reset_secret: None,
        };
        identity.chain()?;
        identity.key()?;
        Ok(identity)
    }

    /// Reads `NAME.pem` and `NAME.key` from a directory.
    ///
    /// # Errors
    /// A file is missing, unreadable or not PEM.
    pub fn load(directory: &Path, name: &str) -> Result<Self, PkiError> {
        let certificate_pem = read(&directory.join(format!("{name}.pem")))?;
        let key_pem = read(&directory.join(format!("{name}.key")))?;
        Self::from_pem(&certificate_pem, &key_pem)
    }

    /// Writes `NAME.pem` and `NAME.key` into a directory, which is made if it is not there. The key can
    /// be read by its owner only.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn save(&self, directory: &Path, name: &str) -> Result<(), PkiError> {
        write(&directory.join(format!("{name}.pem")), &self.certificate_pem, 0o644)?;
        write(&directory.join(format!("{name}.key")), &self.key_pem, 0o600)
    }

    /// The node for which this identity speaks, where it is an agent's.
    ///
    /// # Errors
    /// It names no node.
    pub fn node_name(&self) -> Result<NodeName, PeerError> {
        let chain = self.chain().map_err(|error| PeerError::Malformed(error.to_string()))?;
        node_name(chain.first().ok_or(PeerError::NoCertificate)?)
    }

    pub(crate) fn reset_secret(&self) -> Option<&[u8]> {
        self.reset_secret.as_deref()
    }

    pub(crate) fn chain(&self) -> Result<Vec<CertificateDer<'static>>, PkiError> {
        certificates("the certificate", &self.certificate_pem)
    }

    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, PkiError> {
        PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())
            .map_err(|error| PkiError::Pem { what: "the private key".to_owned(), reason: error.to_string() })
    }
}

/// The certificate of the authority that both sides trust.
#[derive(Clone, Debug)]
pub struct TrustAnchor {
    pem: String,
}

impl TrustAnchor {
    /// Takes the authority's certificate.
    ///
    /// # Errors
    /// The text is not PEM.
    pub fn from_pem(pem: &str) -> Result<Self, PkiError> {
        certificates("the authority's certificate", pem)?;
        Ok(Self { pem: pem.to_owned() })
    }

    /// Reads `ca.pem` from a directory.
    ///
    /// # Errors
    /// The file is missing, unreadable or not PEM.
    pub fn load(directory: &Path) -> Result<Self, PkiError> {
        Self::from_pem(&read(&directory.join(AUTHORITY_FILE))?)
    }

    /// Writes `ca.pem` into a directory, which is made if it is not there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, directory: &Path) -> Result<(), PkiError> {
        write(&directory.join(AUTHORITY_FILE), &self.pem, 0o644)
    }

    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, PkiError> {
        certificates("the authority's certificate", &self.pem)
    }
}

/// The authority that signs all certificates of one installation.
pub struct CertificateAuthority {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
    /// Makes a new authority with a new key.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn create() -> Result<Self, PkiError> {
        let subject = "Phalanx authority";
        let failed = |source| PkiError::Make { subject: subject.to_owned(), source };
        let mut params = parameters(subject);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let certificate_pem = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Self { certificate_pem, issuer: Issuer::new(params, key) })
    }

    /// Takes an authority from its PEM texts.
    ///
    /// # Errors
    /// One of them is not valid.
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Self, PkiError> {
        let bad = |what: &str, error: rcgen::Error| PkiError::Pem {
            what: what.to_owned(),
            reason: error.to_string(),
        };
        let key = KeyPair::from_pem(key_pem).map_err(|error| bad("the authority's key", error))?;
        let issuer = Issuer::from_ca_cert_pem(certificate_pem, key)
            .map_err(|error| bad("the authority's certificate", error))?;
        Ok(Self { certificate_pem: certificate_pem.to_owned(), issuer })
    }

    /// Reads `ca.pem` and `ca.key` from a directory.
    ///
    /// # Errors
    /// A file is missing, unreadable or not valid.
    pub fn load(directory: &Path) -> Result<Self, PkiError> {
        Self::from_pem(&read(&directory.join(AUTHORITY_FILE))?, &read(&directory.join("ca.key"))?)
    }

    /// Reads the authority from a directory, or makes one there.
    ///
    /// # Errors
    /// Only one of the two files is there, or they cannot be read or written.
    pub fn load_or_create(directory: &Path) -> Result<Self, PkiError> {
        if directory.join(AUTHORITY_FILE).exists() || directory.join("ca.key").exists() {
            return Self::load(directory);
        }
        let authority = Self::create()?;
        authority.save(directory)?;
        Ok(authority)
    }

    /// Writes `ca.pem` and `ca.key` into a directory, which is made if it is not there. The key can be
    /// read by its owner only.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn save(&self, directory: &Path) -> Result<(), PkiError> {
        write(&directory.join("ca.key"), &self.issuer.key().serialize_pem(), 0o600)?;
        self.trust_anchor().save(directory)
    }

    /// The authority's certificate, for those who check.
    #[must_use]
    pub fn trust_anchor(&self) -> TrustAnchor {
        TrustAnchor { pem: self.certificate_pem.clone() }
    }

    /// A certificate for a coordinator. Agents look for `phalanx-coordinator` in it, which is always there.
    ///
    /// # Errors
    /// A name is no DNS name.
    pub fn issue_coordinator(&self, dns_names: &[&str], addresses: &[IpAddr]) -> Result<Identity, PkiError> {
        let mut names = Vec::new();
        for name in [COORDINATOR_NAME].iter().chain(dns_names) {
            let name = (*name)
                .try_into()
                .map_err(|source| PkiError::Make { subject: (*name).to_owned(), source })?;
            names.push(SanType::DnsName(name));
        }
        names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        let mut identity = self.issue(COORDINATOR_NAME, names, ExtendedKeyUsagePurpose::ServerAuth)?;
        // Made from the authority's key, so that every coordinator of the installation has the same one.
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &self.issuer.key().serialize_der());
        identity.reset_secret =
            Some(ring::hmac::sign(&key, b"phalanx quic stateless reset").as_ref().to_vec());
        Ok(identity)
    }

    /// A certificate for the agent of a node: it can speak for this node only.
    ///
    /// # Errors
    /// The name cannot be a node's.
    pub fn issue_agent(&self, node: &NodeName) -> Result<Identity, PkiError> {
        check_node_name(node.as_str())?;
        let uri = format!("{NODE_URI_PREFIX}{node}");
        let uri =
            uri.as_str().try_into().map_err(|source| PkiError::Make { subject: node.to_string(), source })?;
        self.issue(node.as_str(), vec![SanType::URI(uri)], ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        subject: &str,
        names: Vec<SanType>,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity, PkiError> {
        let failed = |source| PkiError::Make { subject: subject.to_owned(), source };
        let mut params = parameters(subject);
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Identity { certificate_pem: certificate.pem(), key_pem: key.serialize_pem(), reset_secret: None })
    }
}

fn parameters(subject: &str) -> CertificateParams {
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.not_before = (now - CLOCK_TOLERANCE).into();
    params.not_after = (now + LIFE).into();
    params.distinguished_name = rcgen::DistinguishedName::new();
    // X.520 gives a common name 64 characters; the whole name stands in the alternative names.
    params.distinguished_name.push(DnType::CommonName, subject.chars().take(64).collect::<String>());
    params
}

/// Checks that a text can be a node's name: a DNS subdomain as Kubernetes wants it.
///
/// # Errors
/// It cannot.
pub fn check_node_name(name: &str) -> Result<(), PkiError> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edges = name.bytes().next().is_some_and(allowed) && name.bytes().last().is_some_and(allowed);
    let inside = name.bytes().all(|byte| allowed(byte) || byte == b'-' || byte == b'.');
    if edges && inside && name.len() <= MAX_NODE_NAME_BYTES {
        Ok(())
    } else {
        Err(PkiError::NodeName(name.chars().take(64).collect()))
    }
}

/// The node for which the peer of a connection may speak, from its verified certificate.
///
/// # Errors
/// There is no certificate, or it does not name exactly one node.
pub fn peer_node_name(connection: &quinn::Connection) -> Result<NodeName, PeerError> {
    let identity = connection.peer_identity().ok_or(PeerError::NoCertificate)?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().map_err(|_| PeerError::NoCertificate)?;
    node_name(chain.first().ok_or(PeerError::NoCertificate)?)
}

fn node_name(certificate: &CertificateDer<'_>) -> Result<NodeName, PeerError> {
    let malformed = |reason: String| PeerError::Malformed(reason);
    let (_, parsed) =
        x509_parser::parse_x509_certificate(certificate).map_err(|error| malformed(error.to_string()))?;
    let names = parsed.subject_alternative_name().map_err(|error| malformed(error.to_string()))?;
    let general_names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let nodes: Vec<&str> = general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::URI(uri) => uri.strip_prefix(NODE_URI_PREFIX),
            _ => None,
        })
        .collect();
    let [node] = nodes.as_slice() else { return Err(PeerError::NodeUris(nodes.len())) };
    check_node_name(node).map_err(|_| PeerError::NodeName(node.chars().take(64).collect()))?;
    Ok(NodeName::from(*node))
}

fn certificates(what: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let bad = |reason: String| PkiError::Pem { what: what.to_owned(), reason };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| bad(error.to_string()))?;
    if certificates.is_empty() { Err(bad("it holds no certificate".to_owned())) } else { Ok(certificates) }
}

fn read(path: &Path) -> Result<String, PkiError> {
    fs::read_to_string(path).map_err(|source| PkiError::File { path: path.to_owned(), source })
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let failed = |source| PkiError::File { path: path.to_owned(), source };
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    // A new file under another name: the mode of an old one would stay, and a reader never sees half a file.
    let temporary = path.with_extension("new");
    let _ = fs::remove_file(&temporary);
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_agents_certificate_names_its_node() {
        let authority = CertificateAuthority::create().unwrap();
        let identity = authority.issue_agent(&NodeName::from("gpu-node-07.rack1")).unwrap();
        assert_eq!(node_name(&identity.chain().unwrap()[0]), Ok(NodeName::from("gpu-node-07.rack1")));
    }

    #[test]
    fn a_coordinators_certificate_names_no_node() {
        let authority = CertificateAuthority::create().unwrap();
        let identity = authority.issue_coordinator(&["localhost"], &["127.0.0.1".parse().unwrap()]).unwrap();
        assert_eq!(node_name(&identity.chain().unwrap()[0]), Err(PeerError::NodeUris(0)));
    }

    #[test]
    fn names_that_no_node_can_have_are_refused() {
        let authority = CertificateAuthority::create().unwrap();
        for bad in ["", "Node", "a/b", "-a", "a.", "a b", "ä", &"a".repeat(254)] {
            assert!(authority.issue_agent(&NodeName::from(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn files_are_read_back_and_keys_are_private() {
        let directory = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::load_or_create(directory.path()).unwrap();
        let first = authority.trust_anchor().pem;
        let again = CertificateAuthority::load_or_create(directory.path()).unwrap();
        assert_eq!(first, again.trust_anchor().pem);
        again.issue_agent(&NodeName::from("n1")).unwrap().save(directory.path(), "agent").unwrap();
        Identity::load(directory.path(), "agent").unwrap();
        TrustAnchor::load(directory.path()).unwrap();
        for key in ["ca.key", "agent.key"] {
            let mode = fs::metadata(directory.path().join(key)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
    }

    #[test]
    fn a_broken_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.pem"), "nothing").unwrap();
        let error = TrustAnchor::load(directory.path()).unwrap_err().to_string();
        assert!(error.contains("authority's certificate"), "{error}");
        let error = Identity::load(directory.path(), "agent").unwrap_err().to_string();
        assert!(error.contains("agent.pem"), "{error}");
    }
}
