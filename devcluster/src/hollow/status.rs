//! The status of a pod as kubelets write it.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// Now, as Kubernetes writes times.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn condition(kind: &str, good: bool, reason: &str) -> Value {
    json!({"type": kind, "status": if good { "True" } else { "False" }, "reason": reason, "lastTransitionTime": now()})
}

fn patch(pod: &Pod, status: Value) -> Value {
    // The UID makes it a precondition: a later pod of the same name keeps its own status.
    json!({"metadata": {"uid": pod.metadata.uid}, "status": status})
}

fn containers(pod: &Pod, ready: bool, state: &Value) -> Vec<Value> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .map(|container| {
            json!({
                "name": container.name, "image": container.image, "imageID": "", "ready": ready, "started": ready,
                "restartCount": 0, "state": state,
            })
        })
        .collect()
}

/// All containers run.
pub(crate) fn running(pod: &Pod, address: Option<&str>) -> Value {
    let mut status = json!({
        "phase": "Running",
        "startTime": now(),
        "conditions": [
            condition("Initialized", true, ""), condition("Ready", true, ""), condition("ContainersReady", true, ""),
        ],
        "containerStatuses": containers(pod, true, &json!({"running": {"startedAt": now()}})),
    });
    if let Some(address) = address {
        status["podIP"] = address.into();
        status["podIPs"] = json!([{"ip": address}]);
        status["hostIP"] = address.into();
        status["hostIPs"] = json!([{"ip": address}]);
    }
    patch(pod, status)
}

/// All containers have ended, with this exit code.
pub(crate) fn ended(pod: &Pod, exit_code: i32) -> Value {
    let (phase, reason) = if exit_code == 0 { ("Succeeded", "Completed") } else { ("Failed", "Error") };
    let unready = if exit_code == 0 { "PodCompleted" } else { "PodFailed" };
    let state = json!({"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": now()}});
    patch(
        pod,
        json!({
            "phase": phase,
            "conditions": [condition("Ready", false, unready), condition("ContainersReady", false, unready)],
            "containerStatuses": containers(pod, false, &state),
        }),
    )
}

/// The kubelet cannot give the pod what it asks for: it is failed for good.
pub(crate) fn refused(pod: &Pod, resource: &str, asked: u64, free: u64) -> Value {
    patch(
        pod,
        json!({
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": format!(
                "Pod was rejected: Allocate failed due to requested number of devices unavailable for {resource}. \
                 Requested: {asked}, Available: {free}, which is unexpected"
            ),
        }),
    )
}
