//! What manifests may say, and the exact line a person gets where one is wrong.
use phalanx_coordinator::api::{Kind, Object};
use phalanx_coordinator::manifest::{Diagnostic, MAX_MANIFEST_BYTES, Severity, parse};

/// All diagnostics as text.
fn lines(text: &str) -> Vec<String> {
    parse(text, "f.yaml").diagnostics.iter().map(ToString::to_string).collect()
}

/// The only object of a text without errors.
fn object(text: &str) -> Object {
    let parsed = parse(text, "f.yaml");
    assert!(!parsed.has_errors(), "{:?}", parsed.diagnostics);
    assert_eq!(parsed.objects.len(), 1);
    parsed.objects.into_iter().next().unwrap()
}

fn queue(spec: &str) -> String {
    format!(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {{name: q}}\nspec:\n  {spec}\n"
    )
}

fn pod_group(spec: &str) -> String {
    format!(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {{name: g}}\nspec:\n  {spec}\n"
    )
}

fn pod(spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  schedulerName: phalanx\n  {spec}\n")
}

fn container(resources: &str) -> String {
    pod(&format!("containers: [{{name: c, resources: {resources}}}]"))
}

fn job(spec: &str) -> String {
    format!("apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: j}}\nspec:\n  {spec}\n")
}

fn priority(fields: &str) -> String {
    format!("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: c}}\n{fields}\n")
}

const TEMPLATE: &str = "template: {spec: {containers: [{name: c}]}}";

/// One text, one line, no object.
fn refused(text: &str, line: &str) {
    let parsed = parse(text, "f.yaml");
    let errors: Vec<String> = parsed
        .diagnostics
        .iter()
        .map(ToString::to_string)
        .filter(|line| line.contains(": error: "))
        .collect();
    assert_eq!(errors, [format!("f.yaml:{line}")], "{text}");
    assert!(parsed.objects.is_empty(), "{text}");
    assert!(parsed.has_errors());
}

/// One text, one warning, one object.
fn warned(text: &str, line: &str) -> Object {
    assert_eq!(lines(text), [format!("f.yaml:{line}")], "{text}");
    object(text)
}

#[test]
fn wrong_queues_say_what_is_allowed() {
    refused(&queue("weight: 0"), "5: error: spec.weight: must be between 1 and 65535, found 0");
    refused(&queue("weight: -1"), "5: error: spec.weight: must be between 1 and 65535, found -1");
    refused(&queue("weight: 65536"), "5: error: spec.weight: must be between 1 and 65535, found 65536");
    refused(&queue("weight: 1.5"), "5: error: spec.weight: must be between 1 and 65535 and whole, found 1.5");
    refused(
        &queue("weight: \"2\""),
        "5: error: spec.weight: must be a whole number, found \"2\": drop the quotes",
    );
    refused(&queue("priority: -1"), "5: error: spec.priority: must be between 0 and 2147483647, found -1");
    refused(
        &queue("reclaimable: \"yes\""),
        "5: error: spec.reclaimable: must be true or false, found \"yes\": write true or false without quotes",
    );
    refused(
        &queue("dequeueStrategy: lifo"),
        "5: error: spec.dequeueStrategy: must be fifo or traverse, found \"lifo\"",
    );
    refused(&queue("parent: [root]"), "5: error: spec.parent: must be text, found a list");
    refused(
        &queue("capability: {cpu: lots}"),
        "5: error: spec.capability.cpu: \"lots\" is not a quantity such as 2, 500m, 1.5, 16Gi or 1e3",
    );
    refused(
        &queue("capability: {nvidia.com/gpu: -8}"),
        "5: error: spec.capability[nvidia.com/gpu]: \"-8\" is not zero or more: a quantity must not be negative",
    );
    refused(&queue("capability: 8"), "5: error: spec.capability: must be a mapping, found 8");
    refused(
        &queue("guarantee: {resource: {memory: 1Zi}}"),
        "5: error: spec.guarantee.resource.memory: \"1Zi\" is not a quantity such as 2, 500m, 1.5, 16Gi or 1e3",
    );
}

#[test]
fn queues_are_warned_about_what_surprises() {
    warned(
        &queue("capability: {cpu: 0}"),
        "5: warning: spec.capability.cpu: 0 means no limit, as in Volcano; leave cpu out to say so",
    );
    warned(
        &queue("capability: {memory: \"0\"}"),
        "5: warning: spec.capability.memory: 0 means no limit, as in Volcano; leave memory out to say so",
    );
    warned(
        &queue("capability: {gpu: 8}"),
        "5: warning: spec.capability.gpu: no node offers gpu; did you mean nvidia.com/gpu?",
    );
    warned(
        &queue("capability: {nvidia.com/gpus: 8}"),
        "5: warning: spec.capability[nvidia.com/gpus]: no node offers nvidia.com/gpus; did you mean nvidia.com/gpu?",
    );
    warned(
        &queue("capabilities: {cpu: 8}"),
        "5: warning: spec.capabilities: unknown field, ignored; did you mean capability?",
    );
    warned(&queue("zzz: 1"), "5: warning: spec.zzz: unknown field, ignored");
    for (field, path) in [
        ("affinity: {nodeGroupAffinity: {}}", "affinity"),
        ("extendClusters: [{name: a}]", "extendClusters"),
        ("type: x", "type"),
    ] {
        warned(&queue(field), &format!("5: warning: spec.{path}: accepted, not honoured yet"));
    }
    for field in [
        "weight: 65535",
        "deserved: {cpu: 1}",
        "guarantee: {resource: {cpu: 1}}",
        "parent: root",
        "dequeueStrategy: fifo",
        "reclaimable: false",
    ] {
        assert_eq!(lines(&queue(field)), [""; 0], "{field}");
    }
    assert_eq!(lines(&queue("capability: {nvidia.com/gpu: 0, vendor.example/chip: 4}")), [""; 0]);
}

