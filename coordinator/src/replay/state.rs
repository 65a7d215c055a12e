//! A machine's state as text, for people who look for the moment at which something went wrong.

use std::collections::BTreeSet;
use std::io::{self, Write};

use phalanx_common::units::Time;
use phalanx_core::Core;
use phalanx_core::action::{Action, Command};
use phalanx_core::view::{GangView, LeaseView, NodeView};

/// What of the state is shown.
#[derive(Debug, Default)]
pub(super) struct About {
    /// Gangs and pods, `namespace/name`.
    names: BTreeSet<String>,
    nodes: BTreeSet<String>,
}

impl About {
    /// What these actions speak of; everything where they name nothing.
    pub(super) fn of<'a>(actions: impl IntoIterator<Item = &'a Action>) -> Self {
        let mut about = Self::default();
        for action in actions {
            match &action.command {
                Command::Send { node, .. } => {
                    about.nodes.insert(node.to_string());
                }
                Command::WritePlan(plan) => {
                    about.names.insert(plan.gang.to_string());
                    about.nodes.extend(plan.pods.iter().map(|pod| pod.node.to_string()));
                }
                Command::DeletePlan { gang, .. }
                | Command::SetGangStatus { gang, .. }
                | Command::RecordPromise { gang, .. } => {
                    about.names.insert(gang.to_string());
                }
                Command::Bind { name, binding, .. } => {
                    about.names.insert(name.to_string());
                    about.nodes.insert(binding.node.to_string());
                }
                Command::FenceWrite { name, .. }
                | Command::ReadPod { name, .. }
                | Command::Evict { name, .. }
                | Command::AnnounceEviction { name, .. } => {
                    about.names.insert(name.to_string());
                }
                Command::RaiseTerm { .. } | Command::SetQueueStatus { .. } | Command::Warn { .. } => {}
            }
        }
        about
    }

    fn is_everything(&self) -> bool {
        self.names.is_empty() && self.nodes.is_empty()
    }

    fn lease(&self, lease: &LeaseView) -> bool {
        self.is_everything()
            || self.nodes.contains(lease.node.as_str())
            || self.names.contains(&lease.pod.to_string())
            || lease.gang.as_ref().is_some_and(|gang| self.names.contains(&gang.to_string()))
    }

    fn node(&self, node: &NodeView) -> bool {
        self.is_everything() || self.nodes.contains(node.name.as_str())
    }

    fn gang(&self, gang: &GangView) -> bool {
        let namespace = &gang.name.namespace;
        self.is_everything()
            || self.names.contains(&gang.name.to_string())
            || gang.pods.iter().any(|pod| {
                self.names.contains(&format!("{namespace}/{}", pod.name))
                    || pod.node.as_ref().is_some_and(|node| self.nodes.contains(node.as_str()))
            })
    }
}

/// Writes the state: gangs with phase and reason, nodes with free GPUs, leases.
///
/// # Errors
/// The output cannot be written.
pub(super) fn write(output: &mut dyn Write, core: &Core, now: Time, about: &About) -> io::Result<()> {
    let view = core.view();
    writeln!(output, "term {}", core.term())?;
    if let Some((at, why)) = core.next_deadline() {
        writeln!(output, "next deadline: in {} ({why})", at - now)?;
    }
    let gangs: Vec<&GangView> = view.gangs.iter().filter(|gang| about.gang(gang)).collect();
    writeln!(output, "gangs: {}", shown(gangs.len(), view.gangs.len()))?;
    for gang in gangs {
        write_gang(output, gang)?;
    }
    let nodes: Vec<&NodeView> = view.nodes.iter().filter(|node| about.node(node)).collect();
    writeln!(output, "nodes: {}", shown(nodes.len(), view.nodes.len()))?;
    for node in nodes {
        let free = node.gpus.iter().filter(|gpu| gpu.holder.is_none() && gpu.health.is_healthy()).count();
        let gpus = node.gpus.len();
        writeln!(output, "  {}: {}, {free} of {gpus} GPUs free", node.name, node.state)?;
        for gpu in node.gpus.iter().filter(|gpu| gpu.holder.is_some() || !gpu.health.is_healthy()) {
            let holder = gpu.holder.as_ref().map_or_else(|| "nobody".to_owned(), ToString::to_string);
            writeln!(output, "    {} {:?}, held by {holder}", gpu.id, gpu.health)?;
        }
    }
    let all = core.lease_views();
    let leases: Vec<&LeaseView> = all.iter().filter(|lease| about.lease(lease)).collect();
    writeln!(output, "leases: {}", shown(leases.len(), all.len()))?;
    for lease in leases {
        let known = lease.known.map_or_else(|| "not there".to_owned(), |state| format!("{state:?}"));
        let gpus: Vec<String> = lease.gpus.iter().map(ToString::to_string).collect();
        let of = lease.gang.as_ref().map_or("nobody here knows it, ", |_| "");
        writeln!(
            output,
            "  {} on {} for {}: {of}wanted {:?}, at its agent {known} {}",
            lease.lease,
            lease.node,
            lease.pod,
            lease.wanted,
            gpus.join(" ")
        )?;
    }
    Ok(())
}

fn shown(shown: usize, all: usize) -> String {
    if shown == all { all.to_string() } else { format!("{shown} of {all} shown") }
}

fn write_gang(output: &mut dyn Write, gang: &GangView) -> io::Result<()> {
    let pods = gang.pods.len();
    writeln!(
        output,
        "  {} in queue {}: {} ({}), {pods} pods, at least {} together",
        gang.name, gang.queue, gang.phase, gang.pod_group_phase, gang.minimum
    )?;
    if let Some(reason) = &gang.reason {
        writeln!(output, "    reason: {}", reason.text)?;
        if !reason.fix.is_empty() {
            writeln!(output, "    fix: {}", reason.fix)?;
        }
    }
    for pod in &gang.pods {
        let node = pod.node.as_ref().map_or("nowhere", |node| node.as_str());
        writeln!(output, "    {}: {} on {node}, {} GPUs", pod.name, pod.phase, pod.gpus.len())?;
    }
    Ok(())
}
