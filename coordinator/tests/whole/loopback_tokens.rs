//! Agents that show tokens, over real QUIC, with a stand-in for the API server that takes tokens of the form
//! `NODE.SECONDS`. The same on a real API server: `kubernetes_identity.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use crate::support::cluster::inventory;
use crate::support::server::{Server, TERM, eventually};
use crate::support::{PATIENCE, warnings};
use phalanx_agent::Credentials;
use phalanx_agent::embedded::{self, Agent, AgentOptions, LedgerPlace};
use phalanx_common::ids::{NodeName, Term};
use phalanx_coordinator::agents::{AgentInput, Outbox, TokenCheck};
use phalanx_kubernetes::identity::{Speaker, TokenRefusal};
use phalanx_transport::CertificateAuthority;
use tempfile::TempDir;

/// What the stand-in does and has done.
#[derive(Clone, Debug, Default)]
struct Reviews {
    asked: Arc<AtomicUsize>,
    away: Arc<AtomicBool>,
}

impl Reviews {
    fn check(&self) -> TokenCheck {
        let reviews = self.clone();
        TokenCheck::new(move |token| {
            let reviews = reviews.clone();
            async move { reviews.review(token.secret()) }
        })
    }

    fn review(&self, token: &str) -> Result<Speaker, TokenRefusal> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.away.load(Ordering::Relaxed) {
            return Err(TokenRefusal::Unanswered { what: "TokenReview", cause: "away".to_owned() });
        }
        let (node, seconds) =
            token.split_once('.').ok_or_else(|| TokenRefusal::Malformed("no dot".to_owned()))?;
        let seconds: u64 = seconds.parse().map_err(|_| TokenRefusal::Expired(1))?;
        let text = |what: &str| format!("{what}-of-{node}");
        Ok(Speaker {
            node: node.to_owned(),
            node_uid: text("uid"),
            pod: text("agent"),
            pod_uid: text("pod-uid"),
            expires: SystemTime::now() + Duration::from_secs(seconds),
        })
    }
}

struct Node {
    folder: TempDir,
    reviews: Reviews,
    server: Server,
    /// Who drops one ends the connection.
    outboxes: Vec<Outbox>,
}