#[test]
fn wrong_pod_groups_say_what_is_allowed() {
    refused(
        &pod_group("minMember: -1"),
        "5: error: spec.minMember: must be between 0 and 2147483647, found -1",
    );
    refused(
        &pod_group("minMember: 99999999999"),
        "5: error: spec.minMember: must be between 0 and 2147483647, found 99999999999",
    );
    refused(
        &pod_group("minMember: 99999999999999999999999"),
        "5: error: spec.minMember: must be between 0 and 2147483647, found 99999999999999999999999",
    );
    refused(
        &pod_group("minTaskMember: {ps: few}"),
        "5: error: spec.minTaskMember.ps: must be a whole number, found \"few\"",
    );
    refused(
        &pod_group("queue: Tenant_A"),
        "5: error: spec.queue: must be lower case letters, digits, - and ., beginning and ending with a letter or digit, found \"Tenant_A\"",
    );
    warned(
        &pod_group("networkTopology: {mode: hard}"),
        "5: warning: spec.networkTopology: accepted, not honoured yet",
    );
    warned(
        &pod_group("subGroupPolicy: [{name: a, networkTopology: {mode: hard}}]"),
        "5: warning: spec.subGroupPolicy[0].networkTopology: accepted, not honoured yet",
    );
    warned(
        &pod_group("minMembers: 2"),
        "5: warning: spec.minMembers: unknown field, ignored; did you mean minMember?",
    );
    assert_eq!(lines(&pod_group("minMember: 0")), [""; 0]);
    assert_eq!(lines(&pod_group("queue: \"\"")), [""; 0]);
}

#[test]
fn wrong_priority_classes_say_what_is_allowed() {
    refused(
        &priority("value: 2147483647"),
        "4: error: value: must be between -2147483648 and 1000000000, found 2147483647",
    );
    refused(
        &priority("globalDefault: true"),
        "1: error: value: missing: must be a whole number up to 1000000000",
    );
    refused(
        &priority("value: 1\npreemptionPolicy: Sometimes"),
        "5: error: preemptionPolicy: must be PreemptLowerPriority or Never, found \"Sometimes\"",
    );
    refused(
        "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: system-x}\nvalue: 1\n",
        "3: error: metadata.name: must not begin with system-, which Kubernetes keeps for itself",
    );
    assert_eq!(lines(&priority("value: 1\npreemptionPolicy: Never")), [""; 0]);
    let class = object(&priority("value: -5\nglobalDefault: true\ndescription: x"));
    assert_eq!(class.spec, serde_json::json!({ "value": -5, "globalDefault": true, "description": "x" }));
}

#[test]
fn wrong_jobs_say_what_is_allowed() {
    refused(&job("minAvailable: 1"), "4: error: spec.tasks: missing: must be a list of at least one task");
    refused(&job("tasks: []"), "5: error: spec.tasks: must hold at least one task");
    refused(
        &job(&format!("minAvailable: 4\n  tasks: [{{name: w, replicas: 3, {TEMPLATE}}}]")),
        "5: error: spec.minAvailable: must be at most the sum of all replicas: minAvailable 4 > replicas 3",
    );
    refused(
        &job(&format!("minAvailable: -1\n  tasks: [{{name: w, {TEMPLATE}}}]")),
        "5: error: spec.minAvailable: must be between 0 and 2147483647, found -1",
    );
    refused(
        &job(&format!("tasks: [{{name: w, replicas: 2, minAvailable: 3, {TEMPLATE}}}]")),
        "5: error: spec.tasks[0].minAvailable: must be at most the task's replicas: minAvailable 3 > replicas 2",
    );
    refused(
        &job(&format!("tasks: [{{name: w, replicas: -2, {TEMPLATE}}}]")),
        "5: error: spec.tasks[0].replicas: must be between 0 and 2147483647, found -2",
    );
    refused(
        &job(&format!("tasks: [{{name: w, replicas: 2147483647, {TEMPLATE}}}]")),
        "5: error: spec.tasks: the replicas of all tasks must be at most 10000, found 2147483647",
    );
    refused(
        &job(&format!("tasks: [{{name: w, {TEMPLATE}}}, {{name: w, {TEMPLATE}}}]")),
        "5: error: spec.tasks[1]: two tasks are named \"w\": rename one",
    );
    refused(&job("tasks: [{name: w}]"), "5: error: spec.tasks[0].template: missing: must be a pod template");
    refused(
        &job("tasks: [{name: w, template: {spec: {}}}]"),
        "5: error: spec.tasks[0].template.spec.containers: missing: must be a list of at least one container",
    );
    refused(
        &job(&format!("schedulerName: default-scheduler\n  tasks: [{{name: w, {TEMPLATE}}}]")),
        "5: error: spec.schedulerName: must be phalanx or volcano, found \"default-scheduler\"",
    );
    refused(
        &job("tasks: [{name: w, template: {spec: {nodeName: n1, containers: [{name: c}]}}}]"),
        "5: error: spec.tasks[0].template.spec.nodeName: must not be set: Phalanx chooses the node; use nodeSelector kubernetes.io/hostname to ask for one",
    );
    refused(
        &job(&format!("maxRetry: many\n  tasks: [{{name: w, {TEMPLATE}}}]")),
        "5: error: spec.maxRetry: must be a whole number, found \"many\"",
    );
    refused(
        &job(&format!("tasks: [{{name: {}, {TEMPLATE}}}]", "x".repeat(62))),
        &format!(
            "5: error: spec.tasks[0]: the names of its pods, j-{}..., have 66 characters and must have at most 63: shorten the job's name or the task's",
            "x".repeat(38)
        ),
    );
}

