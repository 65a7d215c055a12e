//! The folder of a dev cluster: what was asked for, who runs it, and where it is reached.

use std::fs;
use std::path::{Path, PathBuf};

use phalanx_devcluster::Version;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cluster::plain;
use crate::failure::Failure;
use crate::process::Known;

const PLAN: &str = "plan.json";
const SUPERVISOR: &str = "supervisor.json";
const READY: &str = "ready.json";
const LOG: &str = "dev-cluster.log";

/// A node with a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlannedNode {
    pub name: String,
    pub profile: PathBuf,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub kubernetes: String,
    pub replicas: u32,
    pub nodes: Vec<PlannedNode>,
    pub hollow: u32,
    pub kube_scheduler: bool,
    pub config: Option<PathBuf>,
}

impl Plan {
    pub fn version(&self) -> Result<Version, Failure> {
        self.kubernetes.parse().map_err(|error| Failure::new(format!("{error}")))
    }
}

/// Where it is reached; written when all of it is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ready {
    pub kubernetes: String,
    pub url: String,
    pub kubeconfig: PathBuf,
    pub kubectl: PathBuf,
    pub replicas: u32,
    pub nodes: u32,
    pub gpus: u32,
    /// Folder of manifests to try.
    pub examples: PathBuf,
    /// Process ids of everything, by name.
    pub processes: Vec<(String, u32)>,
}

/// The folder.
#[derive(Clone, Debug)]
pub(super) struct State {
    folder: PathBuf,
}

impl State {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn log(&self) -> PathBuf {
        self.folder.join(LOG)
    }

    /// True where a dev cluster was started from here.
    pub fn exists(&self) -> bool {
        self.folder.join(PLAN).is_file()
    }

    /// Makes the folder anew for this plan. One that is not ours is left alone.
    pub fn begin(&self, plan: &Plan) -> Result<(), Failure> {
        let shown = self.folder.display();
        let failed = |error: &std::io::Error| Failure::new(format!("{shown}: {}", plain(error)));
        let is_empty = match fs::read_dir(&self.folder) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
            Err(error) => return Err(failed(&error)),
        };
        if self.exists() {
            self.remove()?;
        } else if !is_empty {
            return Err(Failure::new(format!(
                "--state-dir {shown}: holds other files, and `down` would remove them: name a folder that is empty or \
                 not there"
            )));
        }
        fs::create_dir_all(&self.folder).map_err(|error| failed(&error))?;
        // Absolute, since others run elsewhere.
        self.write(PLAN, plan)
    }

    pub fn remove(&self) -> Result<(), Failure> {
        fs::remove_dir_all(&self.folder).map_err(|error| {
            Failure::new(format!("cannot remove {}: {}", self.folder.display(), plain(&error)))
        })
    }

    pub fn plan(&self) -> Result<Plan, Failure> {
        self.read(PLAN)
            .ok_or_else(|| Failure::new(format!("{}: there is no plan", self.folder.join(PLAN).display())))
    }

    pub fn write_supervisor(&self, known: Option<&Known>) -> Result<(), Failure> {
        known.map_or(Ok(()), |known| self.write(SUPERVISOR, known))
    }

    /// Who owns the dev cluster, while it runs.
    pub fn running(&self) -> Option<Known> {
        self.read::<Known>(SUPERVISOR).filter(Known::runs)
    }

    pub fn ready(&self) -> Option<Ready> {
        self.read(READY)
    }

    pub fn write_ready(&self, ready: &Ready) -> Result<(), Failure> {
        self.write(READY, ready)
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_str(&fs::read_to_string(self.folder.join(name)).ok()?).ok()
    }

    fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<(), Failure> {
        let path = self.folder.join(name);
        let unfinished = path.with_extension("unfinished");
        let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(error.to_string()))?;
        let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &path));
        written.map_err(|error| Failure::new(format!("cannot write {}: {}", path.display(), plain(&error))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_others_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("thesis.txt");
        fs::write(&other, "long").unwrap();
        let state = State::new(folder.path().to_owned());
        let plan = Plan {
            config: None,
            kubernetes: "1.37".to_owned(),
            replicas: 1,
            nodes: Vec::new(),
            hollow: 4,
            kube_scheduler: false,
        };
        let error = state.begin(&plan).unwrap_err().to_string();
        assert!(error.contains("holds other files"), "{error}");
        assert!(other.is_file() && !state.exists());
        fs::remove_file(other).unwrap();
        state.begin(&plan).unwrap();
        assert_eq!(state.plan().unwrap(), plan);
        // One that was ours is made anew.
        fs::write(folder.path().join("rest"), "").unwrap();
        state.begin(&plan).unwrap();
        assert!(!folder.path().join("rest").exists());
    }
}
