//! Tokens of ServiceAccounts, as the API server gives them to pods.

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};

use crate::error::Error;

/// What a token is for.
#[derive(Clone, Debug, Default)]
pub struct TokenOptions {
    /// Whom it is shown to; empty = the API server itself.
    pub audience: String,
    /// The pod it is bound to, as a projected token is; it and its node then stand in the token.
    pub pod: Option<String>,
    /// How long it is good, at least 600 s; `None` = an hour.
    pub expires_in_s: Option<i64>,
}

/// Asks for a token of a ServiceAccount.
///
/// # Errors
/// The account or the pod is not there.
pub async fn token(
    admin: &Client,
    namespace: &str,
    account: &str,
    options: &TokenOptions,
) -> Result<String, Error> {
    let failed = || format!("token of ServiceAccount {namespace}/{account}");
    let bound = match &options.pod {
        None => None,
        Some(name) => {
            let pods: Api<Pod> = Api::namespaced(admin.clone(), namespace);
            let pod = pods.get(name).await.map_err(Error::api(failed()))?;
            Some(reference(&pod))
        }
    };
    request(admin, namespace, account, options, bound).await
}

/// The same, for a pod that is known already.
pub(crate) async fn request(
    admin: &Client,
    namespace: &str,
    account: &str,
    options: &TokenOptions,
    bound: Option<BoundObjectReference>,
) -> Result<String, Error> {
    let failed = || format!("token of ServiceAccount {namespace}/{account}");
    let audiences = Some(options.audience.clone()).filter(|audience| !audience.is_empty());
    let spec = TokenRequestSpec {
        audiences: Some(audiences.into_iter().collect()),
        bound_object_ref: bound,
        expiration_seconds: Some(options.expires_in_s.unwrap_or(3600)),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest { metadata: Default::default(), spec: Some(spec), status: None };
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
    let answer = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .map_err(Error::api(failed()))?;
    Ok(answer.status.and_then(|status| status.token).unwrap_or_default())
}

/// A pod as what a token is bound to.
pub(crate) fn reference(pod: &Pod) -> BoundObjectReference {
    BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(pod.name_any()),
        uid: pod.uid(),
    }
}
