//! One gang's plan as a stored entry. Pure.
//!
//! A list of short lines, one a pod, that people can still read: `NAME NODE LEASE POD GPUS`. What all pods of a gang have
//! in common stands once beside them. A UUID is 22 digits of base64url instead of 36 and more. What a plan evicts first is
//! a list of such lines too: `NAMESPACE/NAME POD gang` where the pod's whole gang goes, and `pod` where it goes alone.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use phalanx_common::ids::{GangName, GpuId, LeaseId, NodeName, PodUid};
use phalanx_common::plan::{GangPlan, PlanPurpose, PlannedPod, PlannedVictim};
use phalanx_common::units::Time;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Begins a text whose first part stands once for all pods.
const SHORT: char = '*';
/// Begins the UID of a pod that is no UUID.
const PLAIN: char = '=';
/// Stands for a lease, or for GPUs, where there is none.
const NONE: &str = "-";
/// Purpose of a plan that evicts first; the other one is not written, so that entries of before have it too.
const MAKE_ROOM: &str = "makeRoom";
/// Last word of a victim whose whole gang goes, and of one that goes alone.
const WHOLE_GANG: &str = "gang";
const ALONE: &str = "pod";
/// Digits of a UUID.
const UUID_DIGITS: usize = 22;
/// Text of a pod beside its name and GPUs, about, and of an entry beside its pods and the names of nodes.
const POD_BYTES: usize = 48;
/// Marks around a node's name.
const NODE_BYTES: usize = 3;
const ENTRY_BYTES: usize = 160;
/// Text of a victim beside its name, about, and of the fields that only a plan with victims has.
const VICTIM_BYTES: usize = 44;
const MAKE_ROOM_BYTES: usize = 40;

/// An entry as JSON. Whole numbers only up to what an API server keeps: 63 bits.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    /// UID of the PodGroup that the plan was made for.
    uid: String,
    /// Counter of the term that wrote it.
    pub(super) term: u64,
    /// When the binding must be finished, in milliseconds since 1970.
    deadline: u64,
    /// Names of nodes, which pods name by their place here.
    #[serde(default)]
    nodes: Vec<String>,
    /// What the names of pods begin with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    names: String,
    /// What the leases begin with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    leases: String,
    /// A line for each pod.
    #[serde(default)]
    pods: Vec<String>,
    /// What it is for, where that is not the binding.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    purpose: String,
    /// A line for each pod that is evicted for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    victims: Vec<String>,
}

impl Entry {
    pub(super) fn of(plan: &GangPlan) -> Self {
        let mut nodes: Vec<String> = plan.pods.iter().map(|pod| pod.node.as_str().to_owned()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut texts = plan.pods.iter().filter_map(|pod| pod.lease).map(|lease| lease.to_string());
        let leases = head(texts.next().as_deref().unwrap_or_default()).to_owned();
        let names = head(plan.pods.first().map_or("", |pod| &pod.name)).to_owned();
        let line = |pod: &PlannedPod| {
            let node =
                nodes.binary_search_by(|node| node.as_str().cmp(pod.node.as_str())).unwrap_or_default();
            let lease = pod.lease.map_or_else(|| NONE.to_owned(), |lease| short(&lease.to_string(), &leases));
            let gpus: Vec<String> = pod.gpus.iter().map(|gpu| digits(gpu.0)).collect();
            let gpus = if gpus.is_empty() { NONE.to_owned() } else { gpus.join(",") };
            format!("{} {node} {lease} {} {gpus}", short(&pod.name, &names), uid_text(pod.pod.as_str()))
        };
        let pods = plan.pods.iter().map(line).collect();
        let (uid, deadline) = (plan.gang_uid.to_string(), plan.binding_deadline.0);
        let purpose = match plan.purpose {
            PlanPurpose::Bind => String::new(),
            PlanPurpose::MakeRoom => MAKE_ROOM.to_owned(),
        };
        let victims = plan.victims.iter().map(victim_text).collect();
        Self { uid, term: plan.term, deadline, nodes, names, leases, pods, purpose, victims }
    }

    /// The plan of this gang.
    ///
    /// # Errors
    /// The field, and what is wrong with it.
    pub(super) fn plan(&self, gang: GangName) -> Result<GangPlan, String> {
        let pods = self.pods.iter().enumerate();
        let pods = pods.map(|(at, line)| self.pod(line).map_err(|problem| format!("pods[{at}]: {problem}")));
        let victims = self.victims.iter().enumerate();
        let victims =
            victims.map(|(at, line)| victim_of(line).map_err(|problem| format!("victims[{at}]: {problem}")));
        Ok(GangPlan {
            gang,
            gang_uid: Arc::from(self.uid.as_str()),
            term: self.term,
            binding_deadline: Time(self.deadline),
            pods: pods.collect::<Result<_, _>>()?,
            purpose: match self.purpose.as_str() {
                "" => PlanPurpose::Bind,
                MAKE_ROOM => PlanPurpose::MakeRoom,
                // To bind what still waits for its room would be wrong: whoever wrote this goes on with it.
                other => return Err(format!("purpose: must be {MAKE_ROOM}, or not there, found {other:?}")),
            },
            victims: victims.collect::<Result<_, _>>()?,
        })
    }

    fn pod(&self, line: &str) -> Result<PlannedPod, String> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [name, node, lease, pod, gpus] = fields[..] else {
            let count = fields.len();
            return Err(format!("must be 5 words (name, node, lease, pod, GPUs), found {count} in {line:?}"));
        };
        let place: Option<usize> = node.parse().ok();
        let node = place.and_then(|place| self.nodes.get(place)).ok_or_else(|| {
            format!(
                "the second word must be a place in nodes, of which there are {}, found {node:?}",
                self.nodes.len()
            )
        })?;
        let lease = (lease != NONE).then(|| long(lease, &self.leases).parse::<LeaseId>());
        let lease = lease.transpose().map_err(|error| format!("the third word: {error}"))?;
        let gpus = gpus.split(',').filter(|_| gpus != NONE).map(|text| {
            let wrong = || format!("the last word must be GPUs of {UUID_DIGITS} digits each, found {text:?}");
            number(text).map(GpuId).ok_or_else(wrong)
        });
        Ok(PlannedPod {
            pod: uid_of(pod).ok_or_else(|| no_uid("fourth", pod))?,
            name: Arc::from(long(name, &self.names)),
            node: NodeName::from(node.as_str()),
            lease,
            gpus: gpus.collect::<Result<_, _>>()?,
        })
    }
}

