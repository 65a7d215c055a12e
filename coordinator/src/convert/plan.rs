//! Plans as objects, and the writes that keep them: what a later leader has written stays, whoever is late.
//!
//! Eight objects hold the plans of all gangs. The gang's name says which one, so that whatever is written of a gang,
//! by whichever leader, meets the same object: its version is what an overtaken write fails on. An object is there as
//! long as a plan is in it.

use std::collections::BTreeSet;

use phalanx_common::ids::GangName;
use phalanx_common::plan::GangPlan;
use phalanx_core::is_believable;
use serde_json::{Map, Value, json};

use self::entry::Entry;
use super::Reading;
use crate::api::{ApiError, Kind, Mutation, Object, ObjectKey};

mod entry;
mod told;

pub use self::told::PlansTold;

/// Objects that hold plans. Never changed: leaders of two versions must look into the same object.
pub const OBJECTS: u8 = 8;
/// Plans in an object have at most so many bytes, about: etcd takes 1.5 MiB, and each write sends all of it to those who
/// watch.
pub const MOST_BYTES: usize = 1024 * 1024;

const PLANS: &str = "plans";
const GANGS: &str = "gangs";
const TERM: &str = "term";
/// Name of an object, before its number.
const NAME: &str = "plans-";
/// Of a name or a problem so many characters are shown, and of what is longer so many at its end.
const SHOWN: usize = 320;
const SHOWN_LAST: usize = 80;

/// What is to become of a gang's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanChange {
    /// This is the plan.
    Write(Box<GangPlan>),
    /// It has none any more.
    Remove {
        /// The gang.
        gang: GangName,
        /// Counter of the leader's term.
        term: u64,
    },
}

impl PlanChange {
    /// Whose plan it is.
    #[must_use]
    pub fn gang(&self) -> &GangName {
        match self {
            Self::Write(plan) => &plan.gang,
            Self::Remove { gang, .. } => gang,
        }
    }
}

/// Number of the object that holds a gang's plan: FNV-1a of its name, stirred, because names of gangs differ in their last
/// letters only.
#[must_use]
pub fn number_of(gang: &GangName) -> u8 {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    const FACTOR: u64 = 0x0100_0000_01b3;
    const STIR: u64 = 0xff51_afd7_ed55_8ccd;
    let bytes = gang.namespace.bytes().chain([b'/']).chain(gang.name.bytes());
    let hash = bytes.fold(START, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FACTOR));
    let stirred = (hash ^ hash >> 33).wrapping_mul(STIR);
    ((stirred >> 33) % u64::from(OBJECTS)) as u8
}

/// Key of the object of this number.
#[must_use]
pub fn key_of_number(reading: &Reading, number: u8) -> ObjectKey {
    ObjectKey::new(Kind::GangPlan, reading.namespace(), &format!("{NAME}{number}"))
}

/// Number of an object that holds plans of ours; `None` for every other one.
fn number_of_object(reading: &Reading, object: &Object) -> Option<u8> {
    let metadata = &object.metadata;
    let number: u8 = metadata.name.strip_prefix(NAME)?.parse().ok()?;
    let key = key_of_number(reading, number);
    let is_ours = number < OBJECTS && metadata.namespace == key.namespace && metadata.name == key.name;
    is_ours.then_some(number)
}

/// Key of the object that holds a gang's plan.
#[must_use]
pub fn plan_key(reading: &Reading, gang: &GangName) -> ObjectKey {
    key_of_number(reading, number_of(gang))
}

/// Bytes of a plan as it is stored, about.
#[must_use]
pub fn text_bytes(plan: &GangPlan) -> usize {
    entry::text_bytes(plan)
}

/// Plans of an object, and what of it cannot be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plans {
    /// Those that can be read.
    pub found: Vec<GangPlan>,
    /// Object, field and problem of the others.
    pub warnings: Vec<String>,
}

/// Reads all plans of an object.
#[must_use]
pub fn plans_of_object(reading: &Reading, object: &Object) -> Plans {
    let mut plans = Plans::default();
    match entries(reading, object) {
        Ok(entries) => {
            for (name, entry) in entries {
                match read_entry(object, name, entry) {
                    Ok(plan) => plans.found.push(plan),
                    Err(warning) => plans.warnings.push(warning),
                }
            }
        }
        Err(warning) => plans.warnings.push(warning),
    }
    plans
}