#[test]
fn jobs_are_warned_about_what_has_no_effect() {
    for (field, path) in [
        ("policies: [{event: PodFailed, action: RestartJob}]", "policies"),
        ("plugins: {svc: []}", "plugins"),
        ("volumes: [{mountPath: /x}]", "volumes"),
        ("maxRetry: 3", "maxRetry"),
        ("ttlSecondsAfterFinished: 60", "ttlSecondsAfterFinished"),
        ("minSuccess: 1", "minSuccess"),
        ("networkTopology: {mode: soft}", "networkTopology"),
    ] {
        warned(
            &job(&format!("{field}\n  tasks: [{{name: w, {TEMPLATE}}}]")),
            &format!("5: warning: spec.{path}: accepted, not honoured yet"),
        );
    }
    for field in ["policies: [{}]", "topologyPolicy: none", "maxRetry: 1", "dependsOn: {name: [a]}"] {
        let name = field.split(':').next().unwrap();
        warned(
            &job(&format!("tasks: [{{name: w, {field}, {TEMPLATE}}}]")),
            &format!("5: warning: spec.tasks[0].{name}: accepted, not honoured yet"),
        );
    }
    warned(
        &job(&format!(
            "minAvailable: 4\n  tasks: [{{name: a, replicas: 5, minAvailable: 4, {TEMPLATE}}}, {{name: b, replicas: 3, minAvailable: 1, {TEMPLATE}}}]"
        )),
        "5: warning: spec.minAvailable: below the sum of the tasks' minAvailable: 5 is used instead of 4",
    );
}

#[test]
fn wrong_pods_say_what_is_allowed() {
    refused(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c}]\n",
        "4: error: spec.schedulerName: missing: the pod would not be ours; set it to phalanx (or volcano)",
    );
    refused(&pod("containers: []"), "6: error: spec.containers: must hold at least one container");
    refused(
        &pod("containers: [{image: x}]"),
        "6: error: spec.containers[0].name: missing: must be the container's name",
    );
    refused(
        &pod("containers: [{name: c}, {name: c}]"),
        "6: error: spec.containers[1].name: two containers are named \"c\": rename one",
    );
    refused(&pod("containers: c"), "6: error: spec.containers: must be a list, found \"c\"");
    refused(
        &pod("nodeSelector: {gpu: 8}\n  containers: [{name: c}]"),
        "6: error: spec.nodeSelector.gpu: must be text, found 8: put it in quotes",
    );
    refused(
        &pod("initContainers: [{name: i, restartPolicy: Sometimes}]\n  containers: [{name: c}]"),
        "6: error: spec.initContainers[0].restartPolicy: must be Always or Never or OnFailure, found \"Sometimes\"",
    );
    refused(
        &pod("affinity: none\n  containers: [{name: c}]"),
        "6: error: spec.affinity: must be a mapping, found \"none\"",
    );
    refused(
        &container("{requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}"),
        "6: error: spec.containers[0].resources.requests[nvidia.com/gpu]: request and limit of a device must be equal, found request 1 and limit 2",
    );
    refused(
        &container("{requests: {nvidia.com/gpu: 1}}"),
        "6: error: spec.containers[0].resources.requests[nvidia.com/gpu]: a device needs a limit equal to its request: set limits nvidia.com/gpu to 1",
    );
    refused(
        &container("{requests: {cpu: 2}, limits: {cpu: 500m}}"),
        "6: error: spec.containers[0].resources.requests.cpu: must be at most the limit 500m, found 2",
    );
    refused(
        &container("{limits: {nvidia.com/gpu: [1]}}"),
        "6: error: spec.containers[0].resources.limits[nvidia.com/gpu]: must be a quantity such as 2, 500m or 16Gi, found a list",
    );
    let many: Vec<String> = (0..65).map(|at| format!("{{name: c{at}}}")).collect();
    refused(
        &pod(&format!("containers: [{}]", many.join(", "))),
        "6: error: spec.containers: a pod may have at most 64 containers, found 65",
    );
}