fn victim_text(victim: &PlannedVictim) -> String {
    let goes = if victim.whole_gang { WHOLE_GANG } else { ALONE };
    format!("{} {} {goes}", victim.name, uid_text(victim.pod.as_str()))
}

fn victim_of(line: &str) -> Result<PlannedVictim, String> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [name, pod, goes] = fields[..] else {
        let count = fields.len();
        return Err(format!("must be 3 words (name, pod, what goes), found {count} in {line:?}"));
    };
    let (namespace, name) = name
        .split_once('/')
        .ok_or_else(|| format!("the first word must be NAMESPACE/NAME of a pod, found {name:?}"))?;
    Ok(PlannedVictim {
        pod: uid_of(pod).ok_or_else(|| no_uid("second", pod))?,
        name: GangName::new(namespace, name),
        whole_gang: match goes {
            WHOLE_GANG => true,
            ALONE => false,
            other => {
                return Err(format!("the last word must be {WHOLE_GANG} or {ALONE}, found {other:?}"));
            }
        },
    })
}

fn no_uid(word: &str, found: &str) -> String {
    format!("the {word} word must be {UUID_DIGITS} digits, or {PLAIN} and a UID, found {found:?}")
}

/// Bytes of a plan's entry, about.
pub(super) fn text_bytes(plan: &GangPlan) -> usize {
    let (mut sum, mut last) = (ENTRY_BYTES, None);
    if !plan.victims.is_empty() || plan.purpose != PlanPurpose::Bind {
        sum += MAKE_ROOM_BYTES;
    }
    for victim in &plan.victims {
        sum += VICTIM_BYTES + victim.name.namespace.len() + victim.name.name.len();
    }
    for pod in &plan.pods {
        sum += POD_BYTES + pod.name.len() + pod.gpus.len() * (UUID_DIGITS + 1);
        // Each node stands there once, and the pods of one mostly follow each other.
        if last.replace(&pod.node) != Some(&pod.node) {
            sum += NODE_BYTES + pod.node.as_str().len();
        }
    }
    sum
}

/// The part that others are likely to share: up to the last `-`.
fn head(text: &str) -> &str {
    text.rfind('-').map_or("", |at| &text[..=at])
}

/// Without the shared part. Names and leases have no `*`.
fn short(text: &str, head: &str) -> String {
    match text.strip_prefix(head).filter(|_| !head.is_empty()) {
        Some(rest) => format!("{SHORT}{rest}"),
        None => text.to_owned(),
    }
}