impl Node {
    fn new(term: Term) -> Self {
        let authority = CertificateAuthority::create().unwrap();
        let reviews = Reviews::default();
        let server = Server::start_as(term, &authority, Some(reviews.check()));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.crt"), authority.certificate_pem()).unwrap();
        Self { folder, reviews, server, outboxes: Vec::new() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// As kubelet does: a reader never sees half a token.
    fn token(&self, text: &str) {
        write(&self.file("token"), text);
    }

    async fn agent(&self, node: &str) -> Agent {
        let options = AgentOptions {
            node: NodeName::from(node),
            credentials: Credentials::Token {
                token_file: self.file("token"),
                authority_file: self.file("ca.crt"),
            },
            coordinators: vec![self.server.address.to_string()],
            ledger: LedgerPlace::Memory,
            endpoint: None,
        };
        embedded::spawn(options, inventory(1, 1)).await.unwrap().0
    }

    async fn next(&mut self) -> AgentInput {
        tokio::time::timeout(PATIENCE, self.server.inputs.recv()).await.unwrap().unwrap()
    }

    async fn connected(&mut self) -> u64 {
        match self.next().await {
            AgentInput::Connected { session, outbox, .. } => {
                self.outboxes.push(outbox);
                session
            }
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the end of the session, whatever is said meanwhile.
    async fn gone(&mut self) -> u64 {
        loop {
            match self.next().await {
                AgentInput::Gone { session, .. } => return session,
                AgentInput::Said { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn end(self, agent: Agent) {
        agent.stop().await;
        self.server.server.stop().await;
    }
}

fn write(path: &Path, text: &str) {
    let unfinished = path.with_extension("unfinished");
    std::fs::write(&unfinished, text).unwrap();
    std::fs::rename(&unfinished, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_renewed_keeps_the_connection_and_one_that_is_not_ends_it() {
    let mut node = Node::new(TERM);
    node.token("n1.6");
    let agent = node.agent("n1").await;
    let session = node.connected().await;
    node.token("n1.12");
    let reviews = node.reviews.asked.clone();
    eventually("the newer token", || reviews.load(Ordering::Relaxed) == 2).await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    let told = node.server.inputs.try_recv();
    assert!(told.is_err(), "the first token has ended, and with it the connection: {told:?}");
    let before = warnings("its token has expired, and no newer one came");
    assert_eq!(node.gone().await, session);
    assert!(warnings("its token has expired, and no newer one came") > before);
    // With the token that lies there it is let in again: the stand-in reckons anew.
    assert_ne!(node.connected().await, session);
    node.end(agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_token_of_another_node_or_one_that_is_refused_ends_the_connection() {
    let mut node = Node::new(TERM);
    for (newer, why) in [
        ("n2.60", "its newer token is for node n2, not for n1"),
        ("n1.x", "its newer token is refused: the token has"),
    ] {
        node.token("n1.60");
        let agent = node.agent("n1").await;
        let session = node.connected().await;
        node.token(newer);
        assert_eq!(node.gone().await, session);
        assert!(warnings(why) > 0, "{why}");
        agent.stop().await;
        while node.server.inputs.try_recv().is_ok() {}
    }
    node.server.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_shows_the_token_of_another_node_is_not_let_in_and_hears_why() {
    let mut node = Node::new(TERM);
    node.token("n2.60");
    let agent = node.agent("n1").await;
    let metrics = node.server.metrics.clone();
    eventually("the refusal", || metrics.rejected("node-name") > 0).await;
    let why = "token of pod agent-of-n2 on node n2, Hello names node n1";
    // Said by both, the coordinator and the agent.
    eventually("the reason", || warnings(why) >= 2).await;
    assert!(!agent.report().await.unwrap().link_is_up);
    node.token("nonsense");
    eventually("the refusal", || metrics.rejected("token-malformed") > 0).await;
    std::fs::remove_file(node.file("token")).unwrap();
    eventually("the reason", || warnings("token: No such file or directory") > 0).await;
    node.token("n1.60");
    node.connected().await;
    node.end(agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_away_ends_no_connection_before_its_time() {
    let mut node = Node::new(TERM);
    node.token("n1.9");
    let agent = node.agent("n1").await;
    node.connected().await;
    node.reviews.away.store(true, Ordering::Relaxed);
    node.token("n1.61");
    eventually("the line", || warnings("could not be looked at, it is tried again") > 0).await;
    node.reviews.away.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(node.server.inputs.try_recv().is_err(), "the connection has ended");
    node.end(agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_renewed_while_a_coordinator_stands_by_and_not_asked_again_when_it_leads() {
    let mut node = Node::new(Term::default());
    node.token("n1.6");
    let agent = node.agent("n1").await;
    let metrics = node.server.metrics.clone();
    eventually("the agent", || metrics.standing_by.get() == 1).await;
    node.token("n1.60");
    let reviews = node.reviews.asked.clone();
    eventually("the newer token", || reviews.load(Ordering::Relaxed) == 2).await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    node.server.term.send_replace(TERM);
    assert_eq!(node.connected().await, 1);
    assert_eq!(reviews.load(Ordering::Relaxed), 2);
    node.end(agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_of_another_authority_gets_no_token_until_both_are_trusted() {
    let mut node = Node::new(TERM);
    node.token("n1.60");
    let whole = std::fs::read_to_string(node.file("ca.crt")).unwrap();
    let other = CertificateAuthority::create().unwrap();
    write(&node.file("ca.crt"), other.certificate_pem());
    let agent = node.agent("n1").await;
    eventually("the reason", || warnings("UnknownIssuer") + warnings("certificate") > 0).await;
    assert_eq!(node.reviews.asked.load(Ordering::Relaxed), 0, "a stranger was shown the token");
    write(&node.file("ca.crt"), &format!("{}{whole}", other.certificate_pem()));
    node.connected().await;
    node.end(agent).await;
}
