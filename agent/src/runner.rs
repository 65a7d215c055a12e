//! Standalone mode's containers: a timer per pod. Nothing is executed yet; a pod runs for the time its owner
//! gave it, or until it is stopped.

use std::collections::HashMap;
use std::time::Duration;

use phalanx_common::ids::PodUid;
use phalanx_common::units::Millis;
use phalanx_node_core::Event;
use tokio::sync::{mpsc, oneshot};

use crate::driver::Input;

/// All pods of a node.
#[derive(Debug)]
pub(crate) struct Runner {
    outcomes: mpsc::Sender<Input>,
    stops: HashMap<PodUid, oneshot::Sender<()>>,
}

impl Runner {
    pub(crate) fn new(outcomes: mpsc::Sender<Input>) -> Self {
        Self { outcomes, stops: HashMap::new() }
    }

    /// Starts a pod; one that runs already goes on.
    pub(crate) fn start(&mut self, pod: PodUid, run_for: Option<Millis>) {
        if self.stops.get(&pod).is_some_and(|stop| !stop.is_closed()) {
            return;
        }
        let (stop, stopped) = oneshot::channel();
        self.stops.insert(pod.clone(), stop);
        let outcomes = self.outcomes.clone();
        tokio::spawn(async move {
            let event = tokio::select! {
                () = run(run_for) => Event::PodEnded { pod, succeeded: true },
                _ = stopped => Event::PodStopped { pod },
            };
            // Without a driver there is nobody to tell.
            let _ = outcomes.send(Input::Event(event)).await;
        });
    }

    /// Stops a pod. That it is gone comes back as an event, also where it was not there.
    pub(crate) fn stop(&mut self, pod: PodUid) {
        let told = self.stops.remove(&pod).is_some_and(|stop| stop.send(()).is_ok());
        if !told {
            let outcomes = self.outcomes.clone();
            tokio::spawn(async move {
                let _ = outcomes.send(Input::Event(Event::PodStopped { pod })).await;
            });
        }
    }

    /// Forgets a pod that has ended.
    pub(crate) fn forget(&mut self, pod: &PodUid) {
        self.stops.remove(pod);
    }
}

async fn run(run_for: Option<Millis>) {
    match run_for {
        Some(time) => tokio::time::sleep(Duration::from_millis(time.0)).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(inputs: &mut mpsc::Receiver<Input>) -> Event {
        match inputs.recv().await {
            Some(Input::Event(event)) => event,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn pods_end_by_themselves_or_are_stopped() {
        let (sender, mut inputs) = mpsc::channel(8);
        let mut runner = Runner::new(sender);
        let (short, long, unknown) = (PodUid::from("short"), PodUid::from("long"), PodUid::from("unknown"));
        runner.start(short.clone(), Some(Millis(1)));
        assert_eq!(next(&mut inputs).await, Event::PodEnded { pod: short, succeeded: true });
        runner.start(long.clone(), None);
        runner.start(long.clone(), Some(Millis(0)));
        runner.stop(long.clone());
        assert_eq!(next(&mut inputs).await, Event::PodStopped { pod: long });
        runner.stop(unknown.clone());
        assert_eq!(next(&mut inputs).await, Event::PodStopped { pod: unknown });
    }
}
