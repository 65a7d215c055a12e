//! Agents as processes, each of a node with a profile.

use std::path::{Path, PathBuf};

use kube::Client;
use phalanx_common::ids::NodeName;
use phalanx_profile::Profile;

use super::InstallationError;
use crate::error::Error;
use crate::hollow::{NodeShape, TokenFiles, create_nodes, token_files};
use crate::process::Server;
use crate::servers::Servers;

/// A node that shows the machine of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPlan {
    /// Its name.
    pub node: NodeName,
    /// File of the profile.
    pub profile: PathBuf,
}

/// Makes the Node object as the kubelet of such a machine would.
pub(super) async fn create_node(client: &Client, plan: &AgentPlan) -> Result<(), InstallationError> {
    let profile = Profile::load(&plan.profile)?;
    let shape = NodeShape {
        gpus: u32::try_from(profile.gpus.len()).unwrap_or(u32::MAX),
        gpu_model: profile.gpus.first().map(|gpu| gpu.model.clone()).unwrap_or_default(),
        cpus: profile.host.cpus.into(),
        memory_bytes: profile.host.memory_bytes,
        ..NodeShape::default()
    };
    Ok(create_nodes(client, std::slice::from_ref(&plan.node), &shape).await?)
}

/// An agent's process.
#[derive(Debug)]
pub(super) struct ProfileAgent {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
    server: Server,
    /// Keeps the authority's file as the cluster has it.
    _files: TokenFiles,
}

impl ProfileAgent {
    pub async fn new(
        servers: &Servers,
        client: &Client,
        program: &Path,
        plan: AgentPlan,
        coordinators: &[String],
    ) -> Result<Self, InstallationError> {
        let AgentPlan { node, profile } = plan;
        let folder = servers.folder().join("agents").join(node.as_str());
        let files = token_files(client, &node, &folder).await?;
        let mut arguments = vec![
            "run".to_owned(),
            format!("--node={node}"),
            format!("--state-dir={}", folder.display()),
            format!("--token-file={}", files.token_file.display()),
            format!("--ca-file={}", files.authority_file.display()),
            format!("--profile={}", profile.display()),
        ];
        arguments.extend(coordinators.iter().map(|address| format!("--coordinator={address}")));
        let (name, folder) = (format!("agent-{node}"), servers.folder().to_owned());
        let server = Server::start(&name, program, &arguments, &folder)?;
        Ok(Self { name, program: program.to_owned(), arguments, folder, server, _files: files })
    }

    /// Starts it again.
    pub fn start(&mut self) -> Result<(), Error> {
        self.server.kill();
        self.server = Server::start(&self.name, &self.program, &self.arguments, &self.folder)?;
        Ok(())
    }

    pub fn check(&mut self) -> Result<(), Error> {
        self.server.check()
    }

    pub fn process(&self) -> (String, u32) {
        (self.name.clone(), self.server.id())
    }
}