#[test]
fn constraints_that_are_not_served_are_told_at_once() {
    let text = pod("containers: [{name: c, resources: {claims: [{name: g}]}}]\n  \
         affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1}]}, podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [x]}}\n  \
         topologySpreadConstraints: [{whenUnsatisfiable: DoNotSchedule}, {whenUnsatisfiable: ScheduleAnyway}]\n  \
         volumes: [{name: v, persistentVolumeClaim: {claimName: x}}, {name: w, emptyDir: {}}]\n  \
         resourceClaims: [{name: g}]");
    assert_eq!(
        lines(&text),
        [
            "f.yaml:6: warning: spec.containers[0].resources.claims: the pod will wait: claims of DRA are not served yet: ask for the devices as limits",
            "f.yaml:7: warning: spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution: accepted, not honoured yet",
            "f.yaml:7: warning: spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution: the pod will wait: required podAntiAffinity is not served yet: remove it",
            "f.yaml:8: warning: spec.topologySpreadConstraints[0]: the pod will wait: spread constraints are not served yet: remove it, or set whenUnsatisfiable: ScheduleAnyway",
            "f.yaml:8: warning: spec.topologySpreadConstraints[1]: accepted, not honoured yet",
            "f.yaml:9: warning: spec.volumes[0].persistentVolumeClaim: the pod will wait: volumes with persistentVolumeClaim are not served in standalone mode: remove it",
            "f.yaml:10: warning: spec.resourceClaims: the pod will wait: claims of DRA are not served yet: ask for the devices as limits",
        ]
    );
}

#[test]
fn constraints_that_are_wrong_are_told_with_what_is_allowed() {
    const REQUIRED: &str =
        "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [";
    let term = |term: &str| format!("{REQUIRED}{term}]}}}}}}");
    let at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    for (constraint, line) in [
        (
            "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {a: b}}}".to_owned(),
            "6: error: spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: missing: must be a list of at least one term".to_owned(),
        ),
        (term(""), format!("6: error: {at}: must hold at least one term")),
        (
            term("{matchExpressions: [{key: zone, operator: Is, values: [a]}]}"),
            format!("6: error: {at}[0].matchExpressions[0].operator: must be In or NotIn or Exists or DoesNotExist or Gt or Lt, found \"Is\""),
        ),
        (
            term("{matchExpressions: [{key: zone, operator: In}]}"),
            format!("6: error: {at}[0].matchExpressions[0]: must hold at least one value with the operator In"),
        ),
        (
            term("{matchExpressions: [{key: zone, operator: Exists, values: [a]}]}"),
            format!("6: error: {at}[0].matchExpressions[0].values: must be left out with the operator Exists"),
        ),
        (
            term("{matchExpressions: [{key: age, operator: Gt, values: [\"old\"]}]}"),
            format!("6: error: {at}[0].matchExpressions[0].values: must hold one whole number, in quotes, with the operator Gt"),
        ),
        (
            term("{matchFields: [{key: metadata.uid, operator: In, values: [x]}]}"),
            format!("6: error: {at}[0].matchFields[0].key: must be metadata.name, the only field that can be matched"),
        ),
        (
            term("{matchFields: [{key: metadata.name, operator: In, values: [x, y]}]}"),
            format!("6: error: {at}[0].matchFields[0].values: must hold one name with matchFields, found 2"),
        ),
        (
            "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 101, preference: {}}]}}".to_owned(),
            "6: error: spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: must be between 1 and 100, found 101".to_owned(),
        ),
        (
            "tolerations: [{key: a, operator: Lt, value: b}]".to_owned(),
            "6: error: spec.tolerations[0]: with the operators Lt and Gt the value must be a whole number".to_owned(),
        ),
        (
            "schedulingGates: [{nam: x}]".to_owned(),
            "6: error: spec.schedulingGates[0].name: missing: must be the gate's name".to_owned(),
        ),
    ] {
        refused(&pod(&format!("{constraint}\n  containers: [{{name: c}}]")), &line);
    }
    refused(
        &pod("containers: [{name: c, ports: [{hostPort: 65536}]}]"),
        "6: error: spec.containers[0].ports[0].hostPort: must be between 0 and 65535, found 65536",
    );
    refused(
        &pod("containers: [{name: c, ports: [{hostPort: 80, protocol: tcp}]}]"),
        "6: error: spec.containers[0].ports[0].protocol: must be TCP or UDP or SCTP, found \"tcp\"",
    );
    refused(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {taints: [{key: gpu, effect: Never}]}\n",
        "4: error: spec.taints[0].effect: must be NoSchedule or PreferNoSchedule or NoExecute, found \"Never\"",
    );
}

