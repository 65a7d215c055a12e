//! The probe's own thread: driver calls block, so they never run on the runtime's threads.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use phalanx_common::topology::Inventory;
use tokio::sync::mpsc;

use crate::probe::Probe;

/// Asks the probe's thread for a reading. Dropping it ends the thread.
#[derive(Clone)]
pub struct ProbeHandle {
    requests: SyncSender<()>,
}

impl ProbeHandle {
    /// Asks for a reading now instead of at the next interval. Its inventory comes over the channel.
    pub fn request(&self) {
        // One request that waits is as good as many; a thread that has ended has nobody to report to either.
        let _ = self.requests.try_send(());
    }
}

/// Starts a thread that reads at once, then every `interval` and on request, and sends each
/// inventory. It ends when the handle or the receiver is dropped. Which differences matter is for
/// the receiver to say.
///
/// # Errors
/// The system gives no thread.
pub fn spawn<P: Probe + Send + 'static>(
    probe: P,
    interval: Duration,
) -> io::Result<(ProbeHandle, mpsc::Receiver<Inventory>)> {
    let (requests, asked) = sync_channel(1);
    // One place: a slow receiver delays the next reading instead of piling up old ones.
    let (sender, receiver) = mpsc::channel(1);
    thread::Builder::new().name("probe".into()).spawn(move || run(probe, interval, &asked, &sender))?;
    Ok((ProbeHandle { requests }, receiver))
}

fn run<P: Probe>(mut probe: P, interval: Duration, asked: &Receiver<()>, sender: &mpsc::Sender<Inventory>) {
    loop {
        if sender.blocking_send(probe.read()).is_err() {
            return;
        }
        match asked.recv_timeout(interval) {
            Ok(()) => while asked.try_recv().is_ok() {},
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::recorded::RecordedProbe;

    #[test]
    fn reads_at_once_and_on_request_and_ends_with_the_handle() {
        let inventories: Vec<Inventory> = (1..=3).map(|cpus| Inventory::empty(cpus * 1000, 1)).collect();
        let probe = RecordedProbe::new(inventories[0].clone(), inventories[1..].to_vec());
        let (handle, mut receiver) = spawn(probe, Duration::from_secs(3600)).unwrap();
        assert_eq!(receiver.blocking_recv().as_ref(), Some(&inventories[0]));
        handle.request();
        assert_eq!(receiver.blocking_recv().as_ref(), Some(&inventories[1]));
        drop(handle);
        assert_eq!(receiver.blocking_recv(), None);
    }
}
