//! A network that loses, delays and cuts, between agents and a coordinator: a UDP proxy with one flow per agent. What
//! is lost comes from a seed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx_devcluster::random::Random;

use tokio::net::UdpSocket;
use tokio::runtime::Runtime;

/// Largest UDP packet.
const PACKET_BYTES: usize = 65_536;

/// What is wrong with the network now.
#[derive(Debug, Default)]
pub struct Weather {
    /// Packets of a thousand that are lost.
    loss_per_mille: AtomicU64,
    /// Delay in each direction.
    delay_ms: AtomicU64,
    /// Nothing reaches the coordinator.
    up_is_cut: AtomicBool,
    /// Nothing reaches the agents.
    down_is_cut: AtomicBool,
    random: Mutex<Random>,
    /// Packets that were let through, and that were not.
    passed: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

impl Weather {
    /// Loss and delay of all packets from now on.
    pub fn set(&self, loss_per_mille: u64, delay: Duration) {
        self.loss_per_mille.store(loss_per_mille, Ordering::Relaxed);
        self.delay_ms.store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    /// Cuts the way to the coordinator, and that to the agents; or mends them.
    pub fn cut(&self, up: bool, down: bool) {
        self.up_is_cut.store(up, Ordering::Relaxed);
        self.down_is_cut.store(down, Ordering::Relaxed);
    }

    /// Packets that were let through, and that were not.
    pub fn counts(&self) -> (u64, u64) {
        (self.passed.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }

    /// Whether a packet gets through.
    fn lets_through(&self, way: Way) -> bool {
        let cut = match way {
            Way::Up => &self.up_is_cut,
            Way::Down => &self.down_is_cut,
        };
        let passes = !cut.load(Ordering::Relaxed)
            && self.random.lock().unwrap().next() % 1000 >= self.loss_per_mille.load(Ordering::Relaxed);
        if passes { &self.passed } else { &self.dropped }.fetch_add(1, Ordering::Relaxed);
        passes
    }

    /// Sends a packet when its time has come. Packets may overtake each other, as on a real network.
    fn forward(self: &Arc<Self>, way: Way, packet: Vec<u8>, from: Arc<UdpSocket>, to: SocketAddr) {
        if !self.lets_through(way) {
            return;
        }
        let delay = Duration::from_millis(self.delay_ms.load(Ordering::Relaxed));
        tokio::spawn(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            // A receiver that is gone is a lost packet.
            let _ = from.send_to(&packet, to).await;
        });
    }
}

/// A proxy before one coordinator. It ends with this value.
pub struct Proxy {
    /// Where agents dial.
    pub address: SocketAddr,
    /// What is wrong with it.
    pub weather: Arc<Weather>,
    _runtime: Runtime,
}

impl Proxy {
    /// A proxy before this address, in good weather.
    pub fn start(coordinator: SocketAddr, seed: u64) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let socket = runtime.block_on(UdpSocket::bind("127.0.0.1:0")).unwrap();
        let address = socket.local_addr().unwrap();
        let weather = Arc::new(Weather { random: Mutex::new(Random::new(seed)), ..Weather::default() });
        runtime.spawn(serve(Arc::new(socket), coordinator, Arc::clone(&weather)));
        Self { address, weather, _runtime: runtime }
    }
}

/// Takes what agents send; each has a socket of its own towards the coordinator.
async fn serve(agents: Arc<UdpSocket>, coordinator: SocketAddr, weather: Arc<Weather>) {
    let mut flows: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
    let mut buffer = vec![0; PACKET_BYTES];
    loop {
        // An error is an answer to a packet sent before, to an agent that is gone.
        let Ok((length, agent)) = agents.recv_from(&mut buffer).await else { continue };
        let flow = match flows.get(&agent) {
            Some(flow) => Arc::clone(flow),
            None => {
                let flow = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
                tokio::spawn(answer(Arc::clone(&flow), Arc::clone(&agents), agent, Arc::clone(&weather)));
                flows.insert(agent, Arc::clone(&flow));
                flow
            }
        };
        weather.forward(Way::Up, buffer[..length].to_vec(), flow, coordinator);
    }
}

/// Takes what the coordinator answers to one agent.
async fn answer(flow: Arc<UdpSocket>, agents: Arc<UdpSocket>, agent: SocketAddr, weather: Arc<Weather>) {
    let mut buffer = vec![0; PACKET_BYTES];
    loop {
        let Ok((length, _)) = flow.recv_from(&mut buffer).await else { continue };
        weather.forward(Way::Down, buffer[..length].to_vec(), Arc::clone(&agents), agent);
    }
}

#[test]
fn the_proxy_loses_what_it_is_told_to() {
    let weather = Weather { random: Mutex::new(Random::new(7)), ..Weather::default() };
    weather.set(50, Duration::ZERO);
    let passed = (0..10_000).filter(|_| weather.lets_through(Way::Up)).count();
    assert!((9_300..9_700).contains(&passed), "{passed}");
    weather.set(0, Duration::ZERO);
    weather.cut(true, false);
    assert!(!weather.lets_through(Way::Up) && weather.lets_through(Way::Down));
    weather.cut(false, false);
    assert!(weather.lets_through(Way::Up));
}
