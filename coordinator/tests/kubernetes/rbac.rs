//! The coordinator's rights are exactly what it needs: replicas run under them on a real API server, nothing is refused
//! to them, and each right of deploy/phalanx/rbac.yaml is used, as the audit log of the API server shows.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::Api;
use phalanx_common::ids::GangName;
use phalanx_coordinator::convert::Reading;
use phalanx_coordinator::convert::plan::plan_key;
use phalanx_devcluster::installation::{Installation, InstallationOptions};
use phalanx_devcluster::{Audited, Options, Servers};

const NAMESPACE: &str = "phalanx-system";
const NAME: &str = "phalanx-coordinator";
const USER: &str = "system:serviceaccount:phalanx-system:phalanx-coordinator";
const LIMIT: Duration = Duration::from_secs(120);

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    /// Only there; everywhere where empty.
    namespace: String,
    group: String,
    /// With its subresource: `pods/binding`.
    resource: String,
    verb: String,
    /// Only these; all where empty.
    names: Vec<String>,
}

impl Right {
    fn text(&self) -> String {
        let Self { namespace, group, resource, verb, names } = self;
        format!("{verb} {resource} {names:?} of {group:?} in {namespace:?}")
    }

    /// The request needs this right.
    fn allows(&self, request: &Audited) -> bool {
        let resource = match request.subresource.as_str() {
            "" => request.resource.clone(),
            part => format!("{}/{part}", request.resource),
        };
        (self.namespace.is_empty() || self.namespace == request.namespace)
            && self.group == request.group
            && self.resource == resource
            && self.verb == request.verb
            && (self.names.is_empty() || self.names.contains(&request.name))
    }
}

fn rights_of(namespace: &str, rules: &[PolicyRule]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        let names = rule.resource_names.clone().unwrap_or_default();
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    for text in [group, resource, verb] {
                        assert!(!text.contains('*'), "{rule:?}: least rights have no *");
                    }
                    rights.insert(Right {
                        namespace: namespace.to_owned(),
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                        names: names.clone(),
                    });
                }
            }
        }
    }
    rights
}

/// Rights that no request has needed. What a right in one namespace or on one name allows does not need a wider one.
fn unused(rights: &BTreeSet<Right>, requests: &[Audited]) -> Vec<Right> {
    let is_wide = |right: &Right| right.namespace.is_empty() && right.names.is_empty();
    let is_used = |right: &Right| {
        requests.iter().filter(|request| request.code != 403 && right.allows(request)).any(|request| {
            !is_wide(right) || !rights.iter().any(|other| !is_wide(other) && other.allows(request))
        })
    };
    rights.iter().filter(|right| !is_used(right)).cloned().collect()
}

/// Requests that were refused for want of a right, or that no right of ours allows.
fn missing(rights: &BTreeSet<Right>, requests: &[Audited]) -> BTreeSet<Audited> {
    let allowed = |request: &Audited| rights.iter().any(|right| right.allows(request));
    requests
        .iter()
        .filter(|request| !request.resource.is_empty())
        .filter(|request| request.code == 403 || !allowed(request))
        .cloned()
        .collect()
}

fn request(verb: &str, resource: &str, subresource: &str, namespace: &str, name: &str, code: u64) -> Audited {
    Audited {
        user: USER.to_owned(),
        verb: verb.to_owned(),
        group: String::new(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        code,
    }
}

fn rule(resources: &[&str], verbs: &[&str], names: Option<&[&str]>) -> PolicyRule {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        resource_names: names.map(owned),
        non_resource_urls: None,
    }
}

