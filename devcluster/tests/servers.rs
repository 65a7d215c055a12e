//! The servers themselves: they start, answer each user by its rights, and leave nothing behind.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, PostParams};
use phalanx_devcluster::{Options, Servers, TokenOptions, Tool};

const PATIENCE: Duration = Duration::from_secs(60);

fn runs(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn config_map(name: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_answer_and_a_drop_leaves_no_process_and_no_file() {
    let servers = Servers::start(Options::default()).await.unwrap();
    let version: serde_json::Value =
        serde_json::from_str(&servers.kubectl(&["version", "-o", "json"]).await.unwrap()).unwrap();
    let said = version.pointer("/serverVersion/gitVersion").unwrap().as_str().unwrap();
    assert!(said.starts_with(&format!("v{}.", servers.version())), "{said}");
    servers
        .kubectl_with_input(
            &["apply", "-f", "-"],
            &serde_json::json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made", "namespace": "default"},
            })
            .to_string(),
        )
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(servers.admin_client().await.unwrap(), "default");
    maps.get("made").await.unwrap();
    let error = servers.kubectl(&["get", "no-such-kind"]).await.unwrap_err().to_string();
    assert!(error.contains("get no-such-kind") && error.contains("doesn't have a resource type"), "{error}");

    // A crash of the API server loses nothing, and it comes back where it was.
    servers.kill_api_server();
    maps.get("made").await.unwrap_err();
    servers.start_api_server().await.unwrap();
    maps.get("made").await.unwrap();

    let (processes, folder) = (servers.processes(), servers.folder().to_owned());
    assert_eq!(processes.len(), 2, "{processes:?}");
    assert!(processes.iter().all(|(_, pid)| runs(*pid)) && folder.is_dir());
    drop(servers);
    assert!(!processes.iter().any(|(_, pid)| runs(*pid)), "{processes:?}");
    assert!(!folder.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn users_and_accounts_have_their_own_rights_and_the_audit_log_tells_them_apart() {
    let options = Options {
        users: vec![("alice".to_owned(), vec!["tenants".to_owned()])],
        audit: true,
        ..Options::default()
    };
    let servers = Servers::start(options).await.unwrap();
    let namespace = servers.namespace("rights").await.unwrap();
    let admin = servers.admin_client().await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), &namespace);
    let mut account = ServiceAccount::default();
    account.metadata.name = Some("reader".to_owned());
    accounts.create(&PostParams::default(), &account).await.unwrap();
    servers
        .kubectl(&["-n", &namespace, "create", "role", "reads", "--verb=list", "--resource=configmaps"])
        .await
        .unwrap();
    servers
        .kubectl(&[
            "-n",
            &namespace,
            "create",
            "rolebinding",
            "reads",
            "--role=reads",
            &format!("--serviceaccount={namespace}:reader"),
            "--user=alice",
        ])
        .await
        .unwrap();
    let clients = [
        (servers.client_for("alice").await.unwrap(), "alice".to_owned()),
        (
            servers.client_for_account(&namespace, "reader").await.unwrap(),
            format!("system:serviceaccount:{namespace}:reader"),
        ),
    ];
    for (client, user) in clients {
        let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
        maps.list(&ListParams::default()).await.unwrap();
        let refused = maps.create(&PostParams::default(), &config_map("mine")).await.unwrap_err().to_string();
        assert!(refused.contains("forbidden"), "{refused}");
        let asked = servers.audited().unwrap();
        let asked: Vec<_> = asked
            .iter()
            .filter(|request| request.user == user && request.resource == "configmaps")
            .map(|request| (request.verb.as_str(), request.code))
            .collect();
        assert_eq!(asked, [("list", 200), ("create", 403)], "{user}");
    }
    let token = servers
        .token(
            &namespace,
            "reader",
            &TokenOptions { audience: "phalanx".to_owned(), ..TokenOptions::default() },
        )
        .await
        .unwrap();
    assert_eq!(token.split('.').count(), 3, "{token}");
    let error = servers.client_for("bob").await.err().unwrap().to_string();
    assert!(error.contains("\"bob\""), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_and_scheduler_start_beside_them() {
    let servers = Servers::start(Options::default()).await.unwrap();
    servers
        .start_controller_manager(&["serviceaccount-controller", "root-ca-certificate-publisher-controller"])
        .await
        .unwrap();
    servers.start_scheduler().await.unwrap();
    let namespace = servers.namespace("controlled").await.unwrap();
    let admin = servers.admin_client().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(admin, &namespace);
    let began = Instant::now();
    while maps.get_opt("kube-root-ca.crt").await.unwrap().is_none() {
        servers.check().unwrap();
        assert!(began.elapsed() < PATIENCE, "the controller published no authority");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    servers.check().unwrap();
    assert_eq!(servers.processes().len(), 4);
    servers.stop_other(Tool::Scheduler);
    assert_eq!(servers.processes().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_come_up_is_an_error_with_the_end_of_its_log() {
    let options = Options { api_server_flags: vec!["--no-such-flag=1".to_owned()], ..Options::default() };
    let error = Servers::start(options).await.unwrap_err().to_string();
    assert!(error.contains("kube-apiserver") && error.contains("no-such-flag"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_projects_own_kinds_are_served() {
    let servers = Servers::start(Options::default()).await.unwrap();
    servers.apply_crds().await.unwrap();
    for kind in ["pg", "queue", "vcjob", "gangplans.phalanx.dev", "queuepolicies.phalanx.dev"] {
        servers.kubectl(&["get", kind, "-A"]).await.unwrap();
    }
}

/// Run by the next test in a process of its own, which it kills.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "only as the process that the next test kills"]
async fn process_that_is_killed() {
    let servers = Servers::shared().await.unwrap();
    let list: Vec<String> = servers.processes().iter().map(|(_, pid)| pid.to_string()).collect();
    let path = std::env::var_os("SERVERS_LIST").map(PathBuf::from).unwrap();
    let unfinished = path.with_extension("unfinished");
    std::fs::write(&unfinished, format!("{}\n{}\n", servers.folder().display(), list.join("\n"))).unwrap();
    std::fs::rename(unfinished, path).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_leaves_no_server_and_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "process_that_is_killed", "--nocapture"])
        .env("SERVERS_LIST", &list)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while !list.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended by itself");
        assert!(began.elapsed() < PATIENCE * 3, "it wrote no list");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let text = std::fs::read_to_string(&list).unwrap();
    let (data, pids) = text.split_once('\n').unwrap();
    let pids: Vec<u32> = pids.lines().map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| runs(*pid)), "{pids:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    until("the servers end", || !pids.iter().any(|pid| runs(*pid))).await;
    until("their folder goes", || !Path::new(data).exists()).await;
}
