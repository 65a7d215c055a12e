//! What was decided beside what another scheduler did.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use phalanx_common::ids::{GangName, NodeName, PodUid};
use phalanx_common::shadow::{ShadowEviction, ShadowOutcome, ShadowPlace, ShadowPod, ShadowReport};
use phalanx_common::units::Time;

use crate::metrics::Metrics;

/// Pods that are shown one by one, of each sort.
const SHOWN: usize = 256;

/// The comparison, for who decides, who looks on and who asks.
#[derive(Debug)]
pub struct Comparison {
    since: Time,
    scheduler_names: Vec<String>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

/// Pods are here from the first that is known of them until they are deleted.
#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<PodUid, Pod>,
    waiting: u64,
    outcomes: BTreeMap<&'static str, u64>,
    evictions: u64,
    recent: VecDeque<ShadowPod>,
    recent_evictions: VecDeque<ShadowEviction>,
}

#[derive(Debug)]
struct Pod {
    name: GangName,
    decided: Option<ShadowPlace>,
    /// It has an outcome, or ran before.
    is_done: bool,
    is_victim: bool,
}

impl Pod {
    fn shown(&self, placed: Option<ShadowPlace>, outcome: Option<ShadowOutcome>) -> ShadowPod {
        ShadowPod {
            namespace: Arc::clone(&self.name.namespace),
            name: Arc::clone(&self.name.name),
            decided: self.decided.clone(),
            placed,
            outcome,
        }
    }
}