#[test]
fn rights_and_requests_are_compared_both_ways() {
    let mut rights = rights_of("", &[rule(&["pods", "pods/binding"], &["create"], None)]);
    rights.extend(rights_of("own", &[rule(&["secrets"], &["get"], Some(&["ca"]))]));
    assert_eq!(rights.len(), 3);
    let verbs = |unused: Vec<Right>| {
        unused.into_iter().map(|right| format!("{} {}", right.verb, right.resource)).collect::<Vec<_>>()
    };
    // A conflict shows that the right was needed.
    let binding = request("create", "pods", "binding", "a", "p", 409);
    assert_eq!(verbs(unused(&rights, std::slice::from_ref(&binding))), ["create pods", "get secrets"]);
    assert_eq!(missing(&rights, &[binding]), BTreeSet::new());
    // A right in one namespace, and on one name, is neither used nor enough elsewhere.
    for other in
        [request("get", "secrets", "", "a", "ca", 200), request("get", "secrets", "", "own", "b", 200)]
    {
        let requests = std::slice::from_ref(&other);
        assert!(verbs(unused(&rights, requests)).contains(&"get secrets".to_owned()));
        assert_eq!(missing(&rights, requests), BTreeSet::from([other.clone()]));
    }
    // A wide right is not proven by what a narrow one allows.
    rights.extend(rights_of("", &[rule(&["secrets"], &["get"], None)]));
    let narrow = request("get", "secrets", "", "own", "ca", 200);
    assert_eq!(unused(&rights, std::slice::from_ref(&narrow)).len(), 3);
    let wide = request("get", "secrets", "", "own", "b", 200);
    assert_eq!(unused(&rights, &[narrow, wide]).len(), 2);
    rights.retain(|right| right.resource != "secrets" || !right.namespace.is_empty());
    // Neither is what was refused, whatever our rights say.
    let refused = request("create", "pods", "", "a", "p", 403);
    assert_eq!(missing(&rights, std::slice::from_ref(&refused)), BTreeSet::from([refused.clone()]));
    assert_eq!(unused(&rights, &[refused]).len(), 3);
    // What is not about a resource needs no right of ours.
    assert_eq!(missing(&rights, &[request("get", "", "", "", "", 200)]), BTreeSet::new());
}

const OBJECTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: rights}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: runs, namespace: rights}
spec:
  schedulerName: phalanx
  minAvailable: 2
  tasks:
    - name: worker
      replicas: 2
      template:
        metadata: {annotations: {phalanx.dev/run-for: 1s}}
        spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: stays, namespace: rights}
spec:
  schedulerName: phalanx
  minAvailable: 1
  tasks:
    - name: worker
      replicas: 2
      template:
        spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: alone, namespace: rights}
spec:
  schedulerName: phalanx
  containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: elsewhere, namespace: rights}
spec:
  schedulerName: phalanx
  nodeSelector: {there-is: none}
  containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: planned, namespace: rights}
---
apiVersion: v1
kind: Pod
metadata: {name: planned, namespace: rights, annotations: {scheduling.k8s.io/group-name: planned}}
spec:
  schedulerName: phalanx
  containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]
---
# One pod is never bound: when the time for binding is over, the other one is asked to leave.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: stuck}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods/binding]}]
  validations: [{expression: "request.name != 'stuck-worker-1'", message: not this one}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: stuck}
spec: {policyName: stuck, validationActions: [Deny]}
"#;

/// An object of plans that is there already when the gang `planned` writes its own into it.
fn plan_of_nobody() -> String {
    let key = plan_key(&Reading::default(), &GangName::new("rights", "planned"));
    let object = serde_json::json!({
        "apiVersion": "phalanx.dev/v1alpha1", "kind": "GangPlan",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {"plans": {"rights/nobody": {}}},
    });
    object.to_string()
}

const STUCK: &str = r#"
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: stuck, namespace: rights}
spec:
  schedulerName: phalanx
  minAvailable: 2
  tasks:
    - name: worker
      replicas: 2
      template:
        spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}
"#;

const OWNERS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: owner, namespace: rights}
spec:
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: owner, namespace: rights}
spec:
  serviceName: none
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: owner, namespace: rights}
spec:
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: owner, namespace: rights}
spec:
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}
"#;

/// Pods whose top owners are of each kind, as their controllers would make them.
async fn create_owned(servers: &Servers) {
    servers.kubectl_with_input(&["apply", "-f", "-"], OWNERS).await.unwrap();
    let reference = async |version: &str, kind: &str| {
        let object = format!("{kind}.{}/owner", version.replace('/', "."));
        let object = object.replace(".batch.v1", ".v1.batch").replace(".apps.v1", ".v1.apps");
        let uid = ["-n", "rights", "get", object.as_str(), "-o", "jsonpath={.metadata.uid}"];
        let uid = servers.kubectl(&uid).await.unwrap();
        serde_json::json!({
            "apiVersion": version, "kind": kind, "name": "owner", "uid": uid.trim(), "controller": true
        })
    };
    let owned = |version: &str, kind: &str, name: &str, owner, spec: serde_json::Value| {
        serde_json::json!({
            "apiVersion": version, "kind": kind, "spec": spec,
            "metadata": {"name": name, "namespace": "rights", "ownerReferences": [owner]},
        })
    };
    let deployment = reference("apps/v1", "Deployment").await;
    let template = serde_json::json!({
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    });
    let replica_set = owned("apps/v1", "ReplicaSet", "owner", deployment, template).to_string();
    servers.kubectl_with_input(&["apply", "-f", "-"], &replica_set).await.unwrap();
    let controllers = [
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "StatefulSet"),
        ("apps/v1", "DaemonSet"),
        ("batch/v1", "Job"),
    ];
    for (version, kind) in controllers {
        let spec = serde_json::json!({
            "schedulerName": "phalanx", "containers": [{"name": "c", "image": "i"}],
        });
        let name = format!("of-{}", kind.to_lowercase());
        let pod = owned("v1", "Pod", &name, reference(version, kind).await, spec).to_string();
        servers.kubectl_with_input(&["apply", "-f", "-"], &pod).await.unwrap();
    }
}

