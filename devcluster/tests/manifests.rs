//! deploy/ on a real API server: all of it is taken, Volcano's objects survive it whole, and what people look at has the
//! columns they know.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use phalanx_devcluster::{Options, Servers};
use serde_json::{Value, json};

async fn get(servers: &Servers, object: &str) -> Value {
    let text = servers.kubectl(&["-n", "manifests", "get", object, "-o", "json"]).await.unwrap();
    serde_json::from_str(&text).unwrap()
}

async fn create(servers: &Servers, version: &str, kind: &str, mut object: Value) -> Result<String, String> {
    object["apiVersion"] = version.into();
    object["kind"] = kind.into();
    object["metadata"]["namespace"] = "manifests".into();
    let answer = servers.kubectl_with_input(&["create", "-f", "-"], &object.to_string()).await;
    answer.map_err(|error| error.to_string())
}

/// Applies everything twice: the second time must find it as it was left.
async fn installed() -> Servers {
    let servers = Servers::start(Options::default()).await.unwrap();
    let folder = Servers::deploy("");
    for _ in 0..2 {
        servers.kubectl(&["apply", "-k", folder.to_str().unwrap()]).await.unwrap();
    }
    let established = ["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"];
    servers.kubectl(&established).await.unwrap();
    servers.kubectl(&["create", "namespace", "manifests"]).await.unwrap();
    servers
}

