//! Which versions and tools there are, and from what each is built.

use std::fmt;
use std::str::FromStr;

/// A supported Kubernetes: the oldest and the newest are the ones worth testing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// The oldest.
    V1_34,
    /// The newest.
    #[default]
    V1_37,
}

impl Version {
    /// Name of the environment variable that chooses the version for tests.
    pub const VARIABLE: &str = "PHALANX_KUBERNETES";

    /// All of them, the oldest first.
    pub const ALL: [Self; 2] = [Self::V1_34, Self::V1_37];

    /// What `PHALANX_KUBERNETES` says, the newest where it says nothing.
    ///
    /// # Errors
    /// It names none of them.
    pub fn of_environment() -> Result<Self, UnknownVersion> {
        std::env::var(Self::VARIABLE).map_or_else(|_| Ok(Self::default()), |text| text.parse())
    }

    /// `1.37`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V1_34 => "1.34",
            Self::V1_37 => "1.37",
        }
    }

    /// What the binaries say they are, `v1.37.2`.
    #[must_use]
    pub fn release(self) -> &'static str {
        match self {
            Self::V1_34 => "v1.34.4",
            Self::V1_37 => "v1.37.2",
        }
    }

    fn module(self) -> Module {
        match self {
            Self::V1_34 => Module {
                name: "1.34",
                go_mod: include_str!("../../../xtask/kubernetes/1.34/go.mod"),
                go_sum: include_str!("../../../xtask/kubernetes/1.34/go.sum"),
            },
            Self::V1_37 => Module {
                name: "1.37",
                go_mod: include_str!("../../../xtask/kubernetes/1.37/go.mod"),
                go_sum: include_str!("../../../xtask/kubernetes/1.37/go.sum"),
            },
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A version that is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVersion(String);

impl fmt::Display for UnknownVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        write!(
            formatter,
            "Kubernetes version {text:?} is not one of 1.34, 1.37 ({} or --kubernetes)",
            Version::VARIABLE
        )
    }
}

impl std::error::Error for UnknownVersion {}

impl FromStr for Version {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        Self::ALL
            .into_iter()
            .find(|version| version.name() == text)
            .ok_or_else(|| UnknownVersion(text.to_owned()))
    }
}

/// A program that tests start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tool {
    /// The store of the API server; one version serves all.
    Etcd,
    /// The API server.
    ApiServer,
    /// Owner references, DaemonSets, service accounts.
    ControllerManager,
    /// Places the pods of DaemonSets, and is what benches compare with.
    Scheduler,
    /// The user's tool.
    Kubectl,
    /// A real node's agent.
    Kubelet,
    /// A real node's container runtime.
    Containerd,
    /// Starts containers for containerd.
    ContainerdShim,
    /// Imports images into containerd.
    Ctr,
    /// Looks into a container runtime.
    Crictl,
}

impl Tool {
    /// What the tests with an API server need.
    pub const SERVERS: [Self; 5] =
        [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kubectl];

    /// What a real node needs beside those.
    pub const NODE: [Self; 5] =
        [Self::Kubelet, Self::Containerd, Self::ContainerdShim, Self::Ctr, Self::Crictl];

    /// File name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
            Self::Kubelet => "kubelet",
            Self::Containerd => "containerd",
            Self::ContainerdShim => "containerd-shim-runc-v2",
            Self::Ctr => "ctr",
            Self::Crictl => "crictl",
        }
    }

    /// The Go package.
    pub(crate) fn package(self) -> String {
        let name = self.name();
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3".to_owned(),
            Self::ApiServer | Self::ControllerManager | Self::Scheduler | Self::Kubectl | Self::Kubelet => {
                format!("k8s.io/kubernetes/cmd/{name}")
            }
            Self::Containerd | Self::ContainerdShim | Self::Ctr => {
                format!("github.com/containerd/containerd/v2/cmd/{name}")
            }
            Self::Crictl => "sigs.k8s.io/cri-tools/cmd/crictl".to_owned(),
        }
    }

    /// What it is built from, for a version of Kubernetes.
    pub(crate) fn module(self, version: Version) -> Module {
        match self {
            Self::Etcd => Version::V1_37.module(),
            Self::ApiServer | Self::ControllerManager | Self::Scheduler | Self::Kubectl | Self::Kubelet => {
                version.module()
            }
            Self::Containerd | Self::ContainerdShim | Self::Ctr | Self::Crictl => Module {
                name: "runtime",
                go_mod: include_str!("../../../xtask/kubernetes/runtime/go.mod"),
                go_sum: include_str!("../../../xtask/kubernetes/runtime/go.sum"),
            },
        }
    }

    /// Flags of the linker. Without its version every component says v0.0.0.
    pub(crate) fn linker_flags(self, version: Version) -> String {
        let release = version.release();
        let minor = version.name().trim_start_matches("1.");
        let stamp = |name: &str, value: &str| format!(" -X k8s.io/component-base/version.{name}={value}");
        match self {
            Self::ApiServer | Self::ControllerManager | Self::Scheduler | Self::Kubectl | Self::Kubelet => {
                let stamps = [("gitVersion", release), ("gitMajor", "1"), ("gitMinor", minor)];
                let stamps: String = stamps.iter().map(|(name, value)| stamp(name, value)).collect();
                format!("-s -w{stamps}{}", stamp("gitTreeState", "clean"))
            }
            Self::Etcd | Self::Containerd | Self::ContainerdShim | Self::Ctr | Self::Crictl => {
                "-s -w".to_owned()
            }
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A Go module that holds nothing but tool dependencies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module {
    pub name: &'static str,
    pub go_mod: &'static str,
    pub go_sum: &'static str,
}

impl Module {
    /// Name of its folder in the cache: a change of the module has a folder of its own.
    pub fn key(&self) -> String {
        let mut sum = crc32fast::Hasher::new();
        sum.update(self.go_mod.as_bytes());
        sum.update(self.go_sum.as_bytes());
        format!("{}-{:08x}", self.name, sum.finalize())
    }

    /// Oldest Go that builds it, from its `go` line.
    pub fn needed_go(&self) -> &'static str {
        self.go_mod.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or("1.26.0").trim()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_not_supported_is_named() {
        assert_eq!("1.34".parse(), Ok(Version::V1_34));
        let error = "1.30".parse::<Version>().unwrap_err().to_string();
        assert!(error.contains("\"1.30\"") && error.contains("1.34, 1.37"), "{error}");
    }

    #[test]
    fn every_tool_is_a_tool_dependency_of_its_module() {
        for version in Version::ALL {
            for tool in Tool::SERVERS.into_iter().chain(Tool::NODE) {
                let module = tool.module(version);
                let listed = module.go_mod.lines().any(|line| line.trim() == tool.package());
                assert!(listed, "{tool}: {} is not a tool of {}", tool.package(), module.name);
                assert!(module.go_mod.contains(version.release()) || module.name != version.name());
            }
        }
    }
}