fn named(name: &str, rest: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{rest}}}\nspec: {{schedulerName: volcano, containers: [{{name: c}}]}}\n"
    )
}

#[test]
fn what_a_binding_leaves_on_a_pod_is_not_taken_from_a_manifest() {
    for key in ["phalanx.dev/lease-id", "phalanx.dev/term", "phalanx.dev/exactness", "phalanx.dev/gpu-uuids"]
    {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, annotations: {{{key}: \"99.0\"}}}}\n\
             spec: {{schedulerName: phalanx, containers: [{{name: c}}]}}\n"
        );
        let parsed = parse(&text, "f.yaml");
        assert!(!parsed.has_errors(), "{:?}", parsed.diagnostics);
        assert!(parsed.objects[0].metadata.annotations.is_empty(), "{key}");
        let told = parsed.diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(told.contains(&format!("[{key}]: is written by the coordinator alone, ignored")), "{told}");
    }
}

#[test]
fn names_labels_and_annotations_are_checked() {
    refused(
        &named("Train_1", ""),
        "3: error: metadata.name: must be lower case letters, digits, - and ., beginning and ending with a letter or digit, found \"Train_1\"",
    );
    refused(
        &named(&"x".repeat(254), ""),
        "3: error: metadata.name: must be at most 253 characters, found 254",
    );
    refused(&named("7", ""), "3: error: metadata.name: must be text, found 7: put it in quotes");
    refused(
        &named("p", &format!(", namespace: {}", "n".repeat(64))),
        "3: error: metadata.namespace: must be at most 63 characters, found 64",
    );
    refused(
        &named("p", ", labels: {a: true}"),
        "3: error: metadata.labels.a: must be text, found true: put it in quotes",
    );
    refused(
        &named("p", ", labels: {a: \"b c\"}"),
        "3: error: metadata.labels.a: a label value must be at most 63 letters, digits, -, _ and ., beginning and ending with a letter or digit, found \"b c\"",
    );
    refused(
        &named("p", ", annotations: {\"a b\": c}"),
        "3: error: metadata.annotations.a b: the key must be a name of at most 63 characters, with a domain and / before it or not",
    );
    for bad in ["soon", "0s", "-5s", "5", "1e309s"] {
        refused(
            &named("p", &format!(", annotations: {{phalanx.dev/run-for: \"{bad}\"}}")),
            &format!(
                "3: error: metadata.annotations[phalanx.dev/run-for]: must be a time such as 30s, 5m or 1h30m, found {bad:?}"
            ),
        );
    }
    refused(
        &named("p", ", annotations: {phalanx.dev/mixed-gpu-models: \"yes\"}"),
        "3: error: metadata.annotations[phalanx.dev/mixed-gpu-models]: must be \"true\" or \"false\", found \"yes\"",
    );
    refused(
        &named("p", ", annotations: {scheduling.k8s.io/group-name: \"a b\"}"),
        "3: error: metadata.annotations[scheduling.k8s.io/group-name]: must be lower case letters, digits, - and ., beginning and ending with a letter or digit, found \"a b\"",
    );
    warned(
        &named("p", ", annotations: {phalanx.dev/runfor: 30s}"),
        "3: warning: metadata.annotations[phalanx.dev/runfor]: unknown annotation, ignored; did you mean phalanx.dev/run-for?",
    );
    warned(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: q, namespace: a}\n",
        "3: warning: metadata.namespace: ignored: a Queue has no namespace",
    );
    refused(
        &format!("apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: {}}}\nspec: {{tasks: [{{name: w, replicas: 0, {TEMPLATE}}}]}}\n", "j".repeat(64))
            .replace("name: w, ", ""),
        "3: error: metadata.name: must be at most 63 characters for a Job, because its pods carry it as a label, found 64",
    );
}

#[test]
fn names_may_be_missing_only_where_they_are_made() {
    refused(&named("", ""), "3: error: metadata.name: missing: must be the object's name");
    let text = named("x", "").replace("name: x", "generateName: train-");
    let pod = object(&text);
    assert_eq!((pod.metadata.name.as_str(), pod.metadata.generate_name.as_str()), ("", "train-"));
    assert_eq!(pod.metadata.namespace, "default");
    refused(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {generateName: q-}\n",
        "3: error: metadata.generateName: is read for Job and Pod only: give the Queue a name",
    );
    refused(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\n",
        "1: error: metadata: missing: must be a mapping with a name",
    );
}