#[tokio::test(flavor = "multi_thread")]
async fn what_volcano_takes_is_taken_and_kept() {
    let servers = installed().await;
    let scheduling = "scheduling.volcano.sh/v1beta1";

    let queue = json!({
        "capability": {"cpu": 4, "memory": "64Gi", "nvidia.com/gpu": "8"},
        "guarantee": {"resource": {"cpu": "500m"}},
        "deserved": {"cpu": 2},
        "weight": 3, "reclaimable": false, "priority": 3, "parent": "root", "dequeueStrategy": "fifo", "type": "t",
        "affinity": {"nodeGroupAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ["a"]}},
        "extendClusters": [{"name": "x", "weight": 2, "capacity": {"cpu": 1}}],
    });
    let object = json!({"metadata": {"name": "whole"}, "spec": queue});
    create(&servers, scheduling, "Queue", object).await.unwrap();
    assert_eq!(get(&servers, "queue/whole").await["spec"], queue);
    // Nothing, and nulls as some clients write them, are the defaults.
    for (name, spec) in [("bare", None), ("nulls", Some(json!({"weight": null, "reclaimable": null})))] {
        let mut object = json!({"metadata": {"name": name}});
        if let Some(spec) = spec {
            object["spec"] = spec;
        }
        create(&servers, scheduling, "Queue", object).await.unwrap();
        let stored = get(&servers, &format!("queue/{name}")).await;
        assert_eq!(stored["spec"], json!({"weight": 1, "reclaimable": true}), "{name}");
    }

    let group = json!({
        "minMember": 4, "minTaskMember": {"a": 1}, "minResources": {"cpu": 4}, "queue": "whole",
        "priorityClassName": "p", "preemptable": false,
        "networkTopology": {"mode": "hard", "highestTierAllowed": 2},
        "subGroupPolicy": [{
            "name": "s", "subGroupSize": 2, "minSubGroups": 1, "matchLabelKeys": ["x"],
            "labelSelector": {"matchLabels": {"a": "b"}},
            "networkTopology": {"mode": "soft", "highestTierName": "rack"},
        }],
    });
    // Operators write the status with the object: there is no subresource for it.
    let status = json!({
        "phase": "Inqueue", "running": 2, "succeeded": 0, "failed": 0,
        "conditions": [{
            "type": "Unschedulable", "status": "True", "transitionID": "i", "reason": "NotEnoughResources",
            "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    });
    let object = json!({"metadata": {"name": "whole"}, "spec": group, "status": status});
    create(&servers, scheduling, "PodGroup", object).await.unwrap();
    let stored = get(&servers, "pg/whole").await;
    assert_eq!((&stored["spec"], &stored["status"]), (&group, &status));

    let columns = servers.kubectl(&["get", "pg", "-A"]).await.unwrap();
    let columns: Vec<Vec<&str>> = columns.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(columns[0], ["NAMESPACE", "NAME", "STATUS", "MINMEMBER", "RUNNINGS", "AGE"]);
    assert_eq!(columns[1][..5], ["manifests", "whole", "Inqueue", "4", "2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_keep_their_templates_and_wrong_values_are_named() {
    let servers = installed().await;
    let batch = "batch.volcano.sh/v1alpha1";
    let template = json!({
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "schedulingGates": [{"name": "g"}],
            "containers": [{"name": "c", "image": "i", "a-field-of-tomorrow": {"x": 1}}],
        },
    });
    let job = json!({
        "schedulerName": "volcano", "minAvailable": 2, "queue": "default", "maxRetry": 3, "minSuccess": 1,
        "priorityClassName": "p", "runningEstimate": "1h30m", "ttlSecondsAfterFinished": 10,
        "plugins": {"env": [], "svc": ["--publish-not-ready-addresses=true"]},
        "policies": [{"event": "PodEvicted", "action": "RestartJob", "timeout": "10s"}],
        "volumes": [{"mountPath": "/a", "volumeClaim": {"accessModes": ["ReadWriteOnce"]}}],
        "networkTopology": {"mode": "soft", "highestTierAllowed": 1},
        "tasks": [{
            "name": "t", "replicas": 2, "minAvailable": 1, "maxRetry": 1, "topologyPolicy": "single-numa-node",
            "policies": [{"events": ["PodFailed"], "action": "AbortJob"}, {"exitCode": 3, "action": "RestartTask"}],
            "dependsOn": {"name": ["u"], "iteration": "any"},
            "partitionPolicy": {"totalPartitions": 2, "partitionSize": 1, "minPartitions": 1,
                "networkTopology": {"mode": "hard", "highestTierName": "rack"}},
            "template": template,
        }],
    });
    create(&servers, batch, "Job", json!({"metadata": {"name": "whole"}, "spec": job})).await.unwrap();
    assert_eq!(get(&servers, "vcjob/whole").await["spec"], job);

    let plan = json!({
        "term": 7, "gangs": 1, "a_field_of_tomorrow": [1],
        "plans": {"a/b": {"uid": "u", "term": 7, "deadline": 1, "nodes": ["n"], "pods": ["p 0 - =u -"], "more": {}}},
    });
    let object = json!({"metadata": {"name": "whole"}, "spec": plan});
    create(&servers, "phalanx.dev/v1alpha1", "GangPlan", object).await.unwrap();
    assert_eq!(get(&servers, "gplan/whole").await["spec"], plan);
    // Who wrote it last is not noted for each field of each gang.
    let all = ["-n", "manifests", "get", "gplan/whole", "-o", "json", "--show-managed-fields"];
    let all: Value = serde_json::from_str(&servers.kubectl(&all).await.unwrap()).unwrap();
    assert_eq!(all["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:plans"], json!({}), "{all}");

    // What is below, equal, named on one side only, or null contradicts nothing.
    for (name, spec) in [
        (
            "equal",
            json!({"capability": {"cpu": "2", "nvidia.com/gpu": 8}, "deserved": {"cpu": "2000m", "nvidia.com/gpu": 8}}),
        ),
        (
            "one-side",
            json!({"capability": {"cpu": 4}, "deserved": {"memory": "1Gi"}, "guarantee": {"resource": {"pods": 3}}}),
        ),
        (
            "null",
            json!({"capability": null, "deserved": {"cpu": 1}, "guarantee": {"resource": null}, "parent": null}),
        ),
        ("two-ways", json!({"capability": {"cpu": "2"}, "deserved": {"cpu": 1}})),
    ] {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        create(&servers, "scheduling.volcano.sh/v1beta1", "Queue", object).await.unwrap();
    }
    for (version, kind, spec, named) in [
        ("scheduling.volcano.sh/v1beta1", "Queue", json!({"weight": 0}), "spec.weight"),
        (
            "scheduling.volcano.sh/v1beta1",
            "Queue",
            json!({"dequeueStrategy": "lifo"}),
            "spec.dequeueStrategy",
        ),
        (
            "scheduling.volcano.sh/v1beta1",
            "Queue",
            json!({"capability": {"cpu": "x"}}),
            "spec.capability.cpu",
        ),
        (
            "scheduling.volcano.sh/v1beta1",
            "Queue",
            json!({"parent": "wrong"}),
            "spec.parent: a queue cannot be above itself",
        ),
        (
            "scheduling.volcano.sh/v1beta1",
            "Queue",
            json!({"capability": {"nvidia.com/gpu": 8}, "deserved": {"nvidia.com/gpu": 9}}),
            "spec.deserved: nvidia.com/gpu must be at most that of spec.capability",
        ),
        (
            "scheduling.volcano.sh/v1beta1",
            "Queue",
            json!({"deserved": {"memory": "1Gi"}, "guarantee": {"resource": {"memory": "1025Mi"}}}),
            "spec.guarantee: memory must be at most that of spec.deserved",
        ),
        ("scheduling.volcano.sh/v1beta1", "PodGroup", json!({"minMember": -1}), "spec.minMember"),
        (batch, "Job", json!({"minSuccess": 0}), "spec.minSuccess"),
        ("phalanx.dev/v1alpha1", "QueuePolicy", json!({"holdTime": "5m"}), "spec.holdTime"),
        ("phalanx.dev/v1alpha1", "QueuePolicy", json!({"namespaces": "team"}), "spec.namespaces"),
        ("phalanx.dev/v1alpha1", "QueuePolicy", json!({"holdAfter": "5 minutes"}), "spec.holdAfter"),
    ] {
        let object = json!({"metadata": {"name": "wrong"}, "spec": spec});
        let refusal = create(&servers, version, kind, object).await.unwrap_err();
        assert!(refusal.contains(named), "{kind}: {refusal}");
    }
    for component in ["nvidia-runtime-class", "host-driver"] {
        let folder = tempfile::tempdir_in(Servers::deploy("..")).unwrap();
        let text = format!("resources: [../deploy/phalanx]\ncomponents: [../deploy/{component}]\n");
        std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
        let apply = ["apply", "--dry-run=server", "-k", folder.path().to_str().unwrap()];
        let applied = servers.kubectl(&apply).await.unwrap();
        assert!(applied.contains("daemonset.apps/phalanx-agent configured"), "{component}: {applied}");
    }
}
