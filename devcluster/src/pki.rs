//! Certificates of the API server, and the key that signs tokens of ServiceAccounts.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};

use crate::error::Error;
use crate::folder::Folder;

/// Names under which the API server is reached: from outside, and from pods.
const NAMES: [&str; 4] =
    ["localhost", "kubernetes", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
/// Its address, and the one of the Service `kubernetes`.
const ADDRESSES: [[u8; 4]; 2] = [[127, 0, 0, 1], [10, 0, 0, 1]];

/// Files of one API server.
#[derive(Clone, Debug)]
pub(crate) struct Pki {
    /// Certificate of the authority.
    pub authority: PathBuf,
    /// Serving certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Private key of the tokens of ServiceAccounts.
    pub service_account_key: PathBuf,
    /// Its public key.
    pub service_account_public_key: PathBuf,
}

impl Pki {
    /// Makes all of them.
    pub fn create(folder: &Folder) -> Result<Self, Error> {
        let authority_key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "phalanx dev-cluster");
        let authority = params.self_signed(&authority_key)?;
        let issuer = Issuer::new(params, authority_key);

        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(NAMES.map(str::to_owned))?;
        params.subject_alt_names.extend(ADDRESSES.map(|address| SanType::IpAddress(address.into())));
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        let certificate = params.signed_by(&key, &issuer)?;
        let account_key = KeyPair::generate()?;
        Ok(Self {
            authority: folder.write("ca.crt", &authority.pem())?,
            certificate: folder.write("apiserver.crt", &certificate.pem())?,
            key: folder.write("apiserver.key", &key.serialize_pem())?,
            service_account_key: folder.write("service-account.key", &account_key.serialize_pem())?,
            service_account_public_key: folder.write("service-account.pub", &account_key.public_key_pem())?,
        })
    }
}