#[test]
fn kinds_and_versions_are_checked() {
    refused(
        "apiVersion: v1\nmetadata: {name: a}\n",
        "1: error: kind: missing: must be one of Queue, QueuePolicy, PodGroup, Job (batch.volcano.sh/v1alpha1), Pod, PriorityClass, Node",
    );
    refused(
        "kind: Queue\nmetadata: {name: a}\n",
        "1: error: apiVersion: missing: must be scheduling.volcano.sh/v1beta1",
    );
    refused(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\n",
        "1: error: apiVersion: must be batch.volcano.sh/v1alpha1 for kind Job, found \"batch/v1\"; a batch/v1 Job needs a Kubernetes cluster",
    );
    refused(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n",
        "2: error: kind: Deployment (apps/v1) is not served: standalone mode serves Queue, QueuePolicy, PodGroup, Job (batch.volcano.sh/v1alpha1), Pod, PriorityClass, Node",
    );
    refused(
        "apiVersion: phalanx.dev/v1alpha1\nkind: GangPlan\nmetadata: {name: a}\n",
        "1: error: GangPlan is written by the coordinator only: remove it",
    );
    refused("- a\n- b\n", "1: error: must be an object with apiVersion, kind and metadata, found a list");
    refused(
        "just text\n",
        "1: error: must be an object with apiVersion, kind and metadata, found \"just text\"",
    );
    let parsed =
        parse("apiVersion: topology.volcano.sh/v1alpha1\nkind: HyperNode\nmetadata: {name: a}\n", "f.yaml");
    assert_eq!(parsed.diagnostics[0].to_string(), "f.yaml:1: warning: HyperNode: accepted, not honoured yet");
    assert!(!parsed.has_errors());
}

#[test]
fn one_wrong_document_does_not_stop_the_others() {
    let text = format!(
        "{}---\n{}---\nkey: [unclosed\n---\n{}---\n# nothing here\n---\n{}",
        queue("weight: 0"),
        queue("priority: 1").replace("name: q", "name: q2"),
        pod_group("minMember: 2"),
        queue("priority: 2").replace("name: q", "name: q3"),
    );
    let parsed = parse(&text, "f.yaml");
    let names: Vec<&str> = parsed.objects.iter().map(|object| object.metadata.name.as_str()).collect();
    assert_eq!(names, ["q2", "g", "q3"]);
    let errors = lines(&text);
    assert_eq!(errors[0], "f.yaml:5: error: spec.weight: must be between 1 and 65535, found 0");
    assert!(errors[1].starts_with("f.yaml:13: error: not valid YAML: "), "{errors:?}");
    assert_eq!(errors.len(), 2);
}

#[test]
fn an_object_twice_in_one_file_is_refused_once() {
    let text = format!("{}---\n{}", queue("priority: 1"), queue("priority: 2"));
    let parsed = parse(&text, "f.yaml");
    assert_eq!(parsed.objects.len(), 1);
    assert_eq!(
        lines(&text),
        ["f.yaml:7: error: Queue q is in this file twice, first at line 1: remove one of them"]
    );
    // The same name in another namespace is another object.
    let two = format!("{}---\n{}", named("p", ""), named("p", ", namespace: b"));
    assert_eq!(parse(&two, "f.yaml").objects.len(), 2);
}

#[test]
fn lists_are_unrolled() {
    let text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: scheduling.volcano.sh/v1beta1\n  kind: Queue\n  metadata: {name: a}\n- apiVersion: scheduling.volcano.sh/v1beta1\n  kind: Queue\n  metadata: {name: b}\n  spec: {weight: 0}\n";
    let parsed = parse(text, "f.yaml");
    assert_eq!(parsed.objects.len(), 1);
    assert_eq!(lines(text), ["f.yaml:10: error: items[1].spec.weight: must be between 1 and 65535, found 0"]);
}

#[test]
fn anchors_aliases_and_merge_keys_are_expanded() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  schedulerName: volcano\n  containers:\n  - name: a\n    resources: &r\n      limits: &l {nvidia.com/gpu: 2}\n      requests: *l\n  - name: b\n    resources:\n      <<: *r\n      limits: {nvidia.com/gpu: 2, cpu: 1}\n";
    let pod = object(text);
    let containers = &pod.spec["containers"];
    assert_eq!(containers[0]["resources"]["requests"]["nvidia.com/gpu"], 2);
    assert_eq!(containers[1]["resources"]["requests"]["nvidia.com/gpu"], 2);
    assert_eq!(containers[1]["resources"]["limits"]["cpu"], 1);
}

#[test]
fn bombs_are_refused_quickly() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let inner = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{inner}]\n"));
    }
    refused(&bomb, "6: error: too large once its aliases are expanded: split the file, or use fewer aliases");
    let text = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 1000].join(", "));
    refused(&text, "2: error: too large once its aliases are expanded: split the file, or use fewer aliases");
    refused(
        &format!("a: {}{}\n", "[".repeat(100), "]".repeat(100)),
        "1: error: nested deeper than 64 levels",
    );
    refused("a: &a [*a]\n", "1: error: an alias to something that contains it, or is not there");
    let large = "#".repeat(MAX_MANIFEST_BYTES + 1);
    refused(&large, "1: error: the file has 4194305 bytes; at most 4194304 are read: split it");
    refused(
        "a: 1\na: 2\n",
        "2: error: \"a\" is given twice in one mapping, first at line 1: remove one of them",
    );
    refused(
        "a: 1\n# \u{0}\nkind: Pod\n",
        "2: error: not valid YAML: the control character U+0000 is not allowed",
    );
    refused("? [a]\n: 1\n", "1: error: a key must be plain text");
}

