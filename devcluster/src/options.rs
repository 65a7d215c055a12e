//! What servers are asked for.

use std::path::PathBuf;

use phalanx_kube_binaries::Version;

/// How the API server is started. The default is the one most tests want: no kubelet will come for the nodes, so
/// nothing waits for one.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Version; `None` = what `PHALANX_KUBERNETES` says, else the newest.
    pub version: Option<Version>,
    /// Where data and logs are kept; `None` = a temporary folder that goes with the servers.
    pub folder: Option<PathBuf>,
    /// Users beside `admin`, each with the groups it is in. What they may do, RBAC says.
    pub users: Vec<(String, Vec<String>)>,
    /// Writes every request into a file, for [`crate::Servers::audited`].
    pub audit: bool,
    /// Pods get the token of their ServiceAccount, which must exist before them: it needs the controllers
    /// `serviceaccount-controller` and `root-ca-certificate-publisher-controller`, or accounts made by hand.
    pub service_account_admission: bool,
    /// A node without a kubelet keeps the taint `node.kubernetes.io/not-ready` for ever, so that this is off.
    pub taint_nodes_by_condition: bool,
    /// Further flags of kube-apiserver, `--name=value`.
    pub api_server_flags: Vec<String>,
}

impl Options {
    /// The admission plugins that these options turn off.
    pub(crate) fn disabled_plugins(&self) -> Vec<&'static str> {
        let plugins = [
            ("ServiceAccount", self.service_account_admission),
            ("TaintNodesByCondition", self.taint_nodes_by_condition),
        ];
        plugins.into_iter().filter(|(_, wanted)| !wanted).map(|(name, _)| name).collect()
    }
}
