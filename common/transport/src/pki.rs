//! Self-made certificates: one authority, one leaf per coordinator and per node.
//!
//! P-256 everywhere. A leaf says what it is for: a coordinator's only serves, an agent's only dials, so an
//! agent's key cannot pose as a coordinator. Files are not replaced by themselves, hence their long life; what is made
//! in memory lives as long as its maker says.

mod check;
mod life;

use std::fs;
use std::io::{self, Read, Write};
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

use self::check::{check_authority, check_key, check_signature, unfit};
use crate::{COORDINATOR_NAME, NODE_URI_PREFIX};

/// File name of the authority's certificate.
pub const AUTHORITY_FILE: &str = "ca.pem";

/// File name of the authority's key.
pub const AUTHORITY_KEY_FILE: &str = "ca.key";
const AUTHORITY_NAME: &str = "Phalanx authority";

const LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Certificates are valid from a little before now: clocks of machines differ.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(3600);
/// Longest node name Kubernetes allows (a DNS subdomain).
const MAX_NODE_NAME_BYTES: usize = 253;
/// A file larger than this holds no certificate of ours, and no key.
const MAX_PEM_BYTES: u64 = 1 << 20;

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
    /// A file is not what was written, or does not belong to the one beside it.
    #[error("{path}: {reason}")]
    Unfit {
        /// The file.
        path: PathBuf,
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
    /// A file is missing, unreadable, not PEM, or the two do not belong together.
    pub fn load(directory: &Path, name: &str) -> Result<Self, PkiError> {
        let (path, key_path) = (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
        let identity = Self { certificate_pem: read(&path)?, key_pem: read(&key_path)?, reset_secret: None };
        let chain = identity.chain().map_err(|error| unfit(&path, error))?;
        identity.key().map_err(|error| unfit(&key_path, error))?;
        let key = KeyPair::from_pem(&identity.key_pem).map_err(|error| unfit(&key_path, error))?;
        check_key(&path, &chain, &key)?;
        Ok(identity)
    }

    /// Checks that this authority signed the certificate in `NAME.pem` of a directory: one that it did not sign is
    /// turned away by every peer, again and again.
    ///
    /// # Errors
    /// It did not; the text names the file.
    pub fn check_issuer(
        &self,
        authority: &TrustAnchor,
        directory: &Path,
        name: &str,
    ) -> Result<(), PkiError> {
        let path = directory.join(format!("{name}.pem"));
        let anchors = authority.certificates()?;
        check_signature(&path, &self.chain()?, &anchors, "ca.pem is not of the authority that signed it")
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
    /// The file is missing, unreadable, not PEM, or not what was written.
    pub fn load(directory: &Path) -> Result<Self, PkiError> {
        let path = directory.join(AUTHORITY_FILE);
        let anchor = Self { pem: read(&path)? };
        let chain = anchor.certificates().map_err(|error| unfit(&path, error))?;
        check_authority(&path, &chain)?;
        Ok(anchor)
    }

    /// Reads a file of one certificate, or of several: while an authority is replaced both are trusted.
    ///
    /// # Errors
    /// The file is missing, unreadable or not PEM.
    pub fn read(path: &Path) -> Result<Self, PkiError> {
        let anchor = Self { pem: read(path)? };
        anchor.certificates().map_err(|error| unfit(path, error))?;
        Ok(anchor)
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
        let failed = |source| PkiError::Make { subject: AUTHORITY_NAME.to_owned(), source };
        Self::from_key(KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?, LIFE)
    }

    fn from_key(key: KeyPair, life: Duration) -> Result<Self, PkiError> {
        let subject = AUTHORITY_NAME;
        let failed = |source| PkiError::Make { subject: subject.to_owned(), source };
        let mut params = parameters(subject, life);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
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
    /// A file is missing, unreadable, not valid, or the two do not belong together.
    pub fn load(directory: &Path) -> Result<Self, PkiError> {
        let (path, key_path) = (directory.join(AUTHORITY_FILE), directory.join(AUTHORITY_KEY_FILE));
        let (certificate_pem, key_pem) = (read(&path)?, read(&key_path)?);
        let key = KeyPair::from_pem(&key_pem).map_err(|error| unfit(&key_path, error))?;
        let chain = certificates("the authority's certificate", &certificate_pem)
            .map_err(|error| unfit(&path, error))?;
        check_key(&path, &chain, &key)?;
        check_authority(&path, &chain)?;
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key).map_err(|error| unfit(&path, error))?;
        Ok(Self { certificate_pem, issuer })
    }

    /// Reads the authority from a directory, or makes one there.
    ///
    /// # Errors
    /// The key is missing, or the files cannot be read or written.
    pub fn load_or_create(directory: &Path) -> Result<Self, PkiError> {
        let key_path = directory.join(AUTHORITY_KEY_FILE);
        let authority = match (exists(&directory.join(AUTHORITY_FILE))?, exists(&key_path)?) {
            (true, _) => return Self::load(directory),
            (false, false) => Self::create()?,
            // The key is written first. A certificate made from it anew is as good as the first one to all who
            // trust that: name and key are the same.
            (false, true) => Self::from_key(
                KeyPair::from_pem(&read(&key_path)?).map_err(|error| unfit(&key_path, error))?,
                LIFE,
            )?,
        };
        authority.save(directory)?;
        Ok(authority)
    }

    /// Writes `ca.pem` and `ca.key` into a directory, which is made if it is not there. The key can be
    /// read by its owner only.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn save(&self, directory: &Path) -> Result<(), PkiError> {
        write(&directory.join(AUTHORITY_KEY_FILE), &self.issuer.key().serialize_pem(), 0o600)?;
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
        self.issue_coordinator_for(dns_names, addresses, LIFE)
    }

    fn issue_coordinator_for(
        &self,
        dns_names: &[&str],
        addresses: &[IpAddr],
        life: Duration,
    ) -> Result<Identity, PkiError> {
        let mut names = Vec::new();
        for name in [COORDINATOR_NAME].iter().chain(dns_names) {
            let name = (*name)
                .try_into()
                .map_err(|source| PkiError::Make { subject: (*name).to_owned(), source })?;
            names.push(SanType::DnsName(name));
        }
        names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        let mut identity = self.issue(COORDINATOR_NAME, names, ExtendedKeyUsagePurpose::ServerAuth, life)?;
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
        self.issue(node.as_str(), vec![SanType::URI(uri)], ExtendedKeyUsagePurpose::ClientAuth, LIFE)
    }

    fn issue(
        &self,
        subject: &str,
        names: Vec<SanType>,
        usage: ExtendedKeyUsagePurpose,
        life: Duration,
    ) -> Result<Identity, PkiError> {
        let failed = |source| PkiError::Make { subject: subject.to_owned(), source };
        let mut params = parameters(subject, life);
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Identity { certificate_pem: certificate.pem(), key_pem: key.serialize_pem(), reset_secret: None })
    }
}

