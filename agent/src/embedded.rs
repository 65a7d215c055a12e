//! An agent as a value: the program runs one, tests and benches run many in one process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use phalanx_common::ids::NodeName;
use phalanx_common::topology::Inventory;
use phalanx_node_core::Core;
use phalanx_transport::EndpointError;
use phalanx_transport::endpoint::bare_client_endpoint;
use quinn::Endpoint;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::clock;
use crate::credentials::{Credentials, Presented};
use crate::dial::{self, DialOptions};
use crate::driver::{Driver, Input, LedgerSink};
use crate::ledger_file::{LedgerFile, LedgerFileError};
use crate::runner::Runner;

pub use crate::driver::AgentReport;

/// Inputs that may wait for the loop; who has more to say waits.
const INPUTS: usize = 256;
/// How long the last packet may take to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// Where an agent keeps its ledger.
#[derive(Clone, Debug)]
pub enum LedgerPlace {
    /// In this state directory.
    Directory(PathBuf),
    /// Nowhere: everything counts as written at once, and is lost with the process.
    Memory,
}

/// What an agent needs.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The node it guards.
    pub node: NodeName,
    /// Who it is, and whom it trusts.
    pub credentials: Credentials,
    /// `HOST:PORT` of the coordinators; a name that has several addresses is as many coordinators.
    pub coordinators: Vec<String>,
    /// Where the ledger is kept.
    pub ledger: LedgerPlace,
    /// Socket to dial from; `None` = one of its own.
    pub endpoint: Option<Endpoint>,
}

/// Why an agent did not start.
#[derive(Debug, Error)]
pub enum AgentError {
    /// No coordinator to dial.
    #[error("no coordinator is given: name at least one with --coordinator HOST:PORT")]
    NoCoordinator,
    /// Socket or certificates.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// State directory.
    #[error(transparent)]
    Ledger(#[from] LedgerFileError),
}

/// An agent that runs. Dropping it ends it without farewell, as a crash would.
#[derive(Debug)]
pub struct Agent {
    inputs: mpsc::Sender<Input>,
    driver: JoinHandle<()>,
    link: JoinHandle<()>,
    ledger: Option<JoinHandle<()>>,
    /// Where the agent has a socket of its own.
    endpoint: Option<Endpoint>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.driver.abort();
        self.link.abort();
    }
}

impl Agent {
    /// State of the agent; `None` where it has ended.
    pub async fn report(&self) -> Option<AgentReport> {
        let (answer, report) = oneshot::channel();
        self.inputs.send(Input::Report(answer)).await.ok()?;
        report.await.ok()
    }

    /// Waits until the agent's loop ends by itself, which nothing should make it do.
    pub async fn ended(&mut self) {
        let _ = (&mut self.driver).await;
    }

    /// Ends the agent: it says goodbye to the coordinator. When this returns, its state directory may be used by
    /// another one.
    pub async fn stop(mut self) {
        // An agent that has ended is what is wanted.
        let _ = self.inputs.send(Input::Stop).await;
        self.wait().await;
        if let Some(endpoint) = self.endpoint.take() {
            let _ = timeout(FAREWELL, endpoint.wait_idle()).await;
        }
    }

    /// Ends the agent without farewell. When this returns, its state directory may be used by another one.
    pub async fn kill(mut self) {
        self.driver.abort();
        self.link.abort();
        self.wait().await;
    }

    /// Until all tasks have ended; that they did is all that matters.
    async fn wait(&mut self) {
        if !self.driver.is_finished() {
            let _ = (&mut self.driver).await;
        }
        let _ = (&mut self.link).await;
        if let Some(ledger) = self.ledger.take() {
            let _ = ledger.await;
        }
    }
}

/// Starts an agent that reads the node's hardware from this channel.
///
/// # Errors
/// The state directory, the certificates or the socket cannot be used.
pub async fn start(
    options: AgentOptions,
    inventories: mpsc::Receiver<Inventory>,
) -> Result<Agent, AgentError> {
    if options.coordinators.is_empty() {
        return Err(AgentError::NoCoordinator);
    }
    let presented = Presented::new(&options.credentials)?;
    let (endpoint, own_endpoint) = match options.endpoint {
        Some(endpoint) => (endpoint, None),
        None => {
            let own = bare_client_endpoint()?.0;
            (own.clone(), Some(own))
        }
    };
    let (inputs, received) = mpsc::channel(INPUTS);
    let ((sink, writer), ledger) = match options.ledger {
        LedgerPlace::Memory => ((LedgerSink::Memory, None), None),
        LedgerPlace::Directory(directory) => {
            let opened = LedgerFile::open(&directory)?;
            let (sink, writer) = LedgerSink::to_file(opened.file, inputs.clone());
            ((sink, Some(writer)), opened.ledger)
        }
    };
    let mut first = Vec::new();
    let core = Core::new(options.node, &clock::boot_id(), ledger, clock::now(), &mut first);
    let (may_dial, dial) = oneshot::channel();
    let driver = Driver {
        core,
        ledger: sink,
        runner: Runner::new(inputs.clone()),
        inputs: received,
        inventories,
        may_dial: Some(may_dial),
        sessions: BTreeMap::new(),
    };
    let dial_options = DialOptions { endpoint, presented, coordinators: options.coordinators };
    let link_inputs = inputs.clone();
    let link = tokio::spawn(async move {
        if dial.await.is_ok() {
            dial::run(dial_options, link_inputs).await;
        }
    });
    let driver = tokio::spawn(driver.run(first));
    Ok(Agent { inputs, driver, link, ledger: writer, endpoint: own_endpoint })
}

/// Starts an agent of a node that has this, and goes on having it until the sender says otherwise.
///
/// # Errors
/// As `start`.
pub async fn spawn(
    options: AgentOptions,
    inventory: Inventory,
) -> Result<(Agent, mpsc::Sender<Inventory>), AgentError> {
    let (sender, inventories) = mpsc::channel(4);
    // There is room for four and nobody else has the sender.
    let _ = sender.try_send(inventory);
    Ok((start(options, inventories).await?, sender))
}
