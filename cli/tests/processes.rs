//! The command line end to end: real coordinator and agents as processes, real files, exact texts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest of it")]
mod support;

use std::fs;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use support::{Cluster, phalanx, run, runs, shared, wait_for};

const JOB: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata:
  name: pair
  namespace: team
spec:
  minAvailable: 2
  schedulerName: volcano
  tasks:
    - name: worker
      replicas: 2
      template:
        metadata:
          annotations:
            phalanx.dev/run-for: RUN_FOR
        spec:
          containers:
            - name: main
              image: example/train
              resources:
                limits:
                  nvidia.com/gpu: GPUS
";

fn job(gpus: u32, run_for: &str) -> String {
    JOB.replace("GPUS", &gpus.to_string()).replace("RUN_FOR", run_for)
}

#[test]
fn a_job_runs_on_exact_gpus_and_ends() {
    let cluster = Cluster::start(&["l40s-4gpu.toml=2"]);
    let applied = cluster.run_with_input(&["apply", "-f", "-"], &job(2, "1h"));
    assert_eq!((applied.code, applied.out.as_str()), (0, "Job team/pair created\n"), "{applied:?}");
    let again = cluster.run_with_input(&["apply", "-f", "-"], &job(2, "1h"));
    assert_eq!(again.out, "Job team/pair unchanged\n");

    let gang = cluster.wait_for_phase("team", "pair", "running");
    let gpus: Vec<&str> = gang["pods"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|pod| pod["gpus"].as_array().unwrap())
        .map(|gpu| gpu.as_str().unwrap())
        .collect();
    let mut distinct = gpus.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!((gpus.len(), distinct.len()), (4, 4), "{gpus:?}");
    assert!(gpus.iter().all(|gpu| gpu.starts_with("GPU-") && gpu.len() == 40), "{gpus:?}");

    let why = cluster.ok(&["why", "team/pair"]).out;
    assert!(why.contains("running") && why.contains("pair-worker-0 on l40s-4gpu-"), "{why}");
    let pods = cluster.ok(&["get", "pods", "-n", "team", "--wide"]).out;
    assert!(gpus.iter().all(|gpu| pods.contains(gpu)), "{pods}");
    let elsewhere = cluster.ok(&["get", "gangs"]);
    assert_eq!(elsewhere.out, "");
    assert_eq!(elsewhere.err, "none in namespace default; there are some in team: use -n NAMESPACE or -A\n");

    let deleted = cluster.ok(&["delete", "job", "team/pair"]);
    assert_eq!(deleted.out, "Job team/pair deleted\n");
    let free = || {
        let nodes = cluster.ok(&["get", "nodes", "--json"]).json();
        let holders = nodes.as_array().unwrap().iter().flat_map(|node| node["gpus"].as_array().unwrap());
        holders.map(|gpu| gpu["holder"].clone()).all(|holder| holder.is_null()).then_some(())
    };
    wait_for("free GPUs", free);
    let gone = cluster.run(&["why", "team/pair"]);
    assert_eq!((gone.code, gone.out.as_str()), (1, ""), "{gone:?}");
    assert!(gone.err.starts_with("error: ") && gone.err.contains("team/pair"), "{gone:?}");
}

#[test]
fn a_gang_that_waits_is_explained_and_objects_outlive_a_restart() {
    let cluster = Cluster::start(&["l40s-4gpu.toml"]);
    cluster.run_with_input(&["apply", "-f", "-"], &job(4, "1h"));
    let gang = wait_for("a reason", || {
        cluster.gang("team", "pair").filter(|gang| gang["reason"]["code"] == "LargerThanAllNodes")
    });
    assert_eq!(gang["minimum"], 2);
    let why = cluster.ok(&["why", "team/pair"]).out;
    assert!(why.to_lowercase().contains("quota"), "{why}");
    assert!(why.contains("nodes"), "{why}");
    let fix = gang["reason"]["fix"].as_str().unwrap();
    assert!(!fix.is_empty() && why.contains(fix), "{why}");
    let json = cluster.ok(&["why", "team/pair", "--json"]).json();
    assert_eq!(json["gang"]["reason"]["code"], "LargerThanAllNodes");

    let (state_dir, children, code) = cluster.end(Signal::INT);
    assert_eq!(code, Some(0));
    assert!(children.iter().all(|child| !runs(*child)));
    let cluster = Cluster::start_in(state_dir, &["l40s-4gpu.toml=2"]);
    cluster.wait_for_phase("team", "pair", "running");
}

