//! Hollow nodes in a process of their own, so that a bench's coordinator does not share it.

use phalanx_devcluster::client_of;
use phalanx_devcluster::hollow::{
    HollowNodes, HollowOptions, Identity, KubeletOptions, Kubelets, NodeShape, create_nodes, raise_file_limit,
};
use phalanx_process::LogFormat;

use super::arguments::HollowNodesOptions;
use crate::failure::{Failure, print_text};
use crate::signals::Stop;

/// Starts them, prints `ready`, and runs until a signal comes.
///
/// # Errors
/// Something does not start.
pub(super) fn run(options: &HollowNodesOptions) -> Result<(), Failure> {
    phalanx_process::start_log(LogFormat::Text, "warn");
    raise_file_limit();
    let stop = Stop::listen()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("tokio runtime: {error}")))?;
    runtime.block_on(async {
        let failed = |error: &dyn std::fmt::Display| Failure::new(error.to_string());
        let client = client_of(&options.kubeconfig).await.map_err(|error| failed(&error))?;
        let hollow = HollowOptions {
            prefix: options.prefix.clone(),
            first: options.first,
            count: options.count,
            shape: NodeShape { gpus: options.gpus, ..NodeShape::default() },
            coordinators: options.coordinators.clone(),
            ledgers: options.ledgers.clone(),
            identity: Identity::Tokens,
        };
        let names: Vec<_> = hollow.names().collect();
        create_nodes(&client, &names, &hollow.shape).await.map_err(|error| failed(&error))?;
        let kubelets = KubeletOptions { node_prefix: options.prefix.clone(), ..KubeletOptions::default() };
        let _kubelets = if options.kubelets {
            Some(Kubelets::start(client.clone(), kubelets).await.map_err(|error| failed(&error))?)
        } else {
            None
        };
        let agents = if hollow.coordinators.is_empty() {
            None
        } else {
            Some(HollowNodes::start(client, hollow).await.map_err(|error| failed(&error))?)
        };
        print_text("ready");
        while !stop.is_asked() {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        if let Some(agents) = agents {
            agents.stop().await;
        }
        Ok(())
    })
}
