//! Where people's questions go: the address of the leader behind the Service `phalanx-admin`.
//!
//! The Service has no selector, because only the leader can answer. The API server's service proxy takes its address
//! from EndpointSlices (seen in 1.37) or from Endpoints (seen in 1.34), and in both only from an entry that refers to
//! a Pod of the same namespace whose status holds the same address, which must not be a loopback one. So both are
//! written, each names the leader's pod, and the Endpoints ask not to be copied into a slice. What a former leader has
//! written is overwritten; where its pod is gone the proxy gives nobody's address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort as OldPort, EndpointSubset, Endpoints, ObjectReference,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::timeout;

/// The Service, and its Endpoints.
pub const SERVICE: &str = "phalanx-admin";
/// Name of the Service's only port.
pub const PORT: &str = "admin";
/// Longest time of one request.
const REQUEST: Duration = Duration::from_secs(10);

/// The leader's admin interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminAddress {
    /// Name of the leader's pod.
    pub pod: String,
    /// Its address, as in the pod's status.
    pub ip: IpAddr,
    /// Port of its admin interface.
    pub port: u16,
}

/// Why the address is not published. The coordinator leads all the same; people's questions do not reach it.
#[derive(Debug, Error)]
pub enum PublishError {
    /// Not an address that anybody else can reach.
    #[error(
        "{0} is not an address for the Service phalanx-admin: the API server takes no loopback and no unspecified one; \
         give the pod's own with POD_IP"
    )]
    Address(IpAddr),
    /// The API server said no.
    #[error("{object}: {cause}; `phalanx why` with a kubeconfig does not work until this is written")]
    Refused {
        /// What was written.
        object: String,
        /// What the API server said.
        cause: String,
    },
}

/// Makes the Service lead to this coordinator.
///
/// # Errors
/// The address cannot be one of a Service, or the API server refuses or does not answer.
pub async fn publish(client: &Client, namespace: &str, address: &AdminAddress) -> Result<(), PublishError> {
    if address.ip.is_loopback() || address.ip.is_unspecified() {
        return Err(PublishError::Address(address.ip));
    }
    put(client, namespace, &slice(namespace, address)).await?;
    put(client, namespace, &endpoints(namespace, address)).await
}

/// Creates it, or writes it over what is there.
async fn put<K>(client: &Client, namespace: &str, wanted: &K) -> Result<(), PublishError>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let name = wanted.meta().name.clone().unwrap_or_default();
    let refused = |cause: String| PublishError::Refused {
        object: format!("{} {namespace}/{name}", K::kind(&())),
        cause,
    };
    let writing = async {
        match api.create(&PostParams::default(), wanted).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                api.patch(&name, &PatchParams::default(), &Patch::Merge(wanted)).await
            }
            other => other,
        }
    };
    match timeout(REQUEST, writing).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(refused(error.to_string())),
        Err(_) => Err(refused(format!("no answer within {} s", REQUEST.as_secs()))),
    }
}

fn pod_reference(namespace: &str, address: &AdminAddress) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        name: Some(address.pod.clone()),
        namespace: Some(namespace.to_owned()),
        ..ObjectReference::default()
    }
}

fn metadata(name: &str, namespace: &str, labels: &[(&str, &str)]) -> ObjectMeta {
    let labels: BTreeMap<String, String> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels),
        ..ObjectMeta::default()
    }
}

/// One slice for each kind of address: the kind of a slice cannot be changed.
fn slice(namespace: &str, address: &AdminAddress) -> EndpointSlice {
    let (name, family) = match address.ip {
        IpAddr::V4(_) => ("phalanx-admin-leader", "IPv4"),
        IpAddr::V6(_) => ("phalanx-admin-leader-ipv6", "IPv6"),
    };
    let labels =
        [("kubernetes.io/service-name", SERVICE), ("endpointslice.kubernetes.io/managed-by", "phalanx.dev")];
    EndpointSlice {
        metadata: metadata(name, namespace, &labels),
        address_type: family.to_owned(),
        endpoints: Some(vec![Endpoint {
            addresses: vec![address.ip.to_string()],
            conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
            target_ref: Some(pod_reference(namespace, address)),
            ..Endpoint::default()
        }]),
        ports: Some(vec![EndpointPort {
            name: Some(PORT.to_owned()),
            port: Some(i32::from(address.port)),
            protocol: Some("TCP".to_owned()),
            ..EndpointPort::default()
        }]),
    }
}

fn endpoints(namespace: &str, address: &AdminAddress) -> Endpoints {
    Endpoints {
        metadata: metadata(SERVICE, namespace, &[("endpointslice.kubernetes.io/skip-mirror", "true")]),
        subsets: Some(vec![EndpointSubset {
            addresses: Some(vec![EndpointAddress {
                ip: address.ip.to_string(),
                target_ref: Some(pod_reference(namespace, address)),
                ..EndpointAddress::default()
            }]),
            not_ready_addresses: None,
            ports: Some(vec![OldPort {
                name: Some(PORT.to_owned()),
                port: i32::from(address.port),
                protocol: Some("TCP".to_owned()),
                ..OldPort::default()
            }]),
        }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ip: &str) -> AdminAddress {
        AdminAddress { pod: "phalanx-coordinator-0".to_owned(), ip: ip.parse().unwrap(), port: 7411 }
    }

    #[test]
    fn both_objects_name_the_pod_and_the_port() {
        let slice = serde_json::to_value(slice("phalanx-system", &address("10.1.2.3"))).unwrap();
        assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "phalanx-admin");
        assert_eq!(slice["addressType"], "IPv4");
        assert_eq!(slice["endpoints"][0]["addresses"][0], "10.1.2.3");
        assert_eq!(slice["endpoints"][0]["targetRef"]["name"], "phalanx-coordinator-0");
        assert_eq!(slice["endpoints"][0]["targetRef"]["namespace"], "phalanx-system");
        assert_eq!((&slice["ports"][0]["name"], &slice["ports"][0]["port"]), (&"admin".into(), &7411.into()));
        let endpoints = serde_json::to_value(endpoints("phalanx-system", &address("10.1.2.3"))).unwrap();
        assert_eq!(endpoints["metadata"]["labels"]["endpointslice.kubernetes.io/skip-mirror"], "true");
        assert_eq!(endpoints["subsets"][0]["addresses"][0]["targetRef"]["kind"], "Pod");
        assert_eq!(endpoints["subsets"][0]["ports"][0]["port"], 7411);
    }

    #[test]
    fn the_other_family_has_a_slice_of_its_own() {
        let slice = slice("phalanx-system", &address("fd00::2"));
        assert_eq!(
            (slice.address_type.as_str(), slice.metadata.name.as_deref()),
            ("IPv6", Some("phalanx-admin-leader-ipv6"))
        );
    }

    #[tokio::test]
    async fn loopback_is_refused_before_anybody_is_asked() {
        let nobody = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("must not be asked"))
        });
        let client = Client::new(nobody, "phalanx-system");
        for ip in ["127.0.0.1", "::1", "0.0.0.0"] {
            let error = publish(&client, "phalanx-system", &address(ip)).await.unwrap_err();
            assert!(error.to_string().contains("POD_IP"), "{error}");
        }
    }
}
