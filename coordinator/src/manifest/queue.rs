//! Queue and QueuePolicy.

use std::sync::Arc;

use phalanx_common::queue::Dequeue;
use phalanx_common::resources::{CPU, MEMORY, Resources, format_amount};
use phalanx_common::units::Millis;

use super::amounts::read_resources;
use super::names::{label_problem, read_name};
use super::policy::{parse_duration, parse_run_time};
use super::reader::{Cursor, Sink};
use super::tree::Tree;

/// The queue above all others, which takes no gangs.
pub const ROOT_QUEUE: &str = "root";

/// What we read of a Queue's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueFields {
    /// Priority.
    pub priority: i32,
    /// Ceiling; `cpu: 0` and `memory: 0` are left out.
    pub capability: Resources,
    /// What it is entitled to.
    pub deserved: Resources,
    /// What is set aside for it.
    pub guarantee: Resources,
    /// The queue above it; `None` = the root.
    pub parent: Option<String>,
    /// Its share beside others.
    pub weight: u32,
    /// Others may take back what it has above its share.
    pub reclaimable: bool,
    /// What happens behind a gang that does not fit.
    pub dequeue: Dequeue,
}

impl Default for QueueFields {
    fn default() -> Self {
        Self {
            priority: 0,
            capability: Resources::new(),
            deserved: Resources::new(),
            guarantee: Resources::new(),
            parent: None,
            weight: 1,
            reclaimable: true,
            dequeue: Dequeue::Traverse,
        }
    }
}

/// Reads a Queue's spec; it may be absent. What of it contradicts itself is for `check_shares`: a stored queue that does
/// is told from one that cannot be read.
pub fn read_queue(cursor: Option<&Cursor<'_>>, sink: &mut Sink) -> QueueFields {
    let mut queue = QueueFields::default();
    let Some(mut fields) = cursor.and_then(|at| at.fields(sink)) else { return queue };
    if let Some(weight) = fields.get("weight").and_then(|at| at.whole(sink, 1, 65535)) {
        queue.weight = u32::try_from(weight).unwrap_or(1);
    }
    if let Some(at) = fields.get("priority") {
        queue.priority =
            at.whole(sink, 0, i64::from(i32::MAX)).and_then(|value| i32::try_from(value).ok()).unwrap_or(0);
    }
    if let Some(at) = fields.get("capability") {
        for (name, amount) in read_resources(&at, sink).iter() {
            if amount == 0 && matches!(name.as_str(), CPU | MEMORY) {
                let message = format!("0 means no limit, as in Volcano; leave {name} out to say so");
                at.entry_or_self(name.as_str()).warn(sink, message);
            } else {
                queue.capability.set(name.clone(), amount);
            }
        }
    }
    queue.deserved = fields.get("deserved").map(|at| read_resources(&at, sink)).unwrap_or_default();
    if let Some(mut guarantee) = fields.get("guarantee").and_then(|at| at.fields(sink)) {
        queue.guarantee = guarantee.get("resource").map(|at| read_resources(&at, sink)).unwrap_or_default();
        guarantee.finish(sink);
    }
    queue.reclaimable = fields.get("reclaimable").and_then(|at| at.boolean(sink)).unwrap_or(true);
    if let Some(at) = fields.get("dequeueStrategy") {
        queue.dequeue = match at.one_of(sink, &["fifo", "traverse"]) {
            Some("fifo") => Dequeue::Fifo,
            _ => Dequeue::Traverse,
        };
    }
    queue.parent = fields.get("parent").and_then(|at| read_parent(&at, sink));
    fields.not_honoured(sink, &["affinity", "extendClusters", "type"]);
    fields.finish(sink);
    queue
}

/// Fields of a queue's status that only tell what was seen.
const SEEN: [&str; 7] = ["allocated", "completed", "inqueue", "pending", "reservation", "running", "unknown"];

