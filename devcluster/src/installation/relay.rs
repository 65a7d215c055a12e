//! A replica's network, which can be cut: all that it says to the API server and all that agents say to it comes through
//! here, until nothing does. Nobody is told, as when a cable is pulled.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Largest UDP packet.
const PACKET_BYTES: usize = 64 << 10;
/// Bytes that are passed on at once.
const CHUNK_BYTES: usize = 16 << 10;

/// The way to a replica, and from it to the API server. Dropping it cuts both for ever.
#[derive(Debug)]
pub(super) struct Relay {
    api_server: SocketAddr,
    agents: SocketAddr,
    cut: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Relay {
    /// Between a replica that listens there and this API server.
    pub async fn start(replica: SocketAddr, api_server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (cut, told) = watch::channel(false);
        let (near, agents) = (listener.local_addr()?, socket.local_addr()?);
        let mut tasks = JoinSet::new();
        tasks.spawn(pass_requests(listener, api_server, told.clone()));
        tasks.spawn(pass_packets(Arc::new(socket), replica, told));
        Ok(Self { api_server: near, agents, cut, _tasks: tasks })
    }

    /// Where the replica finds the API server.
    pub fn api_server(&self) -> SocketAddr {
        self.api_server
    }

    /// Where agents find the replica.
    pub fn agents(&self) -> SocketAddr {
        self.agents
    }

    /// Cuts both, or mends them. Bytes to and from the API server that were sent meanwhile arrive then, as TCP does it;
    /// packets of agents are lost.
    pub fn cut(&self, is_cut: bool) {
        self.cut.send_replace(is_cut);
    }
}

async fn pass_requests(listener: TcpListener, api_server: SocketAddr, cut: watch::Receiver<bool>) {
    // What belongs to a connection ends with this task.
    let mut connections = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let cut = cut.clone();
        connections.spawn(async move {
            let Ok(far) = TcpStream::connect(api_server).await else { return };
            // Without this a request waits for the acknowledgement of the one before it.
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::join!(pass_bytes(near_in, far_out, cut.clone()), pass_bytes(far_in, near_out, cut));
        });
    }
}

/// Ends with the connection. Its other half then ends by itself.
async fn pass_bytes(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut cut: watch::Receiver<bool>) {
    let mut bytes = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let Some(bytes) = bytes.get(..count) else { return };
        if cut.wait_for(|is_cut| !*is_cut).await.is_err() || to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

/// Each address that agents dial from has a socket of its own towards the replica.
async fn pass_packets(near: Arc<UdpSocket>, replica: SocketAddr, cut: watch::Receiver<bool>) {
    let mut flows: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut answers = JoinSet::new();
    let mut packet = vec![0; PACKET_BYTES];
    loop {
        // An error tells of a packet sent before, to an agent that is gone.
        let Ok((length, agent)) = near.recv_from(&mut packet).await else { continue };
        if *cut.borrow() {
            continue;
        }
        let flow = if let Some(flow) = flows.get(&agent) {
            Arc::clone(flow)
        } else {
            let Ok(flow) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await else { continue };
            let flow = Arc::new(flow);
            answers.spawn(pass_answers(Arc::clone(&flow), Arc::clone(&near), agent, cut.clone()));
            flows.insert(agent, Arc::clone(&flow));
            flow
        };
        // A replica that is gone is a lost packet.
        let _ = flow.send_to(packet.get(..length).unwrap_or_default(), replica).await;
    }
}

async fn pass_answers(
    flow: Arc<UdpSocket>,
    near: Arc<UdpSocket>,
    agent: SocketAddr,
    cut: watch::Receiver<bool>,
) {
    let mut packet = vec![0; PACKET_BYTES];
    loop {
        let Ok((length, _)) = flow.recv_from(&mut packet).await else { continue };
        if !*cut.borrow() {
            let _ = near.send_to(packet.get(..length).unwrap_or_default(), agent).await;
        }
    }
}
