//! Asks the API server about tokens, a bounded number of them at a time, and remembers what it said.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::{Api, Client};
use ring::digest::{SHA256, digest};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::claims::Claims;
use super::{AGENT_DAEMON_SET, AGENT_SERVICE_ACCOUNT, AUDIENCE, Speaker, TokenRefusal};

/// Tokens that are looked at at once.
const AT_ONCE: usize = 16;
/// Tokens that are looked at or wait for it. Who sends more of them than the API server is asked about must not fill the
/// memory; the agents of a large cluster that come all at once find room.
const WAITING: usize = 16_384;
/// Time between the beginnings of two reviews: ten thousand agents that come at once must not keep the API server from
/// its other work.
const PACE: Duration = Duration::from_millis(4);
/// An answer of the API server that takes longer is none. Three are asked for a token within the time an agent has for
/// its Hello.
const ANSWER: Duration = Duration::from_millis(1_500);
/// A token that was taken is asked about again after this time: it may be good for long still, and its pod is gone.
const TAKEN: Duration = Duration::from_secs(300);
/// A token that was refused is not asked about again for this time: who is turned away comes back at once.
const REFUSED: Duration = Duration::from_secs(10);
/// The UID of our DaemonSet is asked again after this time.
const DAEMON_SET: Duration = Duration::from_secs(30);
/// What is remembered; more than agents of the largest cluster.
const REMEMBERED: usize = 65_536;

/// Names of what a review tells beside the user.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

/// What was found about a token, and until when that holds.
type Found = (Result<Speaker, TokenRefusal>, SystemTime);

/// Looks at tokens. Clones share what they know.
#[derive(Clone)]
pub struct Reviewer(Arc<Shared>);

struct Shared {
    /// The agents' ServiceAccount, as a user.
    user: String,
    reviews: Api<TokenReview>,
    pods: Api<Pod>,
    nodes: Api<Node>,
    daemon_sets: Api<DaemonSet>,
    waiting: Arc<Semaphore>,
    places: Semaphore,
    next_start: Mutex<Instant>,
    /// By the digest of the whole token: what it says of itself anybody can write.
    found: Mutex<BTreeMap<[u8; 32], Found>>,
    daemon_set: Mutex<Option<(String, Instant)>>,
}

impl std::fmt::Debug for Reviewer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Reviewer(..)")
    }
}

/// What the API server says of a token that is good.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    pod: String,
    pod_uid: String,
    node: String,
    node_uid: String,
}

impl Reviewer {
    /// Asks through this client; the agents run in this namespace. Needs the verbs: create tokenreviews, get pods and
    /// daemonsets of the namespace, get nodes.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self(Arc::new(Shared {
            user: format!("system:serviceaccount:{namespace}:{AGENT_SERVICE_ACCOUNT}"),
            reviews: Api::all(client.clone()),
            pods: Api::namespaced(client.clone(), namespace),
            nodes: Api::all(client.clone()),
            daemon_sets: Api::namespaced(client, namespace),
            waiting: Arc::new(Semaphore::new(WAITING)),
            places: Semaphore::new(AT_ONCE),
            next_start: Mutex::new(Instant::now()),
            found: Mutex::default(),
            daemon_set: Mutex::default(),
        }))
    }

    /// Whom a token lets speak.
    ///
    /// # Errors
    /// Nobody, and why; `TokenRefusal::is_passing` tells where that may change.
    pub async fn review(&self, token: &str) -> Result<Speaker, TokenRefusal> {
        let claims = Claims::read(token)?;
        claims.check(SystemTime::now())?;
        let key = key(token);
        if let Some(found) = self.0.remembered(&key) {
            return found;
        }
        let waiting = Arc::clone(&self.0.waiting).try_acquire_owned();
        let waiting = waiting.map_err(|_| unanswered("the review", "too many tokens wait for it"))?;
        // A task of its own: whoever asked may give up, and what is found helps when it asks again.
        let (shared, token) = (Arc::clone(&self.0), token.to_owned());
        let task = tokio::spawn(async move {
            let found = shared.ask(&token, &claims).await;
            shared.remember(key, found.clone(), claims.expires);
            drop(waiting);
            found
        });
        task.await.unwrap_or_else(|error| {
            Err(TokenRefusal::Unanswered { what: "the review", cause: error.to_string() })
        })
    }
}

