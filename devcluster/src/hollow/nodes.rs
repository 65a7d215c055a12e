//! Node objects as a kubelet would register them.

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, PostParams};
use phalanx_common::ids::NodeName;
use serde_json::json;

use super::{AT_ONCE, HollowError};
use crate::hollow::status::now;

/// What a hollow node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeShape {
    /// GPUs, `nvidia.com/gpu`.
    pub gpus: u32,
    /// Product name as NVML gives it.
    pub gpu_model: String,
    /// Logical CPUs.
    pub cpus: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Devices of other kinds that it lists, by resource name.
    pub devices: Vec<(String, u64)>,
    /// Most pods.
    pub pods: u32,
    /// Labels beside the usual ones.
    pub labels: Vec<(String, String)>,
}

impl Default for NodeShape {
    fn default() -> Self {
        Self {
            gpus: 8,
            gpu_model: "NVIDIA H100 80GB HBM3".to_owned(),
            cpus: 192,
            memory_bytes: 2 << 40,
            devices: Vec::new(),
            pods: 110,
            labels: Vec::new(),
        }
    }
}

/// `PREFIX-00017`.
#[must_use]
pub fn node_name(prefix: &str, number: usize) -> NodeName {
    NodeName::from(format!("{prefix}-{number:05}"))
}

/// A Node that is ready.
#[must_use]
pub fn node_object(name: &NodeName, shape: &NodeShape) -> serde_json::Value {
    let mut labels = serde_json::Map::new();
    let usual = [
        ("kubernetes.io/hostname", name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("phalanx.dev/hollow", "true"),
    ];
    let own = shape.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    labels.extend(usual.into_iter().chain(own).map(|(key, value)| (key.to_owned(), value.into())));
    if shape.gpus > 0 {
        labels.insert("nvidia.com/gpu.product".to_owned(), shape.gpu_model.replace(' ', "-").into());
    }
    let mut resources = serde_json::Map::new();
    resources.insert("cpu".to_owned(), shape.cpus.to_string().into());
    resources.insert("memory".to_owned(), format!("{}Ki", shape.memory_bytes >> 10).into());
    resources.insert("pods".to_owned(), shape.pods.to_string().into());
    if shape.gpus > 0 {
        resources.insert("nvidia.com/gpu".to_owned(), shape.gpus.to_string().into());
    }
    let devices = shape.devices.iter();
    resources.extend(devices.map(|(name, amount)| (name.clone(), amount.to_string().into())));
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": "", "lastHeartbeatTime": now(),
               "lastTransitionTime": now()})
    };
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name.as_str(), "labels": labels},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [
                condition("Ready", "True", "KubeletReady"),
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            ],
            "nodeInfo": {"machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "hollow",
                         "containerRuntimeVersion": "hollow://1", "kubeletVersion": "v1.37.2",
                         "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64"},
        },
    })
}

/// Makes the Node objects that are not there.
///
/// # Errors
/// The API server refuses one.
pub async fn create_nodes(client: &Client, names: &[NodeName], shape: &NodeShape) -> Result<(), HollowError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let work: Vec<_> = names.iter().map(|name| create(&nodes, name, shape)).collect();
    let mut made = futures::stream::iter(work).buffer_unordered(AT_ONCE);
    while let Some(result) = made.next().await {
        result?;
    }
    Ok(())
}

async fn create(nodes: &Api<Node>, name: &NodeName, shape: &NodeShape) -> Result<(), HollowError> {
    let node = serde_json::from_value(node_object(name, shape))
        .map_err(|error| HollowError::api(format!("node {name}"))(kube::Error::SerdeError(error)))?;
    match nodes.create(&PostParams::default(), &node).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(HollowError::api(format!("node {name}"))(error)),
    }
}