#[test]
fn the_other_texts_of_yaml_are_read() {
    assert_eq!(lines(""), [""; 0]);
    assert_eq!(lines("---\n---\n# x\n"), [""; 0]);
    let windows = queue("priority: 3").replace('\n', "\r\n");
    assert_eq!(object(&windows).spec["priority"], 3);
    let with_mark = format!("\u{feff}{}", queue("priority: 3"));
    assert_eq!(object(&with_mark).spec["priority"], 3);
    let json = "{\"apiVersion\": \"scheduling.volcano.sh/v1beta1\", \"kind\": \"Queue\", \"metadata\": {\"name\": \"q\"}, \"spec\": {\"capability\": {\"cpu\": 1.5}}}";
    assert_eq!(object(json).spec["capability"]["cpu"], 1.5);
    assert_eq!(object(&format!("%YAML 1.2\n---\n{}", queue("priority: 0x10"))).spec["priority"], 16);
}

#[test]
fn case_116_strange_numbers_are_refused_at_creation_with_field_and_range() {
    for (text, found) in [("NaN", "\"NaN\""), (".nan", "\".nan\""), ("1e309", "\"1e309\""), ("\"\"", "\"\"")]
    {
        refused(
            &container(&format!("{{limits: {{nvidia.com/gpu: {text}}}}}")),
            &format!(
                "6: error: spec.containers[0].resources.limits[nvidia.com/gpu]: {found} is not {}",
                if text == "1e309" {
                    "at most 9223372036854775807"
                } else {
                    "a quantity such as 2, 500m, 1.5, 16Gi or 1e3"
                }
            ),
        );
    }
    refused(
        &container("{limits: {nvidia.com/gpu: -0.5}}"),
        "6: error: spec.containers[0].resources.limits[nvidia.com/gpu]: \"-0.5\" is not zero or more: a quantity must not be negative",
    );
    refused(
        &container("{limits: {nvidia.com/gpu: 0.5}}"),
        "6: error: spec.containers[0].resources.limits[nvidia.com/gpu]: \"0.5\" is not a whole number: devices cannot be split",
    );
    refused(
        &container("{limits: {nvidia.com/gpu: 9223372036854775808}}"),
        "6: error: spec.containers[0].resources.limits[nvidia.com/gpu]: \"9223372036854775808\" is not at most 9223372036854775807",
    );
    assert_eq!(lines(&container("{limits: {nvidia.com/gpu: 9223372036854775807}}")), [""; 0]);
    let zero = "{name: a, resources: {limits: {nvidia.com/gpu: 0}}}";
    let four: Vec<String> =
        ["a", "b", "c", "d"].iter().map(|name| zero.replace("name: a", &format!("name: {name}"))).collect();
    assert_eq!(lines(&pod(&format!("containers: [{}]", four.join(", ")))), [""; 0]);
    let many: Vec<String> = (0..10_000).map(|at| format!("example.com/r{at}: 1")).collect();
    refused(
        &container(&format!("{{limits: {{{}}}}}", many.join(", "))),
        "6: error: spec.containers[0].resources.limits: must name at most 64 resources, found 10000",
    );
    refused(
        &container(&format!("{{limits: {{{}: 1}}}}", "x".repeat(300))),
        &format!(
            "6: error: spec.containers[0].resources.limits.{}...: \"{}...\" is not a resource name such as cpu, memory or nvidia.com/gpu",
            "x".repeat(57),
            "x".repeat(37)
        ),
    );
    refused(
        &named(&"n".repeat(300), ""),
        "3: error: metadata.name: must be at most 253 characters, found 300",
    );
    // What comes after each of them is not touched.
    assert_eq!(object(&container("{limits: {nvidia.com/gpu: 8}}")).kind, Kind::Pod);
}

#[test]
fn nodes_carry_their_allocatable_in_the_spec() {
    let node = object(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {zone: a}}\nspec: {unschedulable: true}\nstatus:\n  capacity: {cpu: 64, memory: 256Gi}\n  allocatable: {cpu: 63500m, memory: 250Gi}\n",
    );
    assert_eq!(node.spec["allocatable"], serde_json::json!({ "cpu": "63500m", "memory": "250Gi" }));
    assert_eq!(node.spec["unschedulable"], true);
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[test]
fn damaged_texts_never_crash_and_never_pass_in_silence() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    let mut texts: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    texts.push("a: &a {b: [1, 2]}\nc: *a\n<<: *a\n--- |\n  x\n...\n? k\n: \"v\\n\"\n".to_owned());
    const PIECES: [&str; 24] = [
        "{", "}", "[", "]", ":", ": ", "- ", "&a ", "*a", "!", "!!str ", "|\n", ">", "\"", "'", "#", "%",
        "---\n", "...\n", "\t", "\n", "<<: ", "\u{feff}", "\u{0}",
    ];
    let rounds =
        std::env::var("PHALANX_DAMAGE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let mut state = 116;
    for round in 0..rounds {
        let mut text: Vec<char> = texts[round % texts.len()].chars().collect();
        for _ in 0..=random(&mut state) % 6 {
            let at = random(&mut state) as usize % (text.len() + 1);
            match random(&mut state) % 3 {
                0 => text.truncate(at.max(1)),
                1 => {
                    let end = (at + random(&mut state) as usize % 8).min(text.len());
                    text.drain(at..end);
                }
                _ => {
                    let piece = PIECES[random(&mut state) as usize % PIECES.len()];
                    text.splice(at..at, piece.chars());
                }
            }
        }
        let text: String = text.into_iter().collect();
        let parsed = parse(&text, "f.yaml");
        let lines = text.lines().count() + 1;
        for diagnostic in &parsed.diagnostics {
            assert!((1..=lines).contains(&diagnostic.line), "{diagnostic}\n{text}");
            assert!(!diagnostic.message.is_empty());
        }
        let has_content =
            text.lines().any(|line| line.starts_with("apiVersion:") || line.starts_with("kind:"));
        assert!(!has_content || !parsed.objects.is_empty() || !parsed.diagnostics.is_empty(), "{text}");
    }
}

