//! How hollow agents show who they are: in Kubernetes by a token of their pod, as the kubelet would give it to them.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use phalanx_agent::credentials::Credentials;
use phalanx_common::ids::NodeName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{CredentialsOf, HollowError, HollowOptions};
use crate::tokens::{TokenOptions, reference, request};

/// Namespace of Phalanx.
pub const NAMESPACE: &str = "phalanx-system";
/// Name of the agents' DaemonSet and ServiceAccount.
pub const AGENT_NAME: &str = "phalanx-agent";

const AUDIENCE: &str = "phalanx";
const AUTHORITY: &str = "phalanx-ca";
const AUTHORITY_KEY: &str = "ca.crt";
/// Longer than any test: tokens are not renewed.
const TOKEN_LIFE_S: i64 = 7 * 24 * 3600;
/// How often it is looked whether the cluster has another authority.
const AUTHORITY_LOOK: Duration = Duration::from_secs(2);

/// How agents show who they are.
#[derive(Clone)]
pub enum Identity {
    /// By a token of their pod. Pods as the DaemonSet's controller would make them are made here, and what they need
    /// where it is not there: namespace, ServiceAccount, DaemonSet.
    Tokens,
    /// By what this gives for their node.
    Given(CredentialsOf),
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Tokens => "Tokens",
            Self::Given(_) => "Given(..)",
        })
    }
}

/// Copies the ConfigMap of the authority into the file that agents read, as a kubelet does.
#[derive(Debug)]
pub(crate) struct AuthorityTask(JoinHandle<()>);

impl Drop for AuthorityTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl AuthorityTask {
    fn start(client: &Client, path: PathBuf) -> Self {
        Self(tokio::spawn(copy_authority(Api::namespaced(client.clone(), NAMESPACE), path)))
    }
}

fn authority_file(ledgers: &Path) -> PathBuf {
    ledgers.join("ca.crt")
}

/// What all agents with a token need.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// UID of the DaemonSet that owns their pods.
    daemon_set: String,
    /// Keeps the authority's file as the cluster has it.
    _authority: AuthorityTask,
}

impl Prepared {
    pub fn daemon_set(&self) -> &str {
        &self.daemon_set
    }
}

/// Makes what all agents need.
pub(crate) async fn prepare(
    client: &Client,
    identity: &Identity,
    ledgers: &Path,
) -> Result<Option<Prepared>, HollowError> {
    std::fs::create_dir_all(ledgers).map_err(file(ledgers))?;
    if matches!(identity, Identity::Given(_)) {
        return Ok(None);
    }
    let daemon_set = make_daemon_set(client).await?;
    let authority = AuthorityTask::start(client, authority_file(ledgers));
    Ok(Some(Prepared { daemon_set, _authority: authority }))
}

/// Makes it where it is not there; gives its UID.
async fn make_daemon_set(client: &Client) -> Result<String, HollowError> {
    make::<Namespace>(Api::all(client.clone()), json!({"metadata": {"name": NAMESPACE}})).await?;
    let account = json!({"metadata": {"name": AGENT_NAME}});
    make_in::<ServiceAccount>(client, account).await?;
    let labels = json!({"app.kubernetes.io/name": AGENT_NAME});
    let template = json!({
        "metadata": {"labels": labels},
        "spec": {"serviceAccountName": AGENT_NAME, "containers": [{"name": "agent", "image": "hollow"}]},
    });
    let set = json!({
        "metadata": {"name": AGENT_NAME},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    });
    Ok(make_in::<DaemonSet>(client, set).await?.uid().unwrap_or_default())
}

/// What an agent in a process of its own is given, as its kubelet would mount it.
#[derive(Debug)]
pub struct TokenFiles {
    /// The token of its pod.
    pub token_file: PathBuf,
    /// The coordinators' authority, kept as the cluster has it.
    pub authority_file: PathBuf,
    _authority: AuthorityTask,
}

