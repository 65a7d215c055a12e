//! CPU and memory of the node.

use phalanx_profile::Host;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// Capacity of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// CPUs in thousandths of a core.
    pub cpu_milli: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl HostFacts {
    /// What this machine has; nothing where the system does not say, so that nothing is placed there.
    #[must_use]
    pub fn of_machine() -> Self {
        let kinds = RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing())
            .with_memory(MemoryRefreshKind::nothing().with_ram());
        match System::new_with_specifics(kinds) {
            Ok(system) => {
                Self { cpu_milli: system.cpus().len() as u64 * 1000, memory_bytes: system.total_memory() }
            }
            Err(error) => {
                tracing::warn!(%error, "CPUs and memory of this machine cannot be read");
                Self { cpu_milli: 0, memory_bytes: 0 }
            }
        }
    }
}

impl From<Host> for HostFacts {
    fn from(host: Host) -> Self {
        Self { cpu_milli: u64::from(host.cpus) * 1000, memory_bytes: host.memory_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cpus_and_memory() {
        let facts = HostFacts::of_machine();
        assert!(facts.cpu_milli >= 1000, "{facts:?}");
        assert!(facts.memory_bytes > 1 << 20, "{facts:?}");
    }
}