fn long(text: &str, head: &str) -> String {
    text.strip_prefix(SHORT).map_or_else(|| text.to_owned(), |rest| format!("{head}{rest}"))
}

fn uid_text(uid: &str) -> String {
    let number = Uuid::try_parse(uid).ok().filter(|uuid| uuid.hyphenated().to_string() == uid);
    number.map_or_else(|| format!("{PLAIN}{uid}"), |uuid| digits(uuid.as_u128()))
}

fn uid_of(text: &str) -> Option<PodUid> {
    if let Some(plain) = text.strip_prefix(PLAIN) {
        return Some(PodUid::from(plain));
    }
    number(text).map(|number| PodUid::from(Uuid::from_u128(number).hyphenated().to_string()))
}

/// The 16 bytes of a number.
fn digits(number: u128) -> String {
    URL_SAFE_NO_PAD.encode(number.to_be_bytes())
}

fn number(text: &str) -> Option<u128> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    bytes.try_into().ok().map(u128::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "3e9e55e5-f5ad-4cb4-8d5c-d6b0cc0245f1";

    fn gpus(first: u64, count: u64) -> Vec<GpuId> {
        // Numbers that look drawn, so that no text is shorter by chance.
        let scatter =
            |number: u64| u128::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        (0..count).map(|number| GpuId(scatter(first + number))).collect()
    }

    /// Pods of one gang, eight GPUs a node.
    fn plan(pods: u64, gpus_each: u64) -> GangPlan {
        let pod = |number: u64| PlannedPod {
            pod: PodUid::from(Uuid::from_u128(gpus(number + 50_000, 1)[0].0).to_string()),
            name: Arc::from(format!("llm-training-worker-{number}")),
            node: NodeName::from(format!("gpu-node-{:04}", number * gpus_each / 8)),
            lease: Some(LeaseId { term: 17, serial: 0x4883_f741 << 32 | (1_000 + number) }),
            gpus: gpus(number * gpus_each, gpus_each),
        };
        GangPlan {
            gang: GangName::new("team-a", "llm-training"),
            gang_uid: Arc::from(UUID),
            term: 17,
            binding_deadline: Time(1_764_437_598_130),
            purpose: PlanPurpose::Bind,
            victims: Vec::new(),
            pods: (0..pods).map(pod).collect(),
        }
    }

    fn back(plan: &GangPlan) -> Result<GangPlan, String> {
        let text = serde_json::to_string(&Entry::of(plan)).unwrap();
        serde_json::from_str::<Entry>(&text).unwrap().plan(plan.gang.clone())
    }

    #[test]
    fn a_uuid_has_twenty_two_digits_of_base64url() {
        for (number_, text) in [
            (0, "AAAAAAAAAAAAAAAAAAAAAA"),
            (u128::MAX, "_____________________w"),
            (1, "AAAAAAAAAAAAAAAAAAAAAQ"),
            (0xfb_u128 << 120, "-wAAAAAAAAAAAAAAAAAAAA"),
        ] {
            assert_eq!(digits(number_), text);
            assert_eq!(number(text), Some(number_));
        }
        for wrong in ["", "A", "AAAAAAAAAAAAAAAAAAAAAR", "AAAAAAAAAAAAAAAAAAAAA=", "AAAAAAAAAAAAAAAAAAAAAAA"]
        {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_plan_is_short_and_survives() {
        for (pods, each, most) in [(8, 1, 85), (8, 8, 260), (200, 8, 245)] {
            let plan = plan(pods, each);
            assert_eq!(back(&plan).as_ref(), Ok(&plan));
            let bytes = serde_json::to_string(&Entry::of(&plan)).unwrap().len();
            let earlier = serde_json::to_string(&plan).unwrap().len();
            println!(
                "{pods} pods of {each} GPUs: {bytes} bytes, {} a pod, earlier {}",
                bytes / pods as usize,
                earlier / pods as usize
            );
            assert!(bytes < most * pods as usize, "{pods} of {each}: {bytes}");
            assert!(text_bytes(&plan) >= bytes && text_bytes(&plan) < 2 * bytes, "{}", text_bytes(&plan));
        }
    }

    #[test]
    fn what_is_unusual_survives_too() {
        let mut plan = plan(3, 1);
        plan.pods[0].lease = None;
        plan.pods[0].gpus.clear();
        plan.pods[1].name = Arc::from("other");
        plan.pods[1].pod = PodUid::from(UUID.to_uppercase());
        plan.pods[2].lease = Some(LeaseId { term: u64::MAX, serial: u64::MAX });
        plan.pods[2].pod = PodUid::from("");
        assert_eq!(back(&plan).as_ref(), Ok(&plan));
        plan.pods.clear();
        assert_eq!(back(&plan).as_ref(), Ok(&plan));
    }

    fn victims(count: u64) -> Vec<PlannedVictim> {
        let victim = |number: u64| PlannedVictim {
            pod: PodUid::from(Uuid::from_u128(gpus(number + 90_000, 1)[0].0).to_string()),
            name: GangName::new("team-b", &format!("batch-worker-{number}")),
            whole_gang: number > 0,
        };
        (0..count).map(victim).collect()
    }

    #[test]
    fn a_plan_that_makes_room_names_its_victims_and_survives() {
        let mut plan = plan(8, 8);
        let plain = serde_json::to_value(Entry::of(&plan)).unwrap();
        assert_eq!((plain.get("purpose"), plain.get("victims")), (None, None), "a plain plan is as it was");
        plan.purpose = PlanPurpose::MakeRoom;
        assert_eq!(back(&plan).as_ref(), Ok(&plan));
        plan.victims = victims(64);
        assert_eq!(back(&plan).as_ref(), Ok(&plan));
        let text = serde_json::to_string(&Entry::of(&plan)).unwrap();
        assert!(text_bytes(&plan) >= text.len() && text_bytes(&plan) < 2 * text.len(), "{}", text.len());
        let stored = serde_json::to_value(Entry::of(&plan)).unwrap();
        assert_eq!(stored["purpose"], "makeRoom");
        let lines = stored["victims"].as_array().unwrap();
        assert!(lines[0].as_str().unwrap().starts_with("team-b/batch-worker-0 "), "{}", lines[0]);
        assert!(
            lines[0].as_str().unwrap().ends_with(" pod") && lines[1].as_str().unwrap().ends_with(" gang")
        );
        // A victim's UID need not be a UUID.
        plan.victims[0].pod = PodUid::from("u1");
        assert_eq!(back(&plan).as_ref(), Ok(&plan));
    }

    #[test]
    fn an_entry_of_before_is_for_the_binding() {
        let text = r#"{"uid":"u","term":3,"deadline":5,"nodes":["n1"],"names":"p-","pods":["*0 0 - =u1 -"]}"#;
        let plan = serde_json::from_str::<Entry>(text).unwrap().plan(GangName::new("a", "g")).unwrap();
        assert_eq!((plan.purpose, plan.victims.len(), plan.pods.len()), (PlanPurpose::Bind, 0, 1));
        assert_eq!(serde_json::to_string(&Entry::of(&plan)).unwrap(), text, "and is written as it was");
    }

    #[test]
    fn a_wrong_victim_or_purpose_is_named() {
        let mut plan = plan(2, 1);
        plan.purpose = PlanPurpose::MakeRoom;
        plan.victims = victims(2);
        for (line, problem) in [
            ("b/p", "victims[1]: must be 3 words (name, pod, what goes), found 1 in \"b/p\""),
            ("p =u pod", "victims[1]: the first word must be NAMESPACE/NAME of a pod, found \"p\""),
            ("b/p u pod", "victims[1]: the second word must be 22 digits, or = and a UID, found \"u\""),
            ("b/p =u all", "victims[1]: the last word must be gang or pod, found \"all\""),
        ] {
            let mut entry = Entry::of(&plan);
            entry.victims[1] = line.to_owned();
            let error = entry.plan(plan.gang.clone()).unwrap_err();
            assert_eq!(error, problem);
        }
        let mut entry = Entry::of(&plan);
        entry.purpose = "swap".to_owned();
        let error = entry.plan(plan.gang.clone()).unwrap_err();
        assert_eq!(error, "purpose: must be makeRoom, or not there, found \"swap\"");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let broken = |line: &str| {
            let mut entry = Entry::of(&plan(2, 1));
            entry.pods[1] = line.to_owned();
            entry.plan(GangName::new("a", "g")).unwrap_err()
        };
        for (line, problem) in [
            ("a 0 -", "pods[1]: must be 5 words"),
            ("a 7 - =u -", "a place in nodes, of which there are 1, found \"7\""),
            ("a 0 *x =u -", "the third word: lease id \"17.4883f741-x\" is not valid"),
            ("a 0 - u -", "the fourth word must be 22 digits, or = and a UID, found \"u\""),
            ("a 0 - =u GPU-1", "the last word must be GPUs of 22 digits each, found \"GPU-1\""),
        ] {
            let error = broken(line);
            assert!(error.contains(problem), "{error}");
        }
    }
}