#[test]
fn nothing_outlives_a_killed_supervisor() {
    let cluster = Cluster::start(&["l40s-4gpu.toml"]);
    assert_eq!(cluster.children.len(), 2);
    let (_state_dir, children, code) = cluster.end(Signal::KILL);
    assert_eq!(code, None);
    wait_for("the children's end", || children.iter().all(|child| !runs(*child)).then_some(()));
}

#[test]
fn a_second_start_in_the_same_folder_is_refused_and_down_stops_the_first() {
    let cluster = Cluster::start(&["l40s-4gpu.toml"]);
    let folder = cluster.state_dir.path().to_str().unwrap().to_owned();
    let second = run(&["up", "--state-dir", &folder, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    assert_eq!(second.code, 1);
    assert!(
        second.err.contains("runs from") && second.err.contains("phalanx down --state-dir"),
        "{second:?}"
    );
    let down = run(&["down", "--state-dir", &folder, "--json"]);
    assert_eq!(down.code, 0, "{down:?}");
    assert_eq!(down.json()["stopped"].as_array().unwrap().len(), 3);
    assert!(cluster.children.iter().all(|child| !runs(*child)));
    let again = run(&["down", "--state-dir", &folder]);
    assert_eq!(again.code, 1);
    assert!(again.err.starts_with("error: nothing runs from "), "{again:?}");
}

#[test]
fn wrong_input_names_what_is_wrong_and_what_would_help() {
    let cluster = Cluster::start(&["l40s-4gpu.toml"]);
    let server = &cluster.server;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (arguments, code, expected) in [
        (vec!["apply", "-f", "no.yaml"], 1, "error: -f no.yaml: no such file or directory\n".to_owned()),
        (
            vec!["why", "team/none"],
            1,
            "error: no PodGroup, Job or Pod team/none; there are none at all\n".to_owned(),
        ),
        (vec!["why", "Team/none"], 2, "error: invalid value 'Team/none' for '<NAMESPACE/NAME>'".to_owned()),
        (vec!["get", "deployments"], 2, "error: invalid value 'deployments' for '<WHAT>'".to_owned()),
        (vec!["get", "gangs", "--sort"], 2, "error: unexpected argument '--sort' found".to_owned()),
        (vec!["delete", "queue", "none"], 1, "error: Queue none does not exist\n".to_owned()),
        (
            vec!["delete", "queue", "team/none"],
            1,
            "error: a Queue has no namespace: write none instead of team/none\n".to_owned(),
        ),
        (
            vec!["delete", "queue", "default"],
            1,
            "error: conflict: Queue default is the queue of gangs that name none and cannot be deleted\n"
                .to_owned(),
        ),
        (
            vec!["delete", "service", "a"],
            2,
            "error: invalid value 'service' for '[KIND]': kind \"service\" is not one of".to_owned(),
        ),
        (
            vec!["get", "gangs", "--server", "127.0.0.1:1"],
            2,
            "error: invalid value '127.0.0.1:1' for '--server <URL>': expected http://HOST:PORT".to_owned(),
        ),
        (
            vec!["up", "--profile", "no.toml"],
            1,
            "error: --profile no.toml: no such file or directory\n".to_owned(),
        ),
    ] {
        let printed = cluster.run(&arguments);
        assert_eq!(printed.code, code, "{arguments:?}: {printed:?}");
        assert!(printed.err.starts_with(&expected), "{arguments:?}: {printed:?}");
        assert_eq!(printed.out, "", "{arguments:?}");
    }
    let usage = cluster.run(&["get"]).err;
    assert!(usage.contains("Usage: phalanx get <WHAT> [NAME]...\n"), "{usage}");
    let mut wrong = phalanx();
    wrong.env("PHALANX_SERVER", "here").args(["get", "gangs"]).stdin(Stdio::null());
    let wrong = support::Printed::from(wrong.output().unwrap());
    assert_eq!(
        (wrong.code, wrong.err.as_str()),
        (
            1,
            "error: PHALANX_SERVER: \"here\": expected http://HOST:PORT, for example http://127.0.0.1:7411\n"
        )
    );
    let url = format!("http://{closed}");
    let refused = run(&["get", "gangs", "--server", &url]);
    assert_eq!(
        (refused.code, refused.err),
        (
            1,
            format!(
                "error: cannot reach the coordinator at {url}: connection refused; start one with `phalanx up`, \
                 or name another with --server or PHALANX_SERVER\n"
            )
        )
    );
    let nowhere = run(&["get", "gangs"]);
    assert_eq!(nowhere.code, 1);
    assert!(
        nowhere.err.starts_with("error: no coordinator is known: start one with `phalanx up`"),
        "{nowhere:?}"
    );
    let json = run(&["get", "gangs", "--server", &url, "--json"]);
    let error: Value = serde_json::from_str(&json.err).unwrap();
    assert!(error["error"].as_str().unwrap().contains("connection refused"));
    assert_eq!(cluster.run(&["get", "queues", "--server", server]).code, 0);
}

#[test]
fn wrong_documents_are_named_by_line_and_the_others_are_applied() {
    let cluster = Cluster::start(&["l40s-4gpu.toml"]);
    let queue = |name: &str, spec: &str| {
        format!(
            "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata:\n  name: {name}\nspec:\n{spec}"
        )
    };
    let text = [
        queue("good", "  priority: 5\n"),
        queue("bad", "  capability:\n    nvidia.com/gpu: many\n"),
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata:\n  name: train\n".to_owned(),
        queue("also-good", "  colour: blue\n"),
    ]
    .join("---\n");
    let printed = cluster.run_with_input(&["apply", "-f", "-"], &text);
    assert_eq!(printed.code, 1);
    assert_eq!(printed.out, "Queue good created\nQueue also-good created\n");
    let expected = "\
<stdin>:14: error: spec.capability[nvidia.com/gpu]: \"many\" is not a quantity such as 2, 500m, 1.5, 16Gi or 1e3
<stdin>:17: error: kind: PyTorchJob (kubeflow.org/v1) needs its operator and a Kubernetes cluster; standalone mode \
serves Queue, QueuePolicy, PodGroup, Job (batch.volcano.sh/v1alpha1), Pod, PriorityClass, Node
<stdin>:26: warning: spec.colour: unknown field, ignored
";
    assert_eq!(printed.err, expected);

    for text in ["", "# nothing\n", "apiVersion: v1\nkind: List\nitems: []\n"] {
        for command in ["apply", "delete"] {
            let empty = cluster.run_with_input(&[command, "-f", "-"], text);
            assert_eq!(
                (empty.code, empty.out.as_str(), empty.err.as_str()),
                (1, "", "error: -f -: no objects in it\n"),
                "{command} {text:?}"
            );
        }
    }
    let broken = cluster.run_with_input(&["apply", "-f", "-"], "kind: Queue\n  name: [unclosed\n");
    assert_eq!((broken.code, broken.out.as_str()), (1, ""));
    assert!(broken.err.starts_with("<stdin>:2: error: "), "{broken:?}");

    let deleted = cluster.run_with_input(&["delete", "-f", "-"], &queue("good", "  priority: 5\n"));
    assert_eq!((deleted.code, deleted.out.as_str()), (0, "Queue good deleted\n"), "{deleted:?}");
}

#[test]
fn the_commands_of_the_readme_work_one_after_the_other() {
    let cluster = Cluster::start(&["hgx-h100.toml=4", "l40s-4gpu.toml"]);
    cluster.ok(&["apply", "-f", "deploy/examples"]);
    cluster.wait_for_phase("language", "llm-first", "running");
    let gangs = cluster.ok(&["get", "gangs", "-A"]).out;
    assert!(gangs.contains("llm-second") && gangs.contains("too-greedy"), "{gangs}");
    let pods = cluster.ok(&["get", "pods", "-A", "--wide"]).out;
    assert_eq!(pods.lines().filter(|line| line.contains("llm-first-worker-")).count(), 4, "{pods}");
    assert!(cluster.ok(&["why", "language/llm-second"]).out.contains("reason: "));
    let deleted = cluster.ok(&["delete", "-f", "deploy/examples"]);
    assert_eq!(deleted.err, "");
    let kinds: Vec<&str> = deleted.out.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(kinds.len(), 12, "{deleted:?}");
    assert_eq!(kinds[8..], ["Queue", "Queue", "PriorityClass", "PriorityClass"], "{deleted:?}");
    let again = cluster.ok(&["delete", "-f", "deploy/examples"]);
    assert_eq!((again.out.as_str(), again.err.as_str()), ("", ""));
}

#[test]
fn a_pod_of_a_missing_pod_group_is_listed_and_explained() {
    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: gm\n  annotations:\n    \
                       scheduling.k8s.io/group-name: nogroup\nspec:\n  schedulerName: phalanx\n  containers:\n    \
                       - name: main\n";
    let cluster = Cluster::start(&["l40s-4gpu.toml"]);
    assert_eq!(cluster.run_with_input(&["apply", "-f", "-"], POD).code, 0);
    let pods = cluster.ok(&["get", "pods"]).out;
    let row: Vec<&str> = pods.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["default", "gm", "nogroup", "(missing)", "Pending"], "{pods}");
    assert_eq!(cluster.ok(&["get", "pods", "--json"]).json()[0]["name"], "gm");
    assert_eq!(cluster.ok(&["get", "pods", "-n", "other"]).out, "");
    let why = cluster.run(&["why", "gm"]);
    assert_eq!(
        (why.code, why.err.as_str()),
        (
            1,
            "error: PodGroup default/nogroup, which pod default/gm names, does not exist: create it, or drop the \
             annotation scheduling.k8s.io/group-name\n"
        )
    );
}

#[test]
fn a_process_that_ends_by_itself_is_named_and_ends_all() {
    let cluster = Cluster::start(&["l40s-4gpu.toml=2"]);
    let killed = rustix::process::Pid::from_raw(cluster.children[2] as i32).unwrap();
    rustix::process::kill_process(killed, Signal::KILL).unwrap();
    let (children, code, err) = cluster.wait();
    assert_eq!(code, Some(1), "{err}");
    let first =
        "error: l40s-4gpu-2 has ended by itself (signal: 9 (SIGKILL)), so that all is stopped; end of ";
    assert!(err.starts_with(first) && err.contains("l40s-4gpu-2.log:\n"), "{err}");
    assert!(children.iter().all(|child| !runs(*child)));
}

#[test]
fn manifests_that_users_bring_apply_unchanged() {
    let Some(shared) = shared("manifests_that_users_bring_apply_unchanged") else { return };
    let cluster = Cluster::start(&["hgx-h100.toml=4"]);
    let file = |start: &str| {
        let files = fs::read_dir(shared.join("examples")).unwrap().map(|entry| entry.unwrap().path());
        let mut named = files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(start));
        named.next().unwrap().to_str().unwrap().to_owned()
    };
    for start in ["02-", "03-", "10-", "11-", "12-", "01-", "04-"] {
        let printed = cluster.ok(&["apply", "-f", &file(start)]);
        assert!(printed.out.lines().all(|line| line.ends_with(" created")), "{printed:?}");
    }
    // 8 GPUs run at once; the gang of 4 x 8 has a higher priority and takes their place.
    cluster.wait_for_phase("default", "pytorch-distributed-train", "running");
    let waits = wait_for("a reason", || {
        let gang = cluster.gang("default", "bert-distributed-training")?;
        let text = gang["reason"]["text"].as_str()?;
        text.contains("preempted by default/pytorch-distributed-train").then_some(gang)
    });
    assert_eq!(waits["minimum"], 8);
    // Its pods were made again, and start when there is room.
    assert_eq!(cluster.ok(&["delete", "job", "pytorch-distributed-train"]).code, 0);
    cluster.wait_for_phase("default", "bert-distributed-training", "running");

    for (start, kind) in [("13-", "LeaderWorkerSet"), ("14-", "PyTorchJob")] {
        let printed = cluster.run(&["apply", "-f", &file(start)]);
        assert_eq!((printed.code, printed.out.as_str()), (1, ""), "{printed:?}");
        assert_eq!(printed.err.lines().count(), 1, "{printed:?}");
        assert!(printed.err.contains(start) && printed.err.contains(kind), "{printed:?}");
    }
}