impl Comparison {
    /// Nothing was compared yet.
    #[must_use]
    pub fn new(since: Time, scheduler_names: Vec<String>, metrics: Arc<Metrics>) -> Self {
        Self { since, scheduler_names, metrics, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod would be bound now.
    pub fn decided(&self, uid: &PodUid, name: &GangName, node: &NodeName, at: Time) {
        let mut state = self.state();
        let pod = state.pod(uid, name);
        // Placed by the other one in this moment, which is not known to who decides yet.
        if pod.is_done {
            return;
        }
        let is_new = pod.decided.replace(ShadowPlace { node: node.clone(), at }).is_none();
        state.waiting += u64::from(is_new);
        self.show_waiting(&state);
        if is_new {
            self.metrics.shadow.decided.inc();
            tracing::info!(pod = %name, %node, "the pod would be bound");
        }
    }

    /// The pod would be evicted now. One that was to go before is not counted again: it stays, since nobody evicts it.
    pub fn evicted(&self, uid: &PodUid, name: &GangName, cause: &str, at: Time) {
        let mut state = self.state();
        let pod = state.pod(uid, name);
        if std::mem::replace(&mut pod.is_victim, true) {
            return;
        }
        self.metrics.shadow.evictions.inc();
        tracing::info!(pod = %name, cause, "the pod would be evicted");
        let (namespace, name) = (Arc::clone(&name.namespace), Arc::clone(&name.name));
        state.evictions += 1;
        keep(&mut state.recent_evictions, ShadowEviction { namespace, name, cause: Arc::from(cause), at });
    }

    /// The pod was bound before anything was decided here.
    pub fn ran_before(&self, uid: &PodUid, name: &GangName) {
        self.state().pod(uid, name).is_done = true;
    }

    /// The API shows the pod bound to a node.
    pub fn placed(&self, uid: &PodUid, name: &GangName, node: &NodeName, at: Time) {
        let mut state = self.state();
        let pod = state.pod(uid, name);
        if pod.is_done {
            return;
        }
        let outcome = match &pod.decided {
            Some(decided) if decided.node == *node => ShadowOutcome::SameNode,
            Some(_) => ShadowOutcome::OtherNode,
            None => ShadowOutcome::NotDecided,
        };
        pod.is_done = true;
        let shown = pod.shown(Some(ShadowPlace { node: node.clone(), at }), Some(outcome));
        let decided = shown.decided.as_ref().map(|decided| decided.node.to_string());
        tracing::info!(pod = %name, %node, decided, outcome = outcome.as_str(), "another scheduler has placed the pod");
        self.conclude(&mut state, shown, outcome);
    }

    /// The pod is gone, or has ended.
    pub fn gone(&self, uid: &PodUid) {
        let mut state = self.state();
        let Some(pod) = state.pods.remove(uid) else { return };
        if !pod.is_done && pod.decided.is_some() {
            let outcome = ShadowOutcome::NotPlaced;
            self.conclude(&mut state, pod.shown(None, Some(outcome)), outcome);
        }
    }

    fn conclude(&self, state: &mut State, shown: ShadowPod, outcome: ShadowOutcome) {
        if shown.decided.is_some() {
            state.waiting = state.waiting.saturating_sub(1);
        }
        *state.outcomes.entry(outcome.as_str()).or_default() += 1;
        self.metrics.shadow.compared(outcome);
        self.show_waiting(state);
        keep(&mut state.recent, shown);
    }

    fn show_waiting(&self, state: &State) {
        self.metrics.shadow.waiting.set(i64::try_from(state.waiting).unwrap_or(i64::MAX));
    }

    /// All of it, for people.
    #[must_use]
    pub fn report(&self) -> ShadowReport {
        let state = self.state();
        let mut waiting: Vec<ShadowPod> = state
            .pods
            .values()
            .filter(|pod| !pod.is_done && pod.decided.is_some())
            .map(|pod| pod.shown(None, None))
            .collect();
        waiting.sort_by_key(|pod| pod.decided.as_ref().map(|decided| decided.at));
        waiting.truncate(SHOWN);
        let count = |outcome: ShadowOutcome| state.outcomes.get(outcome.as_str()).copied().unwrap_or(0);
        ShadowReport {
            since: self.since,
            scheduler_names: self.scheduler_names.clone(),
            outcomes: ShadowOutcome::ALL.map(|outcome| (outcome, count(outcome))).to_vec(),
            evictions: state.evictions,
            waiting: state.waiting,
            waiting_pods: waiting,
            recent: state.recent.iter().cloned().collect(),
            recent_evictions: state.recent_evictions.iter().cloned().collect(),
        }
    }
}

impl State {
    fn pod(&mut self, uid: &PodUid, name: &GangName) -> &mut Pod {
        self.pods.entry(uid.clone()).or_insert_with(|| Pod {
            name: name.clone(),
            decided: None,
            is_done: false,
            is_victim: false,
        })
    }
}

/// The newest first, and the oldest away.
fn keep<T>(recent: &mut VecDeque<T>, newest: T) {
    recent.truncate(SHOWN - 1);
    recent.push_front(newest);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn comparison() -> Comparison {
        Comparison::new(Time(0), vec!["volcano".to_owned()], Arc::new(Metrics::default()))
    }

    fn name(pod: &str) -> (PodUid, GangName) {
        (PodUid::from(pod), GangName::new("team", pod))
    }

    fn count(report: &ShadowReport, outcome: ShadowOutcome) -> u64 {
        report.outcomes.iter().find(|(one, _)| *one == outcome).unwrap().1
    }

    #[test]
    fn each_pod_has_one_outcome() {
        let compared = comparison();
        let node = NodeName::from;
        for (pod, decided, placed) in [("a", Some("n1"), "n1"), ("b", Some("n1"), "n2"), ("c", None, "n1")] {
            let (uid, name) = name(pod);
            decided.into_iter().for_each(|decided| compared.decided(&uid, &name, &node(decided), Time(5)));
            compared.placed(&uid, &name, &node(placed), Time(9));
            // Told again with each change of the pod; and a decision that comes late is none.
            compared.placed(&uid, &name, &node(placed), Time(10));
            compared.decided(&uid, &name, &node("n3"), Time(11));
        }
        let (uid, name) = name("d");
        compared.decided(&uid, &name, &node("n1"), Time(5));
        assert_eq!(compared.report().waiting, 1);
        assert_eq!(&*compared.report().waiting_pods[0].name, "d");
        compared.gone(&uid);
        let report = compared.report();
        for outcome in ShadowOutcome::ALL {
            assert_eq!(count(&report, outcome), 1, "{outcome:?}");
        }
        assert_eq!((report.waiting, report.recent.len()), (0, 4));
        assert_eq!(report.recent[3].placed.as_ref().unwrap().at, Time(9));
    }

    #[test]
    fn what_ran_before_is_not_compared_and_a_victim_counts_once() {
        let compared = comparison();
        let (uid, name) = name("a");
        compared.ran_before(&uid, &name);
        compared.placed(&uid, &name, &NodeName::from("n1"), Time(1));
        compared.evicted(&uid, &name, "preempted", Time(2));
        compared.evicted(&uid, &name, "preempted", Time(3));
        compared.gone(&uid);
        let report = compared.report();
        assert_eq!((report.evictions, report.recent_evictions.len(), report.recent.len()), (1, 1, 0));
        assert!(report.outcomes.iter().all(|(_, count)| *count == 0));
    }

    #[test]
    fn only_the_last_are_shown_one_by_one() {
        let compared = comparison();
        for number in 0..SHOWN + 10 {
            let (uid, name) = name(&format!("p{number}"));
            compared.placed(&uid, &name, &NodeName::from("n1"), Time(1));
        }
        let report = compared.report();
        assert_eq!(report.recent.len(), SHOWN);
        assert_eq!(&*report.recent[0].name, format!("p{}", SHOWN + 9));
        assert_eq!(count(&report, ShadowOutcome::NotDecided), (SHOWN + 10) as u64);
    }
}