/// Polls the audit log until all rights are used.
async fn until_used(installation: &mut Installation, rights: &BTreeSet<Right>) -> (Vec<Right>, Vec<Audited>) {
    let began = Instant::now();
    loop {
        let mut requests = installation.servers().audited().unwrap();
        requests.retain(|request| request.user == USER);
        let left = unused(rights, &requests);
        if left.is_empty() || began.elapsed() > LIMIT {
            return (left, requests);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_right_is_used_and_none_is_missing() {
    let servers = Servers::start(Options { audit: true, ..Options::default() }).await.unwrap();
    let mut options =
        InstallationOptions::new(PathBuf::from(env!("CARGO_BIN_EXE_phalanx-coordinator")), PathBuf::new());
    options.hollow = 3;
    options.coordinator_flags.push("--binding-deadline=3s".to_owned());
    let mut installation = Installation::start(servers, options).await.unwrap();
    let client = installation.client().clone();
    let everywhere: ClusterRole = Api::all(client.clone()).get(NAME).await.unwrap();
    let own: Role = Api::namespaced(client.clone(), NAMESPACE).get(NAME).await.unwrap();
    let mut rights = rights_of("", &everywhere.rules.unwrap());
    rights.extend(rights_of(NAMESPACE, &own.rules.unwrap()));

    let servers = installation.servers();
    servers.kubectl_with_input(&["apply", "-f", "-"], &plan_of_nobody()).await.unwrap();
    servers.kubectl_with_input(&["apply", "-f", "-"], OBJECTS).await.unwrap();
    create_owned(servers).await;
    // The authority is replaced.
    let rotate = ["-n", NAMESPACE, "annotate", "secret", "phalanx-ca", "phalanx.dev/rotate="];
    servers.kubectl(&rotate).await.unwrap();
    let wait = [
        "-n",
        "rights",
        "wait",
        "--timeout=60s",
        "--for=jsonpath={.status.state.phase}=Completed",
        "vcjob/runs",
    ];
    if let Err(error) = servers.kubectl(&wait).await {
        let all = servers.kubectl(&["get", "vcjob,pg,pods,queues", "-A", "-o", "wide"]).await;
        panic!("{error}\n{}", all.unwrap());
    }
    servers.kubectl_with_input(&["apply", "-f", "-"], STUCK).await.unwrap();
    let fewer = r#"[{"op": "replace", "path": "/spec/tasks/0/replicas", "value": 1}]"#;
    servers.kubectl(&["-n", "rights", "patch", "vcjob", "stays", "--type=json", "-p", fewer]).await.unwrap();
    let ended = ["-n", "rights", "delete", "--wait=false", "pods", "-l", "volcano.sh/job-name=runs"];
    servers.kubectl(&ended).await.unwrap();
    let leader = installation.wait_for_leader().await.unwrap();
    // A plan that somebody has removed is looked for before it is believed to be gone.
    for _ in 0..10 {
        let remove = ["-n", NAMESPACE, "delete", "gangplans", "--all", "--wait=false"];
        installation.servers().kubectl(&remove).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // Whoever starts anew has published nothing, and need not wait before it replaces the authority.
    installation.replica(leader).unwrap().kill();
    installation.replica(leader).unwrap().start().unwrap();
    installation.wait_for_leader().await.unwrap();

    let (left, requests) = until_used(&mut installation, &rights).await;
    assert_eq!(missing(&rights, &requests), BTreeSet::new(), "deploy/phalanx/rbac.yaml lacks rights");
    let left: Vec<String> = left.iter().map(Right::text).collect();
    assert!(left.is_empty(), "deploy/phalanx/rbac.yaml has rights that nothing needs:\n{}", left.join("\n"));
}
