//! `docs/reasons.md` holds every reason with an example of its text and its fix. This makes that part of it;
//! `PHALANX_UPDATE_REASONS=1` writes it anew.
//!
//! A new reason is named in the list of its type below (without that nothing compiles) and gets an entry in one of the
//! lists in `reasons_document/` (without that the test fails).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use phalanx_core::reason::{ClaimProblem, HoldCause, NoEvictionCause, QueueHeld, Reason, Spared, Together};

#[path = "reasons_document/claims.rs"]
mod claims;
#[path = "reasons_document/evictions.rs"]
mod evictions;
#[path = "reasons_document/general.rs"]
mod general;
#[path = "reasons_document/nodes.rs"]
mod nodes;
#[path = "reasons_document/queues.rs"]
mod queues;
#[path = "reasons_document/together.rs"]
mod together;

/// A reason as an example.
pub struct Example {
    /// What its code means. Several examples of one code stand together, under the meaning of the first.
    pub meaning: &'static str,
    /// The reason.
    pub reason: Reason,
}

/// An example with the meaning of its code.
pub fn example(meaning: &'static str, reason: Reason) -> Example {
    Example { meaning, reason }
}

/// One more example of the code before.
pub fn also(reason: Reason) -> Example {
    Example { meaning: "", reason }
}

/// Every example, in the order of the document.
fn examples() -> Vec<Example> {
    [
        general::names(),
        queues::examples(),
        general::pods(),
        claims::examples(),
        nodes::examples(),
        together::examples(),
        evictions::examples(),
        general::while_placed(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A function that names the variant of a value, and the list of all names. The match has no rest: a new variant does
/// not compile until it is named, and once it is named it must have an example.
macro_rules! variants {
    ($function:ident, $all:ident, $type:ident: $($name:ident)+) => {
        const $all: &[&str] = &[$(concat!(stringify!($type), "::", stringify!($name))),+];

        fn $function(value: &$type) -> &'static str {
            match value {
                $($type::$name { .. } => concat!(stringify!($type), "::", stringify!($name))),+
            }
        }
    };
}

variants!(reason_name, REASONS, Reason:
    NoSuchQueue QueueClosed NoSuchPriorityClass AboveCapability QuotaUsed TooFewPods PodBlocked PodGated Claim Queue
    NoNodeMatches NoNodeOffers LargerThanAnyNode LargerThanCluster LargerThanAllNodes NoRoom NodesClosed MorePodsWait
    Together MakingRoom Preempted InProgress);
variants!(claim_name, CLAIMS, ClaimProblem:
    Binding Missing OfAnother AwaitsPod Lost Deleting Unreadable UsedByOnePod);
variants!(queue_name, QUEUES, QueueHeld:
    AncestorUsed AboveAncestor SetAside NotLeaf AncestorClosed NotAllowed RanOut Guaranteed Behind);
variants!(hold_name, HOLDS, HoldCause: MakingRoom Waited);
variants!(eviction_name, EVICTIONS, NoEvictionCause: NonPreempting OverShare Quota AdmittedFirst Fit Protected AboveMinimum);
variants!(spared_name, SPARED, Spared: Budget Until NotPreemptable NotReclaimable Guaranteed SwitchedOff);
variants!(together_name, TOGETHER, Together:
    GroupIncomplete GroupHeld GroupDoesNotFit GroupOfQueues TooFewParts Degraded);

/// The variants that a reason is an example of: its own, and those of what it holds.
fn names(reason: &Reason) -> Vec<&'static str> {
    let mut found = vec![reason_name(reason)];
    let mut eviction = None;
    match reason {
        Reason::Claim(held) => found.push(claim_name(&held.problem)),
        Reason::Together(together) => found.push(together_name(together)),
        Reason::Queue(held) => found.push(queue_name(held)),
        Reason::QuotaUsed { eviction: of_quota, .. } => eviction = of_quota.as_ref(),
        Reason::MorePodsWait { cause, .. } => found.extend(names(cause)),
        Reason::NoRoom(room) => {
            found.extend(room.holds.iter().map(|held| hold_name(&held.why)));
            eviction = room.eviction.as_ref();
        }
        _ => {}
    }
    if let Some(eviction) = eviction {
        found.push(eviction_name(&eviction.cause));
        found.extend(eviction.spared.iter().map(spared_name));
    }
    found
}

#[test]
fn every_variant_has_an_example() {
    let examples = examples();
    let shown: BTreeSet<&str> = examples.iter().flat_map(|example| names(&example.reason)).collect();
    let all = [REASONS, CLAIMS, QUEUES, HOLDS, EVICTIONS, SPARED, TOGETHER].concat();
    let missing: Vec<&&str> = all.iter().filter(|name| !shown.contains(*name)).collect();
    assert!(missing.is_empty(), "no example in reasons_document/ of {missing:?}");
}

const BEGIN: &str = "<!-- made by coordinator/core/tests/reasons_document.rs -->\n";
const END: &str = "<!-- end of what is made -->\n";

fn sections() -> String {
    let mut text = String::new();
    let mut codes: Vec<&str> = Vec::new();
    for Example { meaning, reason } in examples() {
        let code = reason.code();
        if codes.last() == Some(&code) {
            // One more of the same code: its block goes on.
            text.truncate(text.len() - "```\n".len());
            text.push('\n');
        } else {
            assert!(!codes.contains(&code), "examples of {code} stand apart: put them together");
            assert!(!meaning.is_empty(), "the first example of {code} has no meaning");
            codes.push(code);
            let _ = write!(text, "\n### `{code}`\n\n{}\n\n```text\n", wrapped(meaning));
        }
        let fix = reason.fix();
        let fix = if fix.is_empty() { "none: waiting is the answer" } else { &fix };
        let _ = write!(text, "{reason}\nfix: {fix}\n```\n");
    }
    text
}

/// Lines of at most 120 letters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().unwrap();
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > 120 {
            lines.push(word.to_owned());
        } else {
            *line += if line.is_empty() { "" } else { " " };
            *line += word;
        }
    }
    lines.join("\n")
}

#[test]
fn the_document_holds_what_reasons_say() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reasons.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("the line after which it begins");
    let (found, after) = rest.split_once(END).expect("the line before which it ends");
    let made = format!("{}\n", sections());
    if std::env::var_os("PHALANX_UPDATE_REASONS").is_some_and(|value| value == "1") {
        std::fs::write(&path, format!("{before}{BEGIN}{made}{END}{after}")).unwrap();
        return;
    }
    let differs = found.lines().zip(made.lines()).find(|(found, made)| found != made);
    assert_eq!(
        differs, None,
        "left: docs/reasons.md, right: what the reason says; PHALANX_UPDATE_REASONS=1 writes it"
    );
    assert_eq!(
        found.len(),
        made.len(),
        "reasons were added or removed; PHALANX_UPDATE_REASONS=1 writes them"
    );
}