/// A gang's plan in an object.
#[must_use]
pub fn plan_in(reading: &Reading, object: &Object, gang: &GangName) -> Option<GangPlan> {
    number_of_object(reading, object)?;
    let name = gang.to_string();
    read_entry(object, &name, object.spec.get(PLANS)?.get(&name)?).ok()
}

/// What stands in an object, by the gangs' names.
///
/// # Errors
/// What is wrong with the object as a whole.
fn entries<'a>(
    reading: &Reading,
    object: &'a Object,
) -> Result<impl Iterator<Item = (&'a String, &'a Value)>, String> {
    if number_of_object(reading, object).is_none() {
        let (namespace, name) = (&object.metadata.namespace, &object.metadata.name);
        return Err(format!(
            "{}: plans stand in {NAME}0 to {NAME}{} in namespace {}, and in no other object; it is left out. Remove it: \
             kubectl delete gangplan -n {namespace} {name}",
            object.key(),
            OBJECTS - 1,
            reading.namespace()
        ));
    }
    let entries = match object.spec.get(PLANS) {
        None | Some(Value::Null) => None,
        Some(Value::Object(entries)) => Some(entries),
        Some(other) => {
            return Err(format!(
                "{}: spec.{PLANS}: must be an object, found {}; its plans are left out",
                object.key(),
                shown(&other.to_string())
            ));
        }
    };
    Ok(entries.into_iter().flatten())
}

/// Reads one plan of an object that is one of the eight.
fn read_entry(object: &Object, name: &str, entry: &Value) -> Result<GangPlan, String> {
    let wrong = |problem: String| {
        let (name, problem) = (shown(name), shown(&problem));
        format!("{}: spec.{PLANS}[{name}]{problem}; the plan is left out", object.key())
    };
    let (namespace, group) =
        name.split_once('/').ok_or_else(|| wrong(": the name must be NAMESPACE/PODGROUP".to_owned()))?;
    let gang = GangName::new(namespace, group);
    // Nobody would find it there, to replace or to remove it.
    let place = format!("{NAME}{}", number_of(&gang));
    if object.metadata.name != place {
        return Err(wrong(format!(": belongs into GangPlan {}/{place}", object.metadata.namespace)));
    }
    let entry: Entry = serde::Deserialize::deserialize(entry).map_err(|error| wrong(format!(": {error}")))?;
    entry.plan(gang).map_err(|problem| wrong(format!(".{problem}")))
}

/// A text that may be of any length, as a warning shows it.
fn shown(text: &str) -> String {
    let length = text.chars().count();
    if length <= SHOWN {
        return text.to_owned();
    }
    let first: String = text.chars().take(SHOWN - SHOWN_LAST).collect();
    let last: String = text.chars().skip(length - SHOWN_LAST).collect();
    format!("{first} ... {last}")
}

/// What is decided of changes.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The one write that does all of them; it carries UID and resourceVersion of the stored object. `None` where it is
    /// as it shall be already.
    pub mutation: Option<Mutation>,
    /// What came of each change if that write is done.
    pub answers: Vec<Result<(), ApiError>>,
}

/// Decides how changes of plans become one write to the object of this key. Those of one gang keep their order.
#[must_use]
pub fn decide<'a>(
    key: &ObjectKey,
    stored: Option<&Object>,
    changes: impl IntoIterator<Item = &'a PlanChange>,
) -> Decided {
    let before = stored.and_then(|stored| stored.spec.get(PLANS)).and_then(Value::as_object);
    let mut plans = before.cloned().unwrap_or_default();
    let mut bytes: usize = plans.iter().map(|(name, entry)| entry_bytes(name, entry)).sum();
    let changes: Vec<&PlanChange> = changes.into_iter().collect();
    let mut answers = vec![Ok(()); changes.len()];
    for at in order_of(&changes) {
        answers[at] = match changes[at] {
            PlanChange::Write(plan) => put(key, &mut plans, &mut bytes, plan),
            PlanChange::Remove { gang, term } => remove(key, &mut plans, &mut bytes, gang, *term),
        };
    }
    let is_same = before.map_or(plans.is_empty(), |before| *before == plans);
    let mutation = match stored {
        None if plans.is_empty() => None,
        None => {
            let mut object = Object::new(Kind::GangPlan, &key.namespace, &key.name);
            object.spec = spec_with(None, plans);
            Some(Mutation::Create(Box::new(object)))
        }
        Some(stored) if plans.is_empty() && holds_only_plans(&stored.spec) => {
            Some(Mutation::Delete { key: key.clone(), preconditions: stored.preconditions() })
        }
        Some(_) if is_same => None,
        Some(stored) => {
            let mut object = stored.clone();
            object.spec = spec_with(Some(&stored.spec), plans);
            Some(Mutation::Update(Box::new(object)))
        }
    };
    Decided { mutation, answers }
}

