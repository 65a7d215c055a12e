//! The loop by itself: it waits for nobody, and a slow agent is cut off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use phalanx_common::gang::GangSpec;
use phalanx_common::ids::{ClusterId, GangName, NodeName, Term};
use phalanx_common::topology::Inventory;
use phalanx_common::units::Time;
use phalanx_common::wire::{FromAgent, Hello, ToAgent};
use phalanx_coordinator::agents::{AgentInput, AgentServer, AgentServerParts, NotSent, Outbox, PodReport};
use phalanx_coordinator::clock::Clock;
use phalanx_coordinator::driver::{Driver, Messages, Parts, Permit, Question, channels};
use phalanx_coordinator::metrics::Metrics;
use phalanx_coordinator::progress::Progress;
use phalanx_coordinator::recorder::{Recorder, RecordingLimits};
use phalanx_coordinator::replay::replay;
use phalanx_core::action::Command;
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};
use phalanx_transport::{
    COORDINATOR_NAME, CertificateAuthority, ControlReader, ControlWriter, client_endpoint, open_control,
    server_endpoint,
};
use quinn::{Connection, Endpoint};
use tokio::sync::{mpsc, oneshot, watch};

const PATIENCE: Duration = Duration::from_secs(60);

fn gang(number: u32) -> Event {
    Event::GangApplied(GangSpec {
        name: GangName::new("default", &format!("gang-{number:05}")),
        uid: Arc::from(format!("uid-{number}")),
        created: Time(1),
        queue: "nowhere".into(),
        min_member: 1,
        min_task_member: BTreeMap::new(),
        min_resources: None,
        priority_class: None,
        mixed_gpu_models: false,
        policy: Default::default(),
        shown: None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_writer_that_takes_nothing_questions_are_answered_and_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::start();
    let settings = Settings::default();
    let recorder =
        Recorder::start(directory.path(), clock.now(), &settings, RecordingLimits::default()).unwrap();
    let recording = recorder.file().to_owned();
    let (writer, mut actions) = mpsc::channel(1);
    let metrics = Arc::new(Metrics::default());
    let (stop, stopping) = watch::channel(false);
    let (senders, inputs) = channels(stopping);
    let mut driver = Driver::new(Parts {
        core: Core::new(settings),
        clock,
        recorder,
        writer,
        term: watch::channel(Term::default()).0,
        metrics: Arc::clone(&metrics),
        progress: Arc::new(Progress::default()),
        permit: Permit::always(),
        messages: Messages::default(),
    });
    driver.begin([Event::Started { term: Term { counter: 1, incarnation: 1 } }]).await;
    let driver = tokio::spawn(driver.run(inputs));
    // More gangs than actions may wait: each wants its status written.
    let gangs = 6000_u32;
    let feeding = senders.changes.clone();
    let feed = tokio::spawn(async move {
        for start in (0..gangs).step_by(100) {
            feeding.send((start..start + 100).map(gang).collect()).await.unwrap();
        }
    });
    while metrics.backlog.get() < 4096 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (answer, view) = oneshot::channel();
    senders.questions.send(Question::View(answer)).await.unwrap();
    let known = tokio::time::timeout(PATIENCE, view).await.unwrap().unwrap().gangs.len();
    assert!(known > 0 && known < gangs as usize, "{known}");
    // The loop takes no more facts now, so the feeder waits; the writer wakes up.
    let mut written = std::collections::BTreeSet::new();
    while (written.len() as u32) < gangs {
        let action = tokio::time::timeout(PATIENCE, actions.recv()).await.unwrap().unwrap();
        if let Command::SetGangStatus { gang, .. } = &action.command {
            written.insert(gang.clone());
        }
        let done = Event::ActionDone { action: action.id, outcome: phalanx_core::event::Outcome::Done };
        senders.outcomes.send(done).await.unwrap();
    }
    feed.await.unwrap();
    stop.send_replace(true);
    let recorder = driver.await.unwrap();
    tokio::task::spawn_blocking(|| recorder.finish()).await.unwrap();
    assert_eq!(replay(&recording, &mut Vec::new()).unwrap().difference, None);
}

/// A server with one agent that is let in and then reads nothing.
struct Deaf {
    server: AgentServer,
    metrics: Arc<Metrics>,
    inputs: mpsc::Receiver<AgentInput>,
    _reports: mpsc::Receiver<PodReport>,
    connection: Connection,
    writer: ControlWriter,
    _never_read: ControlReader,
    _endpoint: Endpoint,
    session: u64,
    outbox: Outbox,
}

async fn deaf_agent() -> Deaf {
    let authority = CertificateAuthority::create().unwrap();
    let anchor = authority.trust_anchor();
    let coordinator = authority.issue_coordinator(&[], &[]).unwrap();
    let (endpoint, _) = server_endpoint("127.0.0.1:0".parse().unwrap(), &coordinator, &anchor).unwrap();
    let (driver, mut inputs) = mpsc::channel(16);
    let (pods, reports) = mpsc::channel(16);
    let (_term, term) = watch::channel(Term { counter: 1, incarnation: 1 });
    let metrics = Arc::new(Metrics::default());
    let cluster = ClusterId::from("test");
    let parts = AgentServerParts { cluster, term, driver, pods, metrics: Arc::clone(&metrics) };
    let server = AgentServer::start(endpoint, parts);
    let identity = authority.issue_agent(&NodeName::from("n1")).unwrap();
    let (dialler, _) = client_endpoint(&identity, &anchor).unwrap();
    let connection = dialler.connect(server.address().unwrap(), COORDINATOR_NAME).unwrap().await.unwrap();
    let (never_read, mut writer) = open_control(&connection).await.unwrap();
    let hello = Hello {
        oldest_version: 1,
        newest_version: 2,
        node: NodeName::from("n1"),
        cluster: None,
        highest_term: Term::default(),
        inventory: Inventory::empty(1000, 1 << 30),
        leases: Vec::new(),
    };
    writer.send(&FromAgent::Hello(hello)).await.unwrap();
    let connected = tokio::time::timeout(PATIENCE, inputs.recv()).await.unwrap().unwrap();
    let AgentInput::Connected { session, outbox, .. } = connected else { panic!("{connected:?}") };
    Deaf {
        server,
        metrics,
        inputs,
        _reports: reports,
        connection,
        writer,
        _never_read: never_read,
        _endpoint: dialler,
        session,
        outbox,
    }
}

/// Larger than most messages: a few of them fill all windows.
fn large() -> ToAgent {
    ToAgent::Rejected { message: "x".repeat(32 << 10) }
}

async fn assert_cut_off(mut agent: Deaf) {
    // The packet that says why may be lost in the flood; that the connection is gone is learnt all the same.
    tokio::time::timeout(PATIENCE, agent.connection.closed()).await.unwrap();
    let gone = tokio::time::timeout(PATIENCE, agent.inputs.recv()).await.unwrap().unwrap();
    assert!(matches!(&gone, AgentInput::Gone { session, .. } if *session == agent.session), "{gone:?}");
    assert_eq!(agent.outbox.send(large()), Err(NotSent));
    assert_eq!(agent.metrics.slow_agents.get(), 1, "one connection, counted once");
    agent.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_too_much_before_it_is_cut_off() {
    let agent = deaf_agent().await;
    // Far more than windows and queue hold together. Nothing here ever waits.
    let message = ToAgent::Rejected { message: "x".repeat(1 << 10) };
    let sent = (0..40_000).map(|_| agent.outbox.send(message.clone())).collect::<Vec<_>>();
    let first = sent.iter().position(Result::is_err).unwrap();
    assert!(first >= 16_384, "a whole pass has room: {first}");
    assert!(sent[first..].iter().all(Result::is_err), "what is given up takes nothing more");
    assert_cut_off(agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_takes_nothing_is_cut_off_though_it_shows_that_it_lives() {
    let mut agent = deaf_agent().await;
    for _ in 0..64 {
        agent.outbox.send(large()).unwrap();
    }
    while agent.connection.close_reason().is_none() {
        let _ = agent.writer.send(&FromAgent::Heartbeat).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_cut_off(agent).await;
}
