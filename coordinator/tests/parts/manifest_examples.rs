//! Manifests as users bring them, and our own examples.
use std::path::{Path, PathBuf};

use phalanx_common::gang::ContainerKind;
use phalanx_coordinator::api::{Kind, Object};
use phalanx_coordinator::manifest::{Diagnostic, Parsed, Severity, parse};

/// Folder of the shared data, or `None` with a line that names the test.
fn shared(test: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf();
    let folder =
        std::env::var_os("PHALANX_SHARED").map_or_else(|| workspace.join("../shared"), PathBuf::from);
    let folder = if folder.is_relative() { workspace.join(folder) } else { folder };
    if folder.join("examples").is_dir() {
        return Some(folder);
    }
    assert!(
        std::env::var_os("PHALANX_REQUIRE_SHARED").is_none_or(|value| value != "1"),
        "{} is missing",
        folder.display()
    );
    println!("skipped {test}: PHALANX_SHARED not found");
    None
}

fn read(folder: &Path, name: &str) -> Parsed {
    let text = std::fs::read_to_string(folder.join("examples").join(name)).unwrap();
    parse(&text, name)
}

fn errors(parsed: &Parsed) -> Vec<String> {
    parsed
        .diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.severity == Severity::Error)
        .map(Diagnostic::to_string)
        .collect()
}

fn keys(parsed: &Parsed) -> Vec<String> {
    parsed.objects.iter().map(|object| object.key().to_string()).collect()
}

#[test]
fn manifests_of_users_apply_unchanged() {
    let Some(folder) = shared("manifests_of_users_apply_unchanged") else { return };
    for (name, expected) in [
        ("01-bert-ps-worker.yaml", vec!["Job default/bert-distributed-training"]),
        ("02-queue-production.yaml", vec!["Queue production"]),
        ("03-priority-high.yaml", vec!["PriorityClass high-priority"]),
        ("04-pytorch-4x8.yaml", vec!["Job default/pytorch-distributed-train"]),
        ("10-tenant-queues.yaml", vec!["Queue tenanta", "Queue tenantb"]),
        (
            "11-priorities.yaml",
            vec!["PriorityClass p0-critical", "PriorityClass p1-high", "PriorityClass p2-regular"],
        ),
        ("12-podgroup-multi-node-inference.yaml", vec!["PodGroup a01/qwen2-72b-unified-pg"]),
    ] {
        let parsed = read(&folder, name);
        assert_eq!(errors(&parsed), Vec::<String>::new(), "{name}");
        assert_eq!(keys(&parsed), expected, "{name}");
        for diagnostic in &parsed.diagnostics {
            assert!(diagnostic.message.contains("not honoured yet"), "{name}: {diagnostic}");
        }
    }
}

#[test]
fn fields_that_have_no_effect_yet_are_named() {
    let Some(folder) = shared("fields_that_have_no_effect_yet_are_named") else { return };
    let lines: Vec<String> = ["02-queue-production.yaml", "04-pytorch-4x8.yaml", "10-tenant-queues.yaml"]
        .iter()
        .flat_map(|name| read(&folder, name).diagnostics)
        .map(|diagnostic| diagnostic.to_string())
        .collect();
    assert_eq!(lines, ["04-pytorch-4x8.yaml:9: warning: spec.policies: accepted, not honoured yet",]);
}

#[test]
fn operator_kinds_get_one_clear_message() {
    let Some(folder) = shared("operator_kinds_get_one_clear_message") else { return };
    for (name, line) in [
        (
            "13-leaderworkerset-inference.yaml",
            "13-leaderworkerset-inference.yaml:3: error: kind: LeaderWorkerSet (leaderworkerset.x-k8s.io/v1) needs its operator and a Kubernetes cluster; standalone mode serves Queue, QueuePolicy, PodGroup, Job (batch.volcano.sh/v1alpha1), Pod, PriorityClass, Node",
        ),
        (
            "14-pytorchjob-tenantb.yaml",
            "14-pytorchjob-tenantb.yaml:3: error: kind: PyTorchJob (kubeflow.org/v1) needs its operator and a Kubernetes cluster; standalone mode serves Queue, QueuePolicy, PodGroup, Job (batch.volcano.sh/v1alpha1), Pod, PriorityClass, Node",
        ),
    ] {
        let parsed = read(&folder, name);
        assert_eq!(errors(&parsed), [line]);
        assert_eq!(parsed.diagnostics.len(), 1);
        assert!(parsed.objects.is_empty());
    }
}

