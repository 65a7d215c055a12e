//! `phalanx get` and `phalanx why` with a kubeconfig: through the API server's service proxy to the leader, under the
//! user's own rights, and nothing else.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{self, Printed, phalanx, program};
use phalanx_devcluster::installation::{Installation, InstallationOptions};
use phalanx_devcluster::{Options, Servers};

const USER: &str = "alice";
const PATIENCE: Duration = Duration::from_secs(60);

fn run(kubeconfig: &Path, arguments: &[&str]) -> Printed {
    let mut command = phalanx();
    command.args(arguments).arg("--kubeconfig").arg(kubeconfig);
    command.stdin(Stdio::null()).output().unwrap().into()
}

/// The text of a refusal.
fn refused(printed: &Printed) -> &str {
    assert_eq!(printed.code, 1, "{printed:?}");
    assert_eq!(printed.out, "", "{printed:?}");
    &printed.err
}

/// Runs it until it is answered: a leader publishes its address a moment after it leads.
async fn answered(kubeconfig: &Path, arguments: &[&str]) -> Printed {
    let began = Instant::now();
    loop {
        let printed = run(kubeconfig, arguments);
        if printed.code == 0 {
            return printed;
        }
        assert!(began.elapsed() < PATIENCE, "{printed:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

const GANG: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: too-large, namespace: team-a}
spec: {minMember: 2}
---
apiVersion: v1
kind: Pod
metadata: {name: too-large-0, namespace: team-a, annotations: {scheduling.k8s.io/group-name: too-large}}
spec:
  schedulerName: phalanx
  containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 7}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: too-large-1, namespace: team-a, annotations: {scheduling.k8s.io/group-name: too-large}}
spec:
  schedulerName: phalanx
  containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 9}}}]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_user_asks_under_rights_of_her_own() {
    let users = vec![(USER.to_owned(), vec!["people".to_owned()])];
    let servers = Servers::start(Options { users, ..Options::default() }).await.unwrap();
    let admin = servers.kubeconfig().to_owned();
    let alice = servers.kubeconfig_of(USER).unwrap().to_owned();
    let before = run(&admin, &["get", "gangs"]);
    assert!(refused(&before).contains("Phalanx is not installed in namespace phalanx-system"), "{before:?}");
    assert!(before.err.contains("kubectl apply -k deploy"), "{before:?}");

    // Builds the programs.
    assert_eq!(support::run(&["--version"]).code, 0);
    let mut options = InstallationOptions::new(program("phalanx-coordinator"), program("phalanx-agent"));
    options.hollow = 2;
    let mut installation = Installation::start(servers, options).await.unwrap();
    let servers = installation.servers();
    servers.kubectl_with_input(&["apply", "-f", "-"], GANG).await.unwrap();

    let refusal = run(&alice, &["get", "gangs", "-A"]);
    assert!(refused(&refusal).contains("cannot get resource \"services/proxy\""), "{refusal:?}");
    assert!(refusal.err.contains("--clusterrole=phalanx-viewer"), "{refusal:?}");
    let bind = [
        "-n",
        "phalanx-system",
        "create",
        "rolebinding",
        "viewers",
        "--clusterrole=phalanx-viewer",
        "--group=people",
    ];
    servers.kubectl(&bind).await.unwrap();

    let nodes = answered(&alice, &["get", "nodes"]).await;
    assert!(nodes.out.contains("hollow-00001"), "{nodes:?}");
    let began = Instant::now();
    let gangs = loop {
        let gangs = answered(&alice, &["get", "gangs", "-n", "team-a"]).await;
        // Both are told of by watches, which take a moment.
        if gangs.out.contains("too-large") || began.elapsed() > PATIENCE {
            break gangs;
        }
    };
    assert!(gangs.out.contains("too-large"), "{gangs:?}");
    let why = answered(&alice, &["explain", "team-a/too-large"]).await;
    assert!(why.out.contains("too-large-1 asks for 9") || why.out.contains('9'), "{why:?}");
    let pod = answered(&alice, &["why", "team-a/too-large-0"]).await;
    assert_eq!(pod.out, why.out);
    let unknown = run(&alice, &["why", "team-a/nothing"]);
    assert!(refused(&unknown).contains("team-a/nothing"), "{unknown:?}");
    // As kubectl's plugin, with kubectl's variable; the context's namespace is the default one.
    let mut plugin = Command::new(program("kubectl-phalanx"));
    let plugin =
        plugin.args(["get", "gangs", "--json"]).env("KUBECONFIG", &alice).env("HOME", "/nonexistent");
    let plugin: Printed =
        plugin.env_remove("PHALANX_SERVER").env_remove("XDG_STATE_HOME").output().unwrap().into();
    assert_eq!((plugin.code, plugin.json()), (0, serde_json::json!([])), "{plugin:?}");

    changes_are_kubectls(&admin, &mut installation).await;
}

/// Nothing is changed this way, whoever asks; and who leads no more is not taken for one who is not there.
async fn changes_are_kubectls(admin: &Path, installation: &mut Installation) {
    let apply = run(admin, &["apply", "-f", "deploy/examples/queues.yaml"]);
    assert!(refused(&apply).contains("kubectl apply -f FILE"), "{apply:?}");
    let delete = run(admin, &["delete", "job", "team-a/too-large"]);
    assert!(refused(&delete).contains("kubectl delete -f FILE"), "{delete:?}");
    let leader = installation.wait_for_leader().await.unwrap();
    let server = format!("http://{}", installation.replicas()[leader].admin());
    for arguments in [&["apply", "-f", "deploy/examples/queues.yaml"][..], &["delete", "queue", "default"]] {
        let direct: Printed = phalanx().args(arguments).args(["--server", &server]).output().unwrap().into();
        assert!(direct.err.contains("are read and changed with kubectl"), "{direct:?}");
        assert_eq!(direct.code, 1);
    }
    let objects = format!("{server}/v1/objects/Pod");
    let objects = ureq::get(objects).config().http_status_as_error(false).build().call().unwrap();
    assert_eq!(objects.status(), 403, "pods with their environment are not for everybody who may ask");

    for replica in 0..2 {
        installation.replica(replica).unwrap().kill();
    }
    let gone = run(admin, &["get", "queues"]);
    assert!(refused(&gone).contains("no coordinator answers in namespace phalanx-system"), "{gone:?}");
    assert!(gone.err.contains("get pods,leases"), "{gone:?}");
}