/// Whether a queue is to be open, from its status: there users write it with kubectl too. Everything else in the status
/// is what was seen once.
pub fn read_queue_state(status: &Cursor<'_>, sink: &mut Sink) -> Option<&'static str> {
    let mut fields = status.fields(sink)?;
    let state = fields.get("state");
    for seen in SEEN {
        fields.get(seen);
    }
    fields.finish(sink);
    let state = state?;
    match state.one_of(sink, &["Open", "Closed", "Closing"])? {
        "Open" => Some("Open"),
        _ => Some("Closed"),
    }
}

/// The name of the queue above; none, as clients write it, and `root` are the same.
fn read_parent(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<String> {
    if cursor.text(sink)?.is_empty() {
        return None;
    }
    read_name(cursor, sink).filter(|parent| parent != ROOT_QUEUE)
}

/// Refuses what contradicts itself: guarantee ≤ deserved ≤ capability, resource by resource, and a queue that is its own
/// parent. A resource that the limit does not name has none.
pub fn check_shares(cursor: &Cursor<'_>, name: &str, queue: &QueueFields, sink: &mut Sink) {
    if queue.parent.as_deref() == Some(name) {
        let at = cursor.entry_or_self("parent");
        at.error(sink, format!("queue {name} cannot be above itself: name another queue, or leave it out"));
    }
    let deserved = cursor.entry_or_self("deserved");
    at_most(&deserved, &queue.deserved, "capability", &queue.capability, sink);
    let guarantee = cursor.entry_or_self("guarantee").entry_or_self("resource");
    at_most(&guarantee, &queue.guarantee, "deserved", &queue.deserved, sink);
    at_most(&guarantee, &queue.guarantee, "capability", &queue.capability, sink);
}

fn at_most(at: &Cursor<'_>, resources: &Resources, limit_name: &str, limits: &Resources, sink: &mut Sink) {
    for (name, amount) in resources.iter() {
        if let Some(limit) = limits.get(name.as_str())
            && amount > limit
        {
            let text = |amount| format_amount(name.as_str(), amount);
            let message =
                format!("must be at most {limit_name}, which is {}, found {}", text(limit), text(amount));
            at.entry_or_self(name.as_str()).error(sink, message);
        }
    }
}

/// What we read of a QueuePolicy's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicyFields {
    /// Namespaces whose gangs the queue takes; `None` = all.
    pub namespaces: Option<Vec<Arc<str>>>,
    /// No victim before it has run so long.
    pub minimum_run: Option<Millis>,
    /// A gang that waited so long gets a hold.
    pub hold_after: Option<Millis>,
    /// All pods have started after this.
    pub startup_deadline: Option<Millis>,
    /// Taken where a gang says nothing.
    pub default_run: Option<Millis>,
    /// A gang is stopped after this.
    pub maximum_run: Option<Millis>,
}

/// Reads a QueuePolicy's spec; it may be absent. Nobody else writes objects of this kind, so that a field that is not known
/// is a slip of the hand: it is refused.
pub fn read_queue_policy(cursor: Option<&Cursor<'_>>, sink: &mut Sink) -> QueuePolicyFields {
    type Parse = fn(&str) -> Result<Millis, String>;
    let mut policy = QueuePolicyFields::default();
    let Some(mut fields) = cursor.and_then(|at| at.fields(sink)) else { return policy };
    policy.namespaces = fields.get("namespaces").map(|at| read_namespaces(&at, sink));
    let mut time = |name, parse: Parse| fields.get(name).and_then(|at| read_time(&at, parse, sink));
    policy.minimum_run = time("minimumRunTime", parse_duration);
    policy.hold_after = time("holdAfter", parse_duration);
    policy.startup_deadline = time("startupDeadline", parse_run_time);
    policy.default_run = time("defaultRunTime", parse_run_time);
    policy.maximum_run = time("maximumRunTime", parse_run_time);
    fields.refuse_unknown(sink, "holdAfter: 5m");
    policy
}

/// What is no list, or no name in it, names no namespace: it must not open the queue to all.
fn read_namespaces(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<Arc<str>> {
    let mut namespaces: Vec<Arc<str>> = Vec::new();
    for at in cursor.list(sink).into_iter().flatten() {
        let Some(text) = at.text(sink) else { continue };
        match label_problem(text) {
            Some(problem) => at.error(sink, problem),
            None if namespaces.iter().any(|known| &**known == text) => {}
            None => namespaces.push(Arc::from(text)),
        }
    }
    namespaces
}

fn read_time(
    cursor: &Cursor<'_>,
    parse: fn(&str) -> Result<Millis, String>,
    sink: &mut Sink,
) -> Option<Millis> {
    let text = match &cursor.node.value {
        // `300` without a unit is a number in YAML, and the answer shall show how it is written.
        Tree::Number { text, .. } => text,
        _ => cursor.text(sink)?,
    };
    match parse(text) {
        Ok(time) => Some(time),
        Err(problem) => {
            cursor.error(sink, problem);
            None
        }
    }
}