#[test]
fn the_stored_job_keeps_the_users_fields() {
    let Some(folder) = shared("the_stored_job_keeps_the_users_fields") else { return };
    let parsed = read(&folder, "04-pytorch-4x8.yaml");
    let spec = &parsed.objects[0].spec;
    let container = &spec["tasks"][0]["template"]["spec"]["containers"][0];
    assert_eq!(spec["minAvailable"], 4);
    assert_eq!(container["resources"]["limits"]["memory"], "256Gi");
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], 8);
    assert!(container["args"][0].as_str().unwrap().starts_with("MASTER_ADDR=worker-0 MASTER_PORT=23456"));
    assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name");
}

fn own_examples() -> Vec<(String, Parsed)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |file: PathBuf| {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let parsed = parse(&std::fs::read_to_string(&file).unwrap(), &name);
        (name, parsed)
    };
    files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "yaml")).map(read).collect()
}

#[test]
fn our_own_examples_have_no_diagnostics() {
    let examples = own_examples();
    assert_eq!(
        examples.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["impossible.yaml", "notebooks.yaml", "queues.yaml", "training.yaml"]
    );
    for (name, parsed) in &examples {
        assert_eq!(parsed.diagnostics, [], "{name}");
    }
}

/// kubectl applies the files of a folder by their names, and an API server refuses a pod whose class is not there yet.
#[test]
fn our_own_examples_can_be_applied_as_a_folder() {
    let mut classes = Vec::new();
    for (file, parsed) in own_examples() {
        for object in &parsed.objects {
            let name = &object.metadata.name;
            match object.kind {
                Kind::PriorityClass => classes.push(name.clone()),
                Kind::Pod => {
                    let class = object.spec.get("priorityClassName").and_then(|class| class.as_str());
                    assert!(
                        class.is_none_or(|class| classes.iter().any(|known| known == class)),
                        "{file}: Pod {name} names class {class:?}, which a later file makes"
                    );
                }
                _ => {}
            }
        }
    }
    assert!(!classes.is_empty());
}

/// GPUs of a job: of each pod, and how many pods.
fn shape(job: &Object) -> Vec<(u32, u64)> {
    use phalanx_coordinator::manifest::job::read_job;
    use phalanx_coordinator::manifest::reader::{Cursor, Sink};
    use phalanx_coordinator::manifest::tree::Node;
    let tree = Node::from_json(&job.spec);
    let job = read_job(&Cursor::root(&tree, "spec"), &job.metadata.name, &mut Sink::new(""));
    job.tasks
        .iter()
        .map(|task| {
            assert!(task.pod.request.containers.iter().all(|container| container.kind == ContainerKind::App));
            assert!(task.annotations.contains_key("phalanx.dev/run-for"), "{}", task.name);
            (task.replicas, task.pod.request.effective().gpus())
        })
        .collect()
}

#[test]
fn our_own_examples_have_the_shapes_of_the_demo() {
    let mut shapes = Vec::new();
    for (_, parsed) in own_examples() {
        for object in parsed.objects.iter().filter(|object| object.kind == Kind::Job) {
            shapes.push((object.metadata.name.clone(), shape(object)));
        }
    }
    let of = |name: &str| &shapes.iter().find(|(known, _)| known == name).unwrap().1;
    assert_eq!(*of("bert"), [(2, 1), (6, 1)]);
    assert_eq!(*of("llm-first"), [(4, 8)]);
    assert_eq!(*of("llm-second"), [(4, 8)]);
}
