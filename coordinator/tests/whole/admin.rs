//! The admin interface over HTTP: answers, and errors that say what to do.

use crate::support::cluster::agents;
use crate::support::{apply, apply_ok, ask, gang_of, get, start, stop, until};
use phalanx_core::view::StateView;
use serde_json::json;

const QUEUE: &str = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: research}\n\
                     spec: {weight: 1}\n";

fn job(name: &str, queue: &str) -> String {
    format!(
        "apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {{name: {name}}}
spec:
  schedulerName: phalanx
  queue: {queue}
  minAvailable: 1
  tasks:
    - name: worker
      replicas: 1
      template:
        spec:
          containers:
            - name: main
              image: none
              resources: {{limits: {{nvidia.com/gpu: 1}}}}
"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn health_readiness_and_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    assert_eq!(get(&coordinator, "/healthz").await.text, "ok\n");
    assert_eq!(get(&coordinator, "/readyz").await.text, "ready\n");
    let numbers = get(&coordinator, "/metrics").await.text;
    for name in [
        "phalanx_events_total{kind=\"Synced\"} 1",
        "phalanx_agents_connected 0",
        "phalanx_nodes 0",
        "phalanx_recording 1",
        "phalanx_gangs{phase=\"Pending\"} 0",
        "# EOF",
    ] {
        assert!(numbers.contains(name), "{name} is missing in:\n{numbers}");
    }
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_creates_configures_and_leaves_alone() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let change =
        |change: &str| json!([{ "kind": "Queue", "namespace": "", "name": "research", "change": change }]);
    assert_eq!(apply(&coordinator, QUEUE).await["applied"], change("created"));
    assert_eq!(apply(&coordinator, QUEUE).await["applied"], change("unchanged"));
    let heavier = QUEUE.replace("weight: 1", "weight: 2");
    assert_eq!(apply(&coordinator, &heavier).await["applied"], change("configured"));
    let stored = get(&coordinator, "/v1/objects/queue/-/research").await.json();
    assert_eq!(stored["spec"]["weight"], 2);
    let listed = get(&coordinator, "/v1/objects/queues").await.json();
    assert_eq!(listed["items"][0]["metadata"]["name"], "research");
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_document_does_not_stop_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let wrong = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: heavy}\n\
                 spec: {weight: 0}\n";
    let answer = apply(&coordinator, &format!("{wrong}---\n{QUEUE}")).await;
    assert_eq!(answer["ok"], false);
    assert_eq!(answer["applied"][0]["name"], "research");
    let diagnostics = answer["diagnostics"].as_array().unwrap();
    let error = diagnostics.iter().find(|diagnostic| diagnostic["severity"] == "error").unwrap();
    assert_eq!((error["file"].as_str(), error["line"].as_u64()), (Some("test.yaml"), Some(4)), "{error}");
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_api_refuses_is_told_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    apply_ok(&coordinator, &job("train", "default")).await;
    let answer = apply(&coordinator, &format!("{QUEUE}---\n{}", job("train", "research"))).await;
    assert_eq!(answer["ok"], false);
    let error = answer["diagnostics"].as_array().unwrap();
    let error = error.iter().find(|diagnostic| diagnostic["severity"] == "error").unwrap();
    assert_eq!(error["line"], 6, "{error}");
    assert!(error["message"].as_str().unwrap().contains("delete the job and apply it again"), "{error}");
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_in_use_and_the_default_queue_stay() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    apply_ok(&coordinator, &format!("{QUEUE}---\n{}", job("train", "research"))).await;
    let answer = ask(&coordinator, "DELETE", "/v1/objects/queue/-/research", None).await;
    assert_eq!(answer.status, 409);
    assert_eq!(
        answer.error(),
        "conflict: Queue research is used by 1 gang (Job default/train): delete it first"
    );
    let answer = ask(&coordinator, "DELETE", "/v1/objects/queue/-/default", None).await;
    assert_eq!(answer.status, 409);
    assert_eq!(
        answer.error(),
        "conflict: Queue default is the queue of gangs that name none and cannot be deleted"
    );
    let answer = ask(&coordinator, "DELETE", "/v1/objects/job/default/train", None).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["gone"], true);
    let answer = ask(&coordinator, "DELETE", "/v1/objects/queue/-/research", None).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    stop(coordinator).await;
}

/// Queues of these names and specs.
fn queues(specs: &[(&str, &str)]) -> String {
    let text = |(name, spec): &(&str, &str)| {
        format!(
            "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
        )
    };
    specs.iter().map(text).collect::<Vec<_>>().join("---\n")
}

