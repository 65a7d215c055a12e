//! `phalanx dev-cluster`: what a user does in the first two minutes, and what is left when it ends or is killed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::phalanx;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

struct DevCluster {
    folder: tempfile::TempDir,
}

impl DevCluster {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Exit code, standard output and standard error.
    fn run(&self, command: &str, arguments: &[&str]) -> (i32, String, String) {
        let mut phalanx = phalanx();
        phalanx.args(["--json", "dev-cluster", command, "--state-dir"]).arg(self.state()).args(arguments);
        // The binaries are the ones of the user who runs the tests.
        if let Some(folder) = cache() {
            phalanx.env("PHALANX_KUBE_CACHE", folder);
        }
        let output = phalanx.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    }

    fn up(&self, arguments: &[&str]) -> Value {
        let (code, out, err) = self.run("up", arguments);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    }
}

impl Drop for DevCluster {
    fn drop(&mut self) {
        // Where a test has failed half-way; otherwise there is none any more.
        self.run("down", &[]);
    }
}

fn cache() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from);
    named("PHALANX_KUBE_CACHE")
        .or_else(|| named("XDG_CACHE_HOME").map(|folder| folder.join("phalanx/kube")))
        .or_else(|| named("HOME").map(|folder| folder.join(".cache/phalanx/kube")))
}

fn runs(pid: u64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

fn kill(pid: u64) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn processes(ready: &Value) -> Vec<u64> {
    ready["processes"].as_array().unwrap().iter().map(|process| process[1].as_u64().unwrap()).collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never came: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// kubectl as the user would call it.
fn kubectl(ready: &Value, arguments: &[&str]) -> String {
    let output = Command::new(ready["kubectl"].as_str().unwrap())
        .arg("--kubeconfig")
        .arg(ready["kubeconfig"].as_str().unwrap())
        .args(["--cache-dir".to_owned(), format!("{}.cache", ready["kubeconfig"].as_str().unwrap())])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn phases(ready: &Value, namespace: &str) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.status.phase}{\"\\n\"}{end}";
    kubectl(ready, &["-n", namespace, "get", "pods", "-o", path]).lines().map(str::to_owned).collect()
}

#[test]
fn a_gang_runs_on_a_dev_cluster_and_down_leaves_nothing() {
    let cluster = DevCluster::new();
    let profile = "deploy/profiles/hgx-h100.toml=2";
    let ready = cluster.up(&["--profile", profile, "--hollow", "2"]);
    assert_eq!((&ready["nodes"], &ready["gpus"], &ready["replicas"]), (&4.into(), &32.into(), &2.into()));
    let nodes = kubectl(&ready, &["get", "nodes", "-o", "name"]);
    for node in ["node/hgx-h100-1", "node/hgx-h100-2", "node/hollow-00000", "node/hollow-00001"] {
        assert!(nodes.lines().any(|line| line == node), "{nodes}");
    }

    // Four pods of eight GPUs: on two machines of a profile and on two hollow ones.
    let examples = ready["examples"].as_str().unwrap();
    for namespace in ["language", "vision"] {
        kubectl(&ready, &["create", "namespace", namespace]);
    }
    let files = ["queues.yaml", "training.yaml"].map(|name| format!("{examples}/{name}"));
    kubectl(&ready, &["apply", "-f", &files[0], "-f", &files[1]]);
    until("the first gang has ended and the second runs or has ended", || {
        let phases = phases(&ready, "language");
        let count = |wanted: &str| phases.iter().filter(|phase| *phase == wanted).count();
        phases.len() == 8 && count("Succeeded") + count("Running") == 8 && count("Succeeded") >= 4
    });

    // The leader is killed: the other one leads, and it comes back as a kubelet would bring it.
    let leader = || {
        kubectl(
            &ready,
            &[
                "-n",
                "phalanx-system",
                "get",
                "lease",
                "phalanx-coordinator",
                "-o",
                "jsonpath={.spec.holderIdentity}",
            ],
        )
    };
    let first = leader();
    let named = |process: &&Value| first.starts_with(process[0].as_str().unwrap());
    let pid = ready["processes"].as_array().unwrap().iter().find(named).unwrap()[1].as_u64().unwrap();
    kill(pid);
    until("another leader", || !leader().is_empty() && leader() != first);
    let log = cluster.state().join("dev-cluster.log");
    until("it is started again", || {
        std::fs::read_to_string(&log).unwrap().contains("started again: phalanx-coordinator-")
    });

    let (code, _, err) = cluster.run("up", &[]);
    assert!(code == 1 && err.contains("runs already"), "{code}: {err}");
    let processes = processes(&ready);
    assert!(processes.iter().filter(|pid| runs(**pid)).count() >= processes.len() - 1, "{ready}");
    let (code, _, err) = cluster.run("down", &[]);
    assert_eq!(code, 0, "{err}");
    until("all processes end", || !processes.iter().any(|pid| runs(*pid)));
    assert!(!cluster.state().exists());
    let (code, _, err) = cluster.run("down", &[]);
    assert!(code == 1 && err.contains("no dev cluster was started"), "{code}: {err}");
}

#[test]
fn a_killed_dev_cluster_leaves_no_process_and_the_next_one_starts() {
    let cluster = DevCluster::new();
    let arguments = ["--hollow", "1", "--replicas", "1"];
    let ready = cluster.up(&arguments);
    let supervisor: Value = read(&cluster.state().join("supervisor.json"));
    kill(supervisor["pid"].as_u64().unwrap());
    let processes = processes(&ready);
    until("all processes end", || !processes.iter().any(|pid| runs(*pid)));
    let again = cluster.up(&arguments);
    assert_ne!(again["processes"], ready["processes"]);
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}