/// Makes the pod of a node's agent and what it needs, and writes its token and the authority into the folder.
///
/// # Errors
/// The API server refuses something.
pub async fn token_files(client: &Client, node: &NodeName, folder: &Path) -> Result<TokenFiles, HollowError> {
    let daemon_set = make_daemon_set(client).await?;
    let token_file = write_token(client, &daemon_set, node, folder).await?;
    let authority_file = authority_file(folder);
    let task = AuthorityTask::start(client, authority_file.clone());
    Ok(TokenFiles { token_file, authority_file, _authority: task })
}

async fn copy_authority(maps: Api<ConfigMap>, path: PathBuf) {
    let mut written = None;
    loop {
        // Without it, or without an API server, agents go on with what they have.
        if let Ok(Some(map)) = maps.get_opt(AUTHORITY).await {
            let text = map.data.and_then(|mut data| data.remove(AUTHORITY_KEY));
            if text.is_some() && text != written {
                let unfinished = path.with_extension("unfinished");
                let text = text.unwrap_or_default();
                let done =
                    std::fs::write(&unfinished, &text).and_then(|()| std::fs::rename(&unfinished, &path));
                match done {
                    Ok(()) => written = Some(text),
                    Err(error) => tracing::warn!("{}: {error}", path.display()),
                }
            }
        }
        tokio::time::sleep(AUTHORITY_LOOK).await;
    }
}

/// What one agent shows.
pub(crate) async fn credentials(
    client: &Client,
    options: &HollowOptions,
    daemon_set: &str,
    node: &NodeName,
    folder: &Path,
) -> Result<Credentials, HollowError> {
    if let Identity::Given(give) = &options.identity {
        return Ok(give(node));
    }
    let token_file = write_token(client, daemon_set, node, folder).await?;
    Ok(Credentials::Token { token_file, authority_file: authority_file(&options.ledgers) })
}

/// Makes the agent's pod, bound to its node as a DaemonSet's is, and writes its token.
async fn write_token(
    client: &Client,
    daemon_set: &str,
    node: &NodeName,
    folder: &Path,
) -> Result<PathBuf, HollowError> {
    let name = format!("{AGENT_NAME}-{node}");
    let pod = json!({
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/name": AGENT_NAME},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "DaemonSet", "name": AGENT_NAME, "uid": daemon_set,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "nodeName": node.as_str(),
            "serviceAccountName": AGENT_NAME,
            "hostNetwork": true,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "agent", "image": "hollow"}],
        },
    });
    let pod = make_in::<Pod>(client, pod).await?;
    let wanted =
        TokenOptions { audience: AUDIENCE.to_owned(), pod: Some(name), expires_in_s: Some(TOKEN_LIFE_S) };
    let asked = request(client, NAMESPACE, AGENT_NAME, &wanted, Some(reference(&pod))).await;
    let text = asked.map_err(|error| HollowError::Token { node: node.clone(), source: Box::new(error) })?;
    std::fs::create_dir_all(folder).map_err(file(folder))?;
    let token_file = folder.join("token");
    let written =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&token_file);
    written.and_then(|mut written| written.write_all(text.as_bytes())).map_err(file(&token_file))?;
    Ok(token_file)
}

async fn make_in<K>(client: &Client, object: Value) -> Result<K, HollowError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    make::<K>(Api::namespaced(client.clone(), NAMESPACE), object).await
}

/// Creates it where it is not there, and gives what is there.
async fn make<K>(api: Api<K>, object: Value) -> Result<K, HollowError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let what = format!("{} {name}", K::kind(&()));
    let parsed: K = serde_json::from_value(object)
        .map_err(|error| HollowError::api(what.clone())(kube::Error::SerdeError(error)))?;
    match api.create(&PostParams::default(), &parsed).await {
        Ok(made) => Ok(made),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            api.get(&name).await.map_err(HollowError::api(what))
        }
        Err(error) => Err(HollowError::api(what)(error)),
    }
}

fn file(path: &Path) -> impl FnOnce(std::io::Error) -> HollowError {
    let path = path.to_owned();
    move |source| HollowError::File { path, source }
}
