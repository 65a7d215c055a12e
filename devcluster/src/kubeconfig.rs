//! Files with which kubectl, controllers and our own programs reach the API server.

use std::path::PathBuf;

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;

use crate::error::Error;
use crate::folder::Folder;
use crate::pki::Pki;

/// Writes `NAME.kubeconfig` for a user with this token. JSON is YAML too.
pub(crate) fn write(
    folder: &Folder,
    pki: &Pki,
    url: &str,
    name: &str,
    token: &str,
) -> Result<PathBuf, Error> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "phalanx",
            "cluster": { "server": url, "certificate-authority": pki.authority },
        }],
        "users": [{ "name": name, "user": { "token": token } }],
        "contexts": [{ "name": "phalanx", "context": { "cluster": "phalanx", "user": name } }],
        "current-context": "phalanx",
    });
    folder.write(&format!("{}.kubeconfig", name.replace([':', '/'], "-")), &format!("{config:#}\n"))
}

/// A client of what a kubeconfig says. It belongs to the runtime of the caller: a test makes its own.
///
/// # Errors
/// The file cannot be read, or says nothing of a cluster.
pub async fn client(path: &std::path::Path) -> Result<kube::Client, Error> {
    // The first one stays; that there is one already is what is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = Kubeconfig::read_from(path)?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    kube::Client::try_from(config).map_err(Error::api("client of the API server"))
}