impl Shared {
    fn remembered(&self, key: &[u8; 32]) -> Option<Result<Speaker, TokenRefusal>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let (outcome, until) = found.get(key)?;
        (SystemTime::now() < *until).then(|| outcome.clone())
    }

    fn remember(&self, key: [u8; 32], outcome: Result<Speaker, TokenRefusal>, expires: SystemTime) {
        let now = SystemTime::now();
        let Some(until) = holds_until(&outcome, expires, now) else { return };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.len() >= REMEMBERED {
            found.retain(|_, (_, until)| now < *until);
        }
        if found.len() < REMEMBERED {
            found.insert(key, (outcome, until));
        }
    }

    async fn ask(&self, token: &str, claims: &Claims) -> Result<Speaker, TokenRefusal> {
        let _place = self.places.acquire().await.map_err(|error| unanswered("its turn", error))?;
        let start = {
            let mut next = self.next_start.lock().unwrap_or_else(PoisonError::into_inner);
            let start = (*next).max(Instant::now());
            *next = start + PACE;
            start
        };
        tokio::time::sleep_until(start).await;
        let spec = TokenReviewSpec { audiences: Some(vec![AUDIENCE.to_owned()]), token: token.to_owned() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let parameters = PostParams::default();
        let review = answer("TokenReview", self.reviews.create(&parameters, &review)).await?;
        let bound = judge(review.status.unwrap_or_default(), &self.user)?;
        let pod = answer("get pod", self.pods.get_opt(&bound.pod)).await?;
        let node = answer("get node", self.nodes.get_opt(&bound.node)).await?;
        let ours = self.daemon_set_uid().await?;
        check_pod(&bound, pod.as_ref(), ours.as_deref())?;
        check_node(&bound, node.as_ref())?;
        let Bound { pod, pod_uid, node, node_uid } = bound;
        Ok(Speaker { node, node_uid, pod, pod_uid, expires: claims.expires })
    }

    /// UID of our DaemonSet; `None` where there is none.
    async fn daemon_set_uid(&self) -> Result<Option<String>, TokenRefusal> {
        let known = self.daemon_set.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((uid, at)) = known
            && at.elapsed() < DAEMON_SET
        {
            return Ok(Some(uid));
        }
        let found = answer("get daemonset", self.daemon_sets.get_opt(AGENT_DAEMON_SET)).await?;
        let uid = found.and_then(|found| found.metadata.uid);
        let known = uid.clone().map(|uid| (uid, Instant::now()));
        *self.daemon_set.lock().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(uid)
    }
}

/// How long what was found now about a token that ends then may be given again; `None` where it may not.
fn holds_until(
    outcome: &Result<Speaker, TokenRefusal>,
    expires: SystemTime,
    now: SystemTime,
) -> Option<SystemTime> {
    match outcome {
        Ok(_) => Some(expires.min(now + TAKEN)),
        Err(refusal) => (!refusal.is_passing()).then(|| now + REFUSED),
    }
}

fn key(token: &str) -> [u8; 32] {
    let mut key = [0; 32];
    key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    key
}

fn unanswered(what: &'static str, cause: impl ToString) -> TokenRefusal {
    TokenRefusal::Unanswered { what, cause: cause.to_string() }
}