fn parameters(subject: &str, life: Duration) -> CertificateParams {
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.not_before = (now - CLOCK_TOLERANCE).into();
    params.not_after = (now + life).into();
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

fn exists(path: &Path) -> Result<bool, PkiError> {
    path.try_exists().map_err(|source| PkiError::File { path: path.to_owned(), source })
}

fn read(path: &Path) -> Result<String, PkiError> {
    let failed = |source| PkiError::File { path: path.to_owned(), source };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(failed)?;
    // Not by the length that the system tells: a device or a pipe has none, and may never end.
    file.take(MAX_PEM_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_PEM_BYTES {
        let reason = "is larger than 1 MiB and no PEM file".to_owned();
        return Err(PkiError::Unfit { path: path.to_owned(), reason });
    }
    Ok(text)
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
    fs::rename(&temporary, path).map_err(failed)?;
    // A name that a crash of the machine takes back would make the next start issue another authority.
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    fs::File::open(directory.unwrap_or(Path::new("."))).and_then(|opened| opened.sync_all()).map_err(failed)
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
        assert!(error.contains("/ca.pem: ") && error.contains("authority's certificate"), "{error}");
        let error = Identity::load(directory.path(), "agent").unwrap_err().to_string();
        assert!(error.contains("agent.pem"), "{error}");
        fs::remove_file(directory.path().join("ca.pem")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", directory.path().join("ca.pem")).unwrap();
        let error = TrustAnchor::load(directory.path()).unwrap_err().to_string();
        assert!(error.ends_with("/ca.pem: is larger than 1 MiB and no PEM file"), "{error}");
    }

    /// Every flipped bit and every length of a file, one after the other.
    fn damages(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        let flips = (0..bytes.len() * 8).map(|bit| {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            flipped
        });
        flips.chain((0..bytes.len()).map(|length| bytes[..length].to_vec()))
    }

    #[test]
    fn a_damaged_file_of_the_authority_is_named_or_still_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::load_or_create(directory.path()).unwrap();
        let chain = authority.trust_anchor().certificates().unwrap();
        let key = authority.issuer.key().serialize_der();
        for name in ["ca.pem", "ca.key"] {
            let path = directory.path().join(name);
            let whole = fs::read(&path).unwrap();
            let mut refused = 0;
            for damaged in damages(&whole).step_by(7) {
                fs::write(&path, damaged).unwrap();
                match CertificateAuthority::load(directory.path()) {
                    Ok(same) => {
                        assert_eq!(same.trust_anchor().certificates().unwrap(), chain);
                        assert_eq!(same.issuer.key().serialize_der(), key);
                    }
                    Err(error) => {
                        refused += 1;
                        let text = error.to_string();
                        assert!(text.contains("/ca.pem: ") || text.contains("/ca.key: "), "{text}");
                    }
                }
            }
            assert!(refused > whole.len() / 2, "{name}: only {refused} refused");
            fs::write(&path, whole).unwrap();
        }
        CertificateAuthority::load(directory.path()).unwrap();
    }

    #[test]
    fn an_authority_without_its_certificate_is_still_the_same_and_one_without_its_key_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::load_or_create(directory.path()).unwrap();
        let agent = authority.issue_agent(&NodeName::from("n1")).unwrap();
        fs::remove_file(directory.path().join("ca.pem")).unwrap();
        let remade = CertificateAuthority::load_or_create(directory.path()).unwrap();
        agent.check_issuer(&remade.trust_anchor(), directory.path(), "agent").unwrap();
        fs::remove_file(directory.path().join("ca.key")).unwrap();
        let text = CertificateAuthority::load_or_create(directory.path()).err().unwrap().to_string();
        assert!(text.contains("/ca.key: No such file"), "{text}");
    }

    #[test]
    fn files_that_do_not_belong_together_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::create().unwrap();
        let agent = |name: &str| authority.issue_agent(&NodeName::from(name)).unwrap();
        agent("n1").save(directory.path(), "agent").unwrap();
        agent("n2").save(directory.path(), "other").unwrap();
        fs::rename(directory.path().join("other.key"), directory.path().join("agent.key")).unwrap();
        let text = Identity::load(directory.path(), "agent").unwrap_err().to_string();
        assert!(text.contains("/agent.pem: it does not belong to the key beside it"), "{text}");

        agent("n1").save(directory.path(), "agent").unwrap();
        let loaded = Identity::load(directory.path(), "agent").unwrap();
        loaded.check_issuer(&authority.trust_anchor(), directory.path(), "agent").unwrap();
        let stranger = CertificateAuthority::create().unwrap().trust_anchor();
        let text = loaded.check_issuer(&stranger, directory.path(), "agent").unwrap_err().to_string();
        assert!(text.contains("/agent.pem: ca.pem is not of the authority that signed it"), "{text}");
    }
}