#[test]
fn what_steers_a_terminal_is_shown_and_not_printed() {
    refused(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: \"Qu\\n\\ne\\e[2Jue\"\nmetadata: {name: a}\n",
        "2: error: kind: Qu\\n\\ne\\u{1b}[2Jue (scheduling.volcano.sh/v1beta1) needs its operator and a Kubernetes \
         cluster; standalone mode serves Queue, QueuePolicy, PodGroup, Job (batch.volcano.sh/v1alpha1), Pod, PriorityClass, Node",
    );
    assert_eq!(lines(&queue("\"a\\tb\": 1")), ["f.yaml:5: warning: spec.a\\tb: unknown field, ignored"]);
}

fn errors(diagnostics: &[Diagnostic]) -> Vec<String> {
    let errors = diagnostics.iter().filter(|told| told.severity == Severity::Error);
    errors.map(ToString::to_string).collect()
}

/// A queue with as many fields that are unknown. One that is taken has a warning more: its weight is not honoured.
fn queue_with_unknown(number: usize, weight: i32, unknown: usize) -> String {
    let mut fields: String = (0..unknown).map(|at| format!(", field{at}: 1")).collect();
    if weight > 0 {
        // One more, of a field that is known and has no effect.
        fields += ", type: shared";
    }
    format!(
        "---\napiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {{name: q{number}}}\n\
         spec: {{weight: {weight}{fields}}}\n"
    )
}

#[test]
fn warnings_that_are_too_many_are_counted_and_are_no_failure() {
    let text: String = (0..300).map(|number| queue_with_unknown(number, 1, 4)).collect();
    let parsed = parse(&text, "f.yaml");
    assert_eq!((parsed.objects.len(), parsed.diagnostics.len()), (300, 1001));
    assert!(!parsed.has_errors());
    let last = parsed.diagnostics.last().unwrap().to_string();
    assert!(last.ends_with(": warning: 500 more warnings are not shown"), "{last}");
}

#[test]
fn warnings_hide_no_error() {
    let mut text: String = (0..260).map(|number| queue_with_unknown(number, 1, 4)).collect();
    text += &queue_with_unknown(260, -5, 0);
    let parsed = parse(&text, "f.yaml");
    assert_eq!((parsed.objects.len(), parsed.diagnostics.len()), (260, 1001));
    let errors = errors(&parsed.diagnostics);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with("f.yaml:1305: error: spec.weight: must be"), "{errors:?}");
    let last = parsed.diagnostics.last().unwrap().to_string();
    assert!(last.ends_with(": warning: 301 more warnings are not shown"), "{last}");
}

#[test]
fn errors_that_are_too_many_are_counted_as_errors() {
    let text: String = (0..1001).map(|number| queue_with_unknown(number, -5, 1)).collect();
    let parsed = parse(&text, "f.yaml");
    assert_eq!((parsed.objects.len(), parsed.diagnostics.len()), (0, 1001));
    let last = parsed.diagnostics.last().unwrap().to_string();
    assert!(
        last.ends_with(": error: 1 more errors and 1001 warnings are not shown: repair these first"),
        "{last}"
    );
}

#[test]
fn a_long_chain_of_queues_that_ends_in_a_circle_loses_only_the_circle() {
    let item = |number: usize, parent: usize| {
        format!(
            "- {{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {{name: q{number}}}, \
             spec: {{parent: q{parent}}}}}\n"
        )
    };
    let count = 10_000;
    let chain: String =
        (0..count).map(|at| item(at, if at + 1 == count { at - 1 } else { at + 1 })).collect();
    let parsed = parse(&format!("apiVersion: v1\nkind: List\nitems:\n{chain}"), "f.yaml");
    assert_eq!(
        errors(&parsed.diagnostics),
        [
            "f.yaml:10002: error: spec.parent: the parents of queue q9998 lead back to it: name another parent",
            "f.yaml:10003: error: spec.parent: the parents of queue q9999 lead back to it: name another parent",
        ]
    );
    assert_eq!((parsed.objects.len(), parsed.lines.last()), (count - 2, Some(&10_001)));
}