async fn answer<T>(
    what: &'static str,
    asking: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, TokenRefusal> {
    match timeout(ANSWER, asking).await {
        Ok(answered) => answered.map_err(|error| unanswered(what, error)),
        Err(_) => Err(unanswered(what, format_args!("no answer within {} ms", ANSWER.as_millis()))),
    }
}

/// What a review says.
fn judge(status: TokenReviewStatus, wanted: &str) -> Result<Bound, TokenRefusal> {
    if status.authenticated != Some(true) {
        let reason = status.error.unwrap_or_else(|| "it does not say why".to_owned());
        return Err(TokenRefusal::NotAuthenticated(reason));
    }
    // An API server that does not know of audiences would take every token.
    let audiences = status.audiences.unwrap_or_default();
    if !audiences.iter().any(|audience| audience == AUDIENCE) {
        return Err(TokenRefusal::Audience(audiences.join(", ")));
    }
    let user = status.user.unwrap_or_default();
    let name = user.username.unwrap_or_default();
    if name != wanted {
        return Err(TokenRefusal::User { found: name, wanted: wanted.to_owned() });
    }
    let mut extra = user.extra.unwrap_or_default();
    let mut take = |key: &'static str| {
        let value = extra.remove(key).and_then(|values| values.into_iter().next());
        value.filter(|value| !value.is_empty()).ok_or(TokenRefusal::Unbound(key))
    };
    Ok(Bound {
        pod: take(POD_NAME)?,
        pod_uid: take(POD_UID)?,
        node: take(NODE_NAME)?,
        node_uid: take(NODE_UID)?,
    })
}

/// Whether the token's pod is the agent of the token's node.
fn check_pod(bound: &Bound, pod: Option<&Pod>, ours: Option<&str>) -> Result<(), TokenRefusal> {
    let name = || bound.pod.clone();
    let Some(pod) = pod else { return Err(TokenRefusal::PodGone(name())) };
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    if uid != bound.pod_uid {
        let (token, now) = (bound.pod_uid.clone(), uid.to_owned());
        return Err(TokenRefusal::PodReplaced { pod: name(), token, now });
    }
    let Some(ours) = ours else {
        return Err(TokenRefusal::NotOurs { pod: name(), owner: "there is no such DaemonSet".to_owned() });
    };
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true));
    match owner {
        Some(owner) if owner.uid == ours && owner.kind == "DaemonSet" => {}
        Some(owner) => {
            let owner = format!("its owner is {} {} of UID {}", owner.kind, owner.name, owner.uid);
            return Err(TokenRefusal::NotOurs { pod: name(), owner });
        }
        None => {
            return Err(TokenRefusal::NotOurs { pod: name(), owner: "it has no owner".to_owned() });
        }
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if node != bound.node {
        let (token, now) = (bound.node.clone(), node.to_owned());
        return Err(TokenRefusal::PodElsewhere { pod: name(), token, now });
    }
    Ok(())
}