/// The order in which changes are made: removals first, since what they free may be needed; but none before a write to
/// its own gang.
fn order_of(changes: &[&PlanChange]) -> Vec<usize> {
    let mut written = BTreeSet::new();
    let (mut first, mut then) = (Vec::new(), Vec::new());
    for (at, change) in changes.iter().enumerate() {
        match change {
            PlanChange::Remove { gang, .. } if !written.contains(gang) => first.push(at),
            PlanChange::Remove { .. } => then.push(at),
            PlanChange::Write(plan) => {
                written.insert(&plan.gang);
                then.push(at);
            }
        }
    }
    first.append(&mut then);
    first
}

/// True where nothing is lost with the last plan. What a later version keeps beside the plans is not ours to delete.
fn holds_only_plans(spec: &Value) -> bool {
    let is_known = |field: &String| [PLANS, GANGS, TERM].contains(&field.as_str());
    spec.as_object().is_none_or(|spec| spec.keys().all(is_known))
}

/// Fields that this version does not know stay.
fn spec_with(before: Option<&Value>, plans: Map<String, Value>) -> Value {
    let mut spec = before.and_then(Value::as_object).cloned().unwrap_or_default();
    let term = plans.values().filter_map(term_of).max();
    spec.insert(TERM.to_owned(), json!(term));
    spec.insert(GANGS.to_owned(), json!(plans.len()));
    spec.insert(PLANS.to_owned(), Value::Object(plans));
    Value::Object(spec)
}

fn term_of(entry: &Value) -> Option<u64> {
    entry.get(TERM).and_then(Value::as_u64)
}

fn entry_bytes(name: &str, entry: &Value) -> usize {
    name.len() + entry.to_string().len()
}

fn put(
    key: &ObjectKey,
    plans: &mut Map<String, Value>,
    bytes: &mut usize,
    plan: &GangPlan,
) -> Result<(), ApiError> {
    let name = plan.gang.to_string();
    let invalid = |problem: String| ApiError::Invalid(format!("{key}: the plan of gang {name}: {problem}"));
    let stored = plans.get(&name);
    check_entry(key, &name, stored, plan.term)?;
    let entry = serde_json::to_value(Entry::of(plan)).map_err(|error| invalid(error.to_string()))?;
    let freed = stored.map_or(0, |stored| entry_bytes(&name, stored));
    let needed = entry_bytes(&name, &entry);
    if needed > MOST_BYTES {
        return Err(invalid(format!(
            "it has {needed} bytes, and at most {MOST_BYTES} are allowed; make the gang smaller"
        )));
    }
    let sum = *bytes - freed.min(*bytes) + needed;
    if sum > MOST_BYTES && needed > freed {
        return Err(invalid(format!(
            "there is no room for it: all plans in the object would have {sum} bytes, and at most {MOST_BYTES} are \
             allowed. It is tried again; those in it go when their gangs are bound, and entries that nobody needs can be \
             removed by hand"
        )));
    }
    *bytes = sum;
    plans.insert(name, entry);
    Ok(())
}

fn remove(
    key: &ObjectKey,
    plans: &mut Map<String, Value>,
    bytes: &mut usize,
    gang: &GangName,
    term: u64,
) -> Result<(), ApiError> {
    let name = gang.to_string();
    check_entry(key, &name, plans.get(&name), term)?;
    let Some(entry) = plans.remove(&name) else {
        return Err(ApiError::NotFound(format!("the plan of gang {name} in {key}")));
    };
    *bytes = bytes.saturating_sub(entry_bytes(&name, &entry));
    Ok(())
}

/// Also of an entry that cannot be read the term counts. One without a term belongs to nobody.
fn check_entry(key: &ObjectKey, name: &str, entry: Option<&Value>, term: u64) -> Result<(), ApiError> {
    match entry.and_then(term_of) {
        Some(found) => check_term(&format!("the plan of gang {name} in {key}"), found, term),
        None => Ok(()),
    }
}

/// A plan of a term that nobody can have reached belongs to nobody.
fn check_term(what: &str, found: u64, term: u64) -> Result<(), ApiError> {
    if found > term && is_believable(found, term) {
        return Err(ApiError::Conflict(format!(
            "{what} was written under term {found}, and this write is of term {term}"
        )));
    }
    Ok(())
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
