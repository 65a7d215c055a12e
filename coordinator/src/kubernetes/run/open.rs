//! What a replica opens before anything of it runs: whoever fails here leaves nothing behind.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use phalanx_kubernetes::client::{Clients, MayWrite};
use phalanx_kubernetes::election::{Candidate, Leadership, LeaseTimes};
use phalanx_kubernetes::identity::{AuthorityStore, Reviewer};
use phalanx_transport::server_endpoint;
use quinn::Endpoint;
use tokio::net::TcpListener;

use super::super::normalize::Trim;
use super::super::write::{WriteParts, Writes};
use super::super::{KubernetesApi, Options, read_cluster_id, volcano};
use crate::agents::TokenCheck;
use crate::agents::authority::{KubernetesAuthority, Rotation};
use crate::clock::Clock;
use crate::config::{AgentIdentity, Config, KubernetesConfig};
use crate::coordinator::{StartError, authority_in, new_incarnation, pki_directory};
use crate::recorder::Recorder;

/// All that is open.
pub(super) struct Opened {
    pub(super) config: Config,
    pub(super) kubernetes: KubernetesConfig,
    pub(super) incarnation: u64,
    pub(super) api: KubernetesApi,
    pub(super) leadership: Leadership,
    pub(super) agents: Agents,
    pub(super) admin: TcpListener,
    pub(super) admin_address: SocketAddr,
    pub(super) recorder: Recorder,
    pub(super) clock: Clock,
}

/// Longest wait for one answer to a write: what a former leader has asked for is done or not before the next one may
/// begin.
pub(super) fn write_time_out(times: &LeaseTimes) -> Duration {
    let between = times.lease_duration.saturating_sub(times.renew_deadline);
    (between * 4 / 5).max(Duration::from_millis(500))
}

/// Which API server is asked, and who says so.
pub(crate) fn server_text(address: &impl Display, kubeconfig: Option<&Path>) -> String {
    match kubeconfig {
        Some(path) => format!("the API server {address} of kubeconfig {}", path.display()),
        None => format!("the API server {address} of the pod's service account"),
    }
}

pub(super) async fn open(config: &Config, kubernetes: &KubernetesConfig) -> Result<Opened, StartError> {
    let config = config.clone();
    let mut kubernetes = kubernetes.clone();
    let user_agent = concat!("phalanx-coordinator/", env!("CARGO_PKG_VERSION"));
    let target = kubernetes.target.load().await?;
    let clients = Clients::new(&target, user_agent)?;
    // Waits for an API server that does not answer yet.
    let server = server_text(&target.cluster_url, kubernetes.target.kubeconfig.as_deref());
    read_cluster_id(&clients.watch, &server).await.map_err(StartError::Cluster)?;
    let directory = &config.state_dir;
    std::fs::create_dir_all(directory)
        .map_err(|cause| StartError::StateDirectory { directory: directory.clone(), cause })?;
    let clock = Clock::start();
    let failed = |cause| StartError::Admin { address: config.admin, cause };
    let admin = TcpListener::bind(config.admin).await.map_err(failed)?;
    let admin_address = admin.local_addr().map_err(failed)?;
    let recorder =
        Recorder::start(&directory.join("recordings"), clock.now(), &config.settings, config.recording)?;
    let agents = agents(&config, &kubernetes, &clients.write).await?;
    volcano::leave_out(&clients.watch, &mut kubernetes.scheduler_names).await?;
    let incarnation = new_incarnation();
    let candidate = Candidate {
        namespace: kubernetes.namespace.clone(),
        identity: kubernetes.identity.clone(),
        incarnation,
        admin: Some(kubernetes.admin_advertise.unwrap_or(admin_address).to_string()),
        times: kubernetes.times,
    };
    let leadership = Leadership::new(clients.write.clone(), candidate);
    let leads = leadership.clone();
    let may_write: MayWrite = Arc::new(move || leads.leads());
    let options = Options {
        scheduler_names: kubernetes.scheduler_names.clone(),
        namespace: kubernetes.namespace.clone(),
        ..Options::default()
    };
    let writes = Writes::new(WriteParts {
        client: clients.write,
        trim: Trim::new(&options.scheduler_names),
        may_write,
        time_out: write_time_out(&kubernetes.times),
    });
    let api = KubernetesApi::start(clients.watch, writes, &options).await.map_err(StartError::Cluster)?;
    api.set_terms(Arc::new(leadership.clone()));
    Ok(Opened {
        config,
        kubernetes,
        incarnation,
        api,
        leadership,
        agents,
        admin,
        admin_address,
        recorder,
        clock,
    })
}

/// Where agents dial, and how they show who they are.
pub(super) struct Agents {
    pub(super) quic: Endpoint,
    /// Looks at the tokens of those that have no certificate.
    pub(super) tokens: Option<TokenCheck>,
    /// The authority, to be kept while the replica lives.
    pub(super) authority: Option<KubernetesAuthority>,
}

async fn agents(
    config: &Config,
    kubernetes: &KubernetesConfig,
    client: &Client,
) -> Result<Agents, StartError> {
    match kubernetes.agent_identity {
        AgentIdentity::Certificate => {
            let directory = kubernetes.pki_dir.clone().unwrap_or_else(|| pki_directory(&config.state_dir));
            let authority = authority_in(directory.clone(), false)?;
            let identity = authority
                .issue_coordinator(&[], &[])
                .map_err(|cause| StartError::Pki { directory, cause })?;
            let (quic, _) = server_endpoint(config.listen, &identity, &authority.trust_anchor())?;
            Ok(Agents { quic, tokens: None, authority: None })
        }
        AgentIdentity::Token => {
            let store = AuthorityStore::new(client.clone(), &kubernetes.namespace);
            let mut authority = KubernetesAuthority::open(store, Rotation::default()).await?;
            let (quic, _) = authority.endpoint(config.listen)?;
            let reviewer = Reviewer::new(client.clone(), &kubernetes.namespace);
            Ok(Agents { quic, tokens: Some(TokenCheck::by(reviewer)), authority: Some(authority) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_that_is_asked_is_named_with_its_kubeconfig() {
        assert_eq!(
            server_text(&"https://a:1/", Some(Path::new("/k"))),
            "the API server https://a:1/ of kubeconfig /k"
        );
        assert_eq!(
            server_text(&"https://a:1/", None),
            "the API server https://a:1/ of the pod's service account"
        );
    }
}