#[test]
fn the_demo_comes_to_its_end_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = phalanx();
    command.args(["demo", "--json"]).env("TMPDIR", folder.path()).stdin(Stdio::null());
    let printed = support::Printed::from(command.output().unwrap());
    assert_eq!(printed.code, 0, "{printed:?}");
    let told = printed.json();
    let gangs = told["gangs"].as_array().unwrap();
    let held: usize = gangs
        .iter()
        .filter(|gang| gang["phase"] == "running")
        .flat_map(|gang| gang["pods"].as_array().unwrap())
        .map(|pod| pod["gpus"].as_array().unwrap().len())
        .sum();
    assert!((32..=36).contains(&held), "{held}: {told}");
    assert!(gangs.iter().any(|gang| gang["phase"] == "finished"), "{told}");
    let waiting: Vec<&Value> = gangs.iter().filter(|gang| !gang["reason"].is_null()).collect();
    assert!(!waiting.is_empty(), "{told}");
    assert!(waiting.iter().all(|gang| gang["fix"].as_str().is_some_and(|fix| !fix.is_empty())), "{told}");
    assert!(printed.err.contains("phalanx why "), "{printed:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something is left in the temporary folder");
}

#[test]
fn a_demo_that_is_kept_is_stopped_by_down() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = phalanx();
    command.args(["demo", "--keep"]).env("TMPDIR", folder.path()).stdin(Stdio::null());
    let printed = support::Printed::from(command.output().unwrap());
    assert_eq!(printed.code, 0, "{printed:?}");
    let words = || printed.out.split_whitespace();
    let server = words().find_map(|word| word.strip_prefix("PHALANX_SERVER=")).unwrap();
    let nodes = run(&["get", "nodes", "--json", "--server", server]).json();
    assert_eq!(nodes.as_array().unwrap().len(), 5);
    let state_dir = words().skip_while(|word| *word != "--state-dir").nth(1).unwrap();
    support::assert_no_errors(std::path::Path::new(state_dir));
    let down = run(&["down", "--state-dir", state_dir, "--json"]);
    assert_eq!(down.code, 0, "{down:?}");
    let stopped = down.json();
    let stopped = stopped["stopped"].as_array().unwrap();
    assert_eq!(stopped.len(), 6);
    assert!(stopped.iter().all(|process| !runs(process["pid"].as_u64().unwrap())));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something is left in the temporary folder");
}