/// What an apply was refused for.
async fn refusals(coordinator: &impl crate::support::Served, text: &str) -> Vec<String> {
    let answer = apply(coordinator, text).await;
    let diagnostics = answer["diagnostics"].as_array().unwrap();
    diagnostics.iter().map(|diagnostic| diagnostic["message"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_that_break_the_tree_are_refused_and_those_with_others_below_them_stay() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    // Below a parent that comes later in the same text.
    apply_ok(&coordinator, &queues(&[("b", "parent: a"), ("a", "parent: root"), ("c", "parent: b")])).await;
    let lost = queues(&[("lost", "parent: nowhere"), ("with-it", "parent: lost"), ("fine", "parent: c")]);
    assert_eq!(
        refusals(&coordinator, &lost).await,
        [
            "Queue lost: spec.parent: queue nowhere does not exist: apply it first, or in the same file",
            "Queue with-it: spec.parent: queue lost does not exist: apply it first, or in the same file",
        ]
    );
    assert_eq!(
        refusals(&coordinator, &queues(&[("a", "parent: c")])).await,
        ["Queue a: spec.parent: is c, which is below it: c > b > a"]
    );
    let deep = queues(&[("d4", "parent: c"), ("d5", "parent: d4"), ("d6", "parent: d5")]);
    assert_eq!(
        refusals(&coordinator, &deep).await,
        ["Queue d6: spec.parent: is d5, which puts it 6 levels below root; at most 5 are allowed"]
    );
    // What would put a stored one too deep is refused too.
    apply_ok(&coordinator, &queues(&[("top", "")])).await;
    let refused = refusals(&coordinator, &queues(&[("a", "parent: top")])).await;
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].starts_with("Queue a: spec.parent: queue d5, which is below it, would be wrong"));
    // Only queues without others below them take gangs.
    apply_ok(&coordinator, &job("train", "top")).await;
    let refused = refusals(&coordinator, &queues(&[("under", "parent: top")])).await;
    let text = "Queue under: conflict: spec.parent: Queue top has gangs of its own (Job default/train), and a queue with \
                others below it takes none: name another parent, or move the gangs first";
    assert_eq!(refused, [text]);
    for (name, text) in [
        ("a", "conflict: Queue a has queues below it (b): delete them first"),
        ("root", "conflict: Queue root is above all queues and cannot be deleted"),
    ] {
        let answer = ask(&coordinator, "DELETE", &format!("/v1/objects/queue/-/{name}"), None).await;
        assert_eq!((answer.status, answer.error().as_str()), (409, text));
    }
    // In one text those below go first, whatever their order is.
    let tree =
        queues(&[("c", "parent: b"), ("d4", "parent: c"), ("d5", "parent: d4"), ("fine", "parent: c")]);
    let answer = ask(&coordinator, "POST", "/v1/delete?file=test.yaml", Some(tree)).await.json();
    assert_eq!(answer["ok"], true, "{answer:#}");
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_policies_are_applied_shown_and_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let policy = "apiVersion: phalanx.dev/v1alpha1\nkind: QueuePolicy\nmetadata: {name: red}\n\
                  spec: {namespaces: [team], holdAfter: 5m}\n";
    apply_ok(&coordinator, policy).await;
    let state = get(&coordinator, "/v1/state").await.json();
    let shown = (&state["policies"][0]["namespaces"], &state["policies"][0]["hold_after_ms"]);
    assert_eq!(shown, (&json!(["team"]), &json!(300_000)));
    let answer = ask(&coordinator, "DELETE", "/v1/objects/qpol/-/red", None).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let gone = async || get(&coordinator, "/v1/state").await.json()["policies"] == json!([]);
    for _ in 0..100 {
        if gone().await {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(gone().await);
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_by_manifest_takes_users_before_their_queue() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let manifest = format!("{QUEUE}---\n{}", job("train", "research"));
    apply_ok(&coordinator, &manifest).await;
    let answer = ask(&coordinator, "POST", "/v1/delete?file=test.yaml", Some(manifest.clone())).await;
    let deleted = answer.json();
    assert_eq!(deleted["ok"], true, "{deleted:#}");
    assert_eq!(deleted["applied"][0]["name"], "train");
    assert_eq!(deleted["applied"][1]["name"], "research");
    let again = ask(&coordinator, "POST", "/v1/delete?file=test.yaml", Some(manifest)).await.json();
    assert_eq!((&again["ok"], &again["applied"]), (&json!(true), &json!([])));
    stop(coordinator).await;
}

const CLASS: &str =
    "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 5\n";

#[tokio::test(flavor = "multi_thread")]
async fn several_files_are_deleted_in_parts_so_that_users_go_first() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let files = [
        format!("{CLASS}---\n{}", QUEUE.replace("weight: 1", "weight: 1, type: told")),
        format!("{}---\nkind: Nonsense\n", job("train", "research")),
    ];
    apply_ok(&coordinator, &files[0]).await;
    apply(&coordinator, &files[1]).await;
    let mut deleted = Vec::new();
    for part in ["gangs", "queues", "priority-classes"] {
        for file in &files {
            let path = format!("/v1/delete?file=test.yaml&part={part}");
            let answer = ask(&coordinator, "POST", &path, Some(file.clone())).await.json();
            let names = answer["applied"].as_array().unwrap().iter();
            deleted.extend(names.map(|object| object["name"].as_str().unwrap().to_owned()));
            let diagnostics = answer["diagnostics"].as_array().unwrap();
            assert_eq!(
                diagnostics.is_empty(),
                part != "gangs",
                "what is wrong is said once: {diagnostics:?}"
            );
        }
    }
    assert_eq!(deleted, ["train", "research", "high"]);
    let wrong = ask(&coordinator, "POST", "/v1/delete?part=some", Some(String::new())).await;
    assert_eq!(wrong.status, 400, "{}", wrong.text);
    stop(coordinator).await;
}

fn pod(name: &str, annotations: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, annotations: {{{annotations}}}}}
spec: {{schedulerName: phalanx, containers: [{{name: main, resources: {{limits: {{cpu: 1}}}}}}]}}
"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_goes_when_the_pod_in_it_has_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let agents = agents(&coordinator, directory.path(), 1, 0).await;
    let manifest = format!("{QUEUE}---\n{}", pod("serve", "scheduling.volcano.sh/queue-name: research"));
    apply_ok(&coordinator, &manifest).await;
    let runs = |state: &StateView| state.gangs.iter().any(|gang| &*gang.phase == "running");
    until(&coordinator, "the pod runs", runs).await;
    let answer = ask(&coordinator, "DELETE", "/v1/objects/queue/-/research", None).await;
    assert_eq!(answer.status, 409);
    assert_eq!(
        answer.error(),
        "conflict: Queue research is used by 1 gang (Pod default/serve): delete it first"
    );
    let answer = ask(&coordinator, "POST", "/v1/delete?file=test.yaml", Some(manifest)).await.json();
    assert_eq!(answer["ok"], true, "{answer:#}");
    assert_eq!(answer["applied"][1]["name"], "research");
    assert_eq!(get(&coordinator, "/v1/objects/pod/default/serve").await.status, 404);
    stop(coordinator).await;
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_without_objects_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    for (text, objects) in [("", 0), ("# nothing\n---\n", 0), (QUEUE, 1)] {
        assert_eq!(apply(&coordinator, text).await["objects"], objects, "{text:?}");
        let deleted = ask(&coordinator, "POST", "/v1/delete", Some(text.to_owned())).await.json();
        assert_eq!(deleted["objects"], objects, "{text:?}");
    }
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_pod_group_is_not_there_is_shown_and_explained() {
    const GROUP: &str = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: nogroup}\n\
                         spec: {minMember: 1}\n";
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    apply_ok(&coordinator, &pod("gm", "scheduling.k8s.io/group-name: nogroup")).await;
    let text = "PodGroup default/nogroup, which pod default/gm names, does not exist: create it, or drop the \
                annotation scheduling.k8s.io/group-name";
    for name in ["gm", "nogroup"] {
        let answer = get(&coordinator, &format!("/v1/explain/default/{name}")).await;
        assert_eq!((answer.status, answer.error().as_str()), (404, text), "{name}");
    }
    let state = get(&coordinator, "/v1/state").await.json();
    let pods = state["pods_without_gang"].as_array().unwrap();
    assert_eq!(pods.len(), 1, "{state:#}");
    assert_eq!((&pods[0]["namespace"], &pods[0]["group"]), (&json!("default"), &json!("nogroup")));
    assert_eq!((&pods[0]["pod"]["name"], &pods[0]["pod"]["phase"]), (&json!("gm"), &json!("Pending")));
    apply_ok(&coordinator, GROUP).await;
    until(&coordinator, "its gang", |state| state.gangs.iter().any(|gang| gang.pods.len() == 1)).await;
    let state = get(&coordinator, "/v1/state").await.json();
    assert_eq!(state["pods_without_gang"], json!([]));
    assert_eq!(get(&coordinator, "/v1/explain/default/gm").await.status, 200);
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_finds_a_gang_by_job_and_says_what_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let answer = get(&coordinator, "/v1/explain/default/train").await;
    assert_eq!(
        (answer.status, answer.error().as_str()),
        (404, "no PodGroup, Job or Pod default/train; there are none at all")
    );
    apply_ok(&coordinator, &job("train", "default")).await;
    let answer = get(&coordinator, "/v1/explain/default/trian").await;
    assert_eq!(
        (answer.status, answer.error().as_str()),
        (404, "no PodGroup, Job or Pod default/trian; there are default/train")
    );
    let answer = get(&coordinator, "/v1/explain/default/train").await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let name = answer.json()["gang"]["name"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("train-"), "{name}");
    assert_eq!(get(&coordinator, &format!("/v1/explain/default/{name}")).await.status, 200);
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_error_is_json_with_the_right_status() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    for (method, path, status, text) in [
        ("GET", "/nothing", 404, "no such path \"/nothing\"; there are /healthz"),
        ("POST", "/v1/state", 405, "\"/v1/state\" does not answer POST"),
        ("GET", "/v1/objects/gpu", 404, "no such kind \"gpu\"; there are Queue, QueuePolicy, PriorityClass"),
        ("GET", "/v1/objects/pod/-/a", 400, "a Pod has a namespace: write it instead of -"),
        ("GET", "/v1/objects/queue/a/b", 400, "a Queue has no namespace: write - instead of \"a\""),
        ("GET", "/v1/objects/pod/default/a", 404, "Pod default/a does not exist"),
        ("DELETE", "/v1/objects/pod/default/a", 404, "Pod default/a does not exist"),
        ("DELETE", "/v1/objects/gangplan/default/a", 409, "delete the gang instead"),
        ("GET", "/v1/events?after=x", 400, "invalid digit"),
    ] {
        let answer = ask(&coordinator, method, path, None).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text);
        assert!(answer.error().contains(text), "{method} {path}: {}", answer.error());
    }
    let huge = "#".repeat((4 << 20) + 1);
    let answer = ask(&coordinator, "POST", "/v1/apply", Some(huge)).await;
    assert_eq!(
        (answer.status, answer.error().as_str()),
        (413, "the text is larger than 4 MiB: apply it in parts")
    );
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn web_pages_are_not_served_through_a_browser() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let address = coordinator.admin.to_string();
    let status = async |headers: &str| {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let request = format!("GET /v1/state HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(status(&format!("Host: {address}\r\n")).await, "200");
    assert_eq!(status("Host: localhost\r\n").await, "200");
    assert_eq!(status("Host: evil.example:7411\r\n").await, "403");
    assert_eq!(status(&format!("Host: {address}\r\nOrigin: http://evil.example\r\n")).await, "403");
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_closed_and_opened_by_its_status_in_a_manifest() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let queue = |state: &str| {
        format!(
            "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {{name: research}}\n\
             status: {{state: {state}, running: 7, allocated: {{cpu: '3'}}}}\n"
        )
    };
    let state = async || {
        let answer = ask(&coordinator, "GET", "/v1/objects/queue/-/research", None).await;
        answer.json()["status"].clone()
    };
    let reason = async |wanted: &str| {
        let told = |state: &StateView| {
            gang_of(state, "late").is_some_and(|gang| format!("{:?}", gang.reason).contains(wanted))
        };
        until(&coordinator, wanted, told).await;
    };
    apply_ok(&coordinator, &queue("Closed")).await;
    // What was seen somewhere once is no fact here.
    let status = state().await;
    assert_eq!(
        (&status["state"], status["running"].as_u64().unwrap_or(0)),
        (&"Closed".into(), 0),
        "{status}"
    );
    apply_ok(&coordinator, &job("late", "research")).await;
    reason("QueueClosed").await;
    // A manifest that says nothing of it changes nothing of it.
    apply_ok(&coordinator, QUEUE).await;
    assert_ne!(state().await["state"], "Open");
    apply_ok(&coordinator, &queue("Open")).await;
    assert_eq!(state().await["state"], "Open");
    reason("LargerThanAllNodes").await;
    let wrong = ask(&coordinator, "POST", "/v1/apply", Some(queue("Shut"))).await;
    assert!(wrong.text.contains("must be Open or Closed or Closing, found"), "{}", wrong.text);
    stop(coordinator).await;
}