/// Whether the token's node is the one that has this name now.
fn check_node(bound: &Bound, node: Option<&Node>) -> Result<(), TokenRefusal> {
    let (pod, name) = (bound.pod.clone(), bound.node.clone());
    let Some(node) = node else { return Err(TokenRefusal::NodeGone { pod, node: name }) };
    let uid = node.metadata.uid.clone().unwrap_or_default();
    if uid == bound.node_uid {
        return Ok(());
    }
    Err(TokenRefusal::NodeReplaced { pod, node: name, token: bound.node_uid.clone(), now: uid })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const USER: &str = "system:serviceaccount:phalanx-system:phalanx-agent";

    fn bound() -> Bound {
        let text = str::to_owned;
        Bound { pod: text("agent-x"), pod_uid: text("p1"), node: text("n1"), node_uid: text("u1") }
    }

    fn status(change: impl FnOnce(&mut serde_json::Value)) -> TokenReviewStatus {
        let mut value = json!({
            "authenticated": true, "audiences": ["phalanx"],
            "user": {"username": USER, "extra": {
                POD_NAME: ["agent-x"], POD_UID: ["p1"], NODE_NAME: ["n1"], NODE_UID: ["u1"],
            }},
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_review_is_taken_whole_or_not_at_all() {
        assert_eq!(judge(status(|_| {}), USER), Ok(bound()));
        let refusal =
            |change: &dyn Fn(&mut serde_json::Value)| judge(status(change), USER).unwrap_err().to_string();
        let text = refusal(&|value| value["authenticated"] = json!(false));
        assert_eq!(text, "the API server does not take the token: it does not say why");
        let text = refusal(&|value| value["audiences"] = json!(["https://kubernetes.default.svc"]));
        assert!(text.starts_with("token is for audience https://kubernetes.default.svc, not for"), "{text}");
        let text = refusal(&|value| value["user"]["username"] = json!("system:admin"));
        assert!(text.starts_with("token is of system:admin, not of system:serviceaccount:"), "{text}");
        for key in [POD_NAME, POD_UID, NODE_NAME, NODE_UID] {
            let text = refusal(&|value| value["user"]["extra"][key] = json!([]));
            assert!(text.starts_with(&format!("token does not say {key}")), "{text}");
        }
    }

    #[test]
    fn what_was_found_is_given_again_for_a_while_and_never_after_the_tokens_end() {
        let Bound { pod, pod_uid, node, node_uid } = bound();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let (soon, late) = (now + Duration::from_secs(7), now + Duration::from_secs(3_600));
        let taken = Ok(Speaker { node, node_uid, pod, pod_uid, expires: late });
        assert_eq!(holds_until(&taken, soon, now), Some(soon));
        // The pod may be deleted long before its token ends.
        assert_eq!(holds_until(&taken, late, now), Some(now + TAKEN));
        let gone = Err(TokenRefusal::PodGone("agent-x".to_owned()));
        assert_eq!(holds_until(&gone, late, now), Some(now + REFUSED));
        assert_eq!(holds_until(&Err(unanswered("get pod", "no")), late, now), None);
    }

    #[test]
    fn a_pod_must_be_the_agent_of_the_node() {
        let pod = |uid: &str, owner: serde_json::Value, node: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "agent-x", "uid": uid, "ownerReferences": owner},
                "spec": {"nodeName": node, "containers": []},
            }))
            .unwrap()
        };
        let owner = |kind: &str, uid: &str, controller: bool| json!([{"apiVersion": "apps/v1", "kind": kind, "name": "phalanx-agent", "uid": uid, "controller": controller}]);
        let good = pod("p1", owner("DaemonSet", "d1", true), "n1");
        assert_eq!(check_pod(&bound(), Some(&good), Some("d1")), Ok(()));
        assert_eq!(check_pod(&bound(), None, Some("d1")), Err(TokenRefusal::PodGone("agent-x".to_owned())));
        let wrong = |pod: &Pod, ours| check_pod(&bound(), Some(pod), ours).unwrap_err().name();
        assert_eq!(wrong(&good, None), "token-owner");
        assert_eq!(wrong(&good, Some("d2")), "token-owner");
        assert_eq!(wrong(&pod("p2", owner("DaemonSet", "d1", true), "n1"), Some("d1")), "token-pod");
        assert_eq!(wrong(&pod("p1", owner("DaemonSet", "d1", false), "n1"), Some("d1")), "token-owner");
        assert_eq!(wrong(&pod("p1", owner("ReplicaSet", "d1", true), "n1"), Some("d1")), "token-owner");
        assert_eq!(wrong(&pod("p1", json!([]), "n1"), Some("d1")), "token-owner");
        assert_eq!(wrong(&pod("p1", owner("DaemonSet", "d1", true), "n2"), Some("d1")), "token-pod");
        let node = |uid: &str| serde_json::from_value::<Node>(json!({"metadata": {"uid": uid}})).unwrap();
        assert_eq!(check_node(&bound(), Some(&node("u1"))), Ok(()));
        assert_eq!(check_node(&bound(), Some(&node("u2"))).unwrap_err().name(), "token-node");
        assert_eq!(check_node(&bound(), None).unwrap_err().name(), "token-node");
    }

    #[tokio::test]
    async fn more_tokens_than_may_wait_are_turned_away_for_now() {
        let nobody = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("must not be asked"))
        });
        let reviewer = Reviewer::new(Client::new(nobody, "default"), "phalanx-system");
        reviewer.0.waiting.forget_permits(WAITING);
        // {"aud":["phalanx"],"exp":99999999999}
        let token = "h.eyJhdWQiOlsicGhhbGFueCJdLCJleHAiOjk5OTk5OTk5OTk5fQ.s";
        let refusal = reviewer.review(token).await.unwrap_err();
        assert!(refusal.is_passing() && refusal.to_string().contains("too many tokens wait"), "{refusal}");
        // Who has asked gives the place back.
        reviewer.0.waiting.add_permits(1);
        let refusal = reviewer.review(token).await.unwrap_err();
        assert!(refusal.to_string().contains("must not be asked"), "{refusal}");
        assert_eq!(reviewer.0.waiting.available_permits(), 1);
    }
}
