//! What the API server holds, as far as it was heard, and the log of its changes under a count of its own: the
//! versions of single objects do not order changes of several kinds.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch as latest;

use super::normalize::Trim;
use super::packed::{Packed, Texts, key_of, place_of};
use crate::api::{ApiError, Change, ChangeBody, Kind, Listing, Object, ObjectKey};

/// Changes kept for those who read them. Whoever is further behind lists again.
pub const LOG_LENGTH: usize = 16_384;

/// So many of the newest changes keep their object as it was heard: those who read them all are seldom further behind,
/// and need not read it from its text again.
const FRESH: usize = 256;

/// How far a kind was heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heard {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The API server does not serve the kind.
    NotServed,
    /// It was listed as a whole at least once.
    Listed,
}

/// True for a kind without which nothing is decided.
#[must_use]
pub const fn is_required(kind: Kind) -> bool {
    !matches!(kind, Kind::Job | Kind::QueuePolicy | Kind::PodDisruptionBudget)
}

/// True for a kind that is followed in shadow mode. Plans are those of a coordinator that leads.
const fn is_followed_in_shadow(kind: Kind) -> bool {
    !matches!(kind, Kind::GangPlan)
}

/// The mirror.
#[derive(Debug)]
pub struct Mirror {
    in_shadow: bool,
    state: Mutex<State>,
    newest: latest::Sender<u64>,
    heard: latest::Sender<BTreeMap<Kind, Heard>>,
}

/// An object with its kind and place.
type Kept = (Kind, Arc<str>, Arc<Packed>);

#[derive(Debug)]
struct State {
    /// Whose pods are ours.
    trim: Trim,
    objects: BTreeMap<Kind, BTreeMap<Arc<str>, Slot>>,
    log: VecDeque<Entry>,
    log_length: usize,
    /// Number of the newest change.
    revision: u64,
    /// Changes up to this number are not in the log.
    forgotten: u64,
    /// Numbers of the changes of each object of plans that is there, oldest first.
    planned: BTreeMap<Arc<str>, VecDeque<u64>>,
    texts: Texts,
}

#[derive(Debug)]
struct Slot {
    packed: Arc<Packed>,
    /// The listing in which it was seen last.
    listing: u32,
}

#[derive(Clone, Debug)]
struct Entry {
    revision: u64,
    kind: Kind,
    place: Arc<str>,
    packed: Arc<Packed>,
    /// The same, of the newest changes.
    object: Option<Arc<Object>>,
    is_deleted: bool,
}

impl Mirror {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(log_length: usize, trim: Trim) -> Self {
        let state = State {
            trim,
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            log_length: log_length.max(1),
            revision: 0,
            forgotten: 0,
            planned: BTreeMap::new(),
            texts: Texts::default(),
        };
        Self {
            in_shadow: false,
            state: Mutex::new(state),
            newest: latest::Sender::new(0),
            heard: latest::Sender::new(BTreeMap::new()),
        }
    }

    /// The same for shadow mode: it looks at clusters in which Phalanx, or Volcano, is not installed.
    pub(super) fn in_shadow(mut self) -> Self {
        self.in_shadow = true;
        let is_left_out = |kind: &Kind| !is_followed_in_shadow(*kind);
        Kind::ALL.into_iter().filter(is_left_out).for_each(|kind| self.set_heard(kind, Heard::Listed));
        self
    }

    /// True for a kind that is listed and watched.
    pub(super) const fn follows(&self, kind: Kind) -> bool {
        !self.in_shadow || is_followed_in_shadow(kind)
    }

    /// True for a kind without which nothing is decided here.
    pub(super) const fn requires(&self, kind: Kind) -> bool {
        if self.in_shadow { matches!(kind, Kind::Node | Kind::Pod) } else { is_required(kind) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects are there, or changed. `listing` counts the listings of the kind.
    pub(super) fn apply(&self, kind: Kind, objects: Vec<Object>, listing: u32) {
        let revision = {
            let mut state = self.state();
            for object in objects {
                let key = object.key();
                if let Err(error) = state.apply(kind, object, listing) {
                    tracing::warn!(%key, %error, "the object is left out");
                }
            }
            state.revision
        };
        self.newest.send_replace(revision);
    }

    /// An object is gone.
    pub(super) fn delete(&self, kind: Kind, namespace: &str, name: &str) {
        let revision = {
            let mut state = self.state();
            state.delete(kind, &place_of(namespace, name));
            state.revision
        };
        self.newest.send_replace(revision);
    }

    /// An object was seen in this listing and cannot be read: it stays as it was.
    pub(super) fn keep(&self, kind: Kind, name: &str, listing: u32) {
        let place = if name.contains('/') { name.to_owned() } else { place_of("", name) };
        let mut state = self.state();
        let slot = state.objects.get_mut(&kind).and_then(|objects| objects.get_mut(place.as_str()));
        slot.into_iter().for_each(|slot| slot.listing = listing);
    }

    /// The kind was listed to its end: what was not seen in this listing is gone. Gives how many that were.
    pub(super) fn finish_listing(&self, kind: Kind, listing: u32) -> usize {
        let (revision, gone) = {
            let mut state = self.state();
            let objects = state.objects.entry(kind).or_default();
            let unseen: Vec<Arc<str>> = objects
                .iter()
                .filter(|(_, slot)| slot.listing != listing)
                .map(|(place, _)| Arc::clone(place))
                .collect();
            unseen.iter().for_each(|place| state.delete(kind, place));
            (state.revision, unseen.len())
        };
        self.newest.send_replace(revision);
        self.set_heard(kind, Heard::Listed);
        gone
    }

    /// The API server does not serve the kind. One that was listed before stays as it was.
    pub(super) fn not_served(&self, kind: Kind) {
        if self.heard(kind) == Heard::Nothing {
            self.set_heard(kind, Heard::NotServed);
        }
    }

    fn set_heard(&self, kind: Kind, heard: Heard) {
        self.heard.send_if_modified(|all| all.insert(kind, heard) != Some(heard));
    }

    /// How far a kind was heard.
    #[must_use]
    pub fn heard(&self, kind: Kind) -> Heard {
        self.heard.borrow().get(&kind).copied().unwrap_or_default()
    }

    /// Waits until a kind (`None` = all) was heard: listed, or, where that is not required, found to be not served.
    ///
    /// # Errors
    /// The mirror is gone.
    pub async fn ready(&self, kind: Option<Kind>) -> Result<(), ApiError> {
        let is_ready = |all: &BTreeMap<Kind, Heard>| {
            Kind::ALL.into_iter().filter(|one| kind.is_none_or(|kind| kind == *one)).all(|kind| {
                match all.get(&kind) {
                    Some(Heard::Listed) => true,
                    Some(Heard::NotServed) => !self.requires(kind),
                    Some(Heard::Nothing) | None => false,
                }
            })
        };
        let waited = self.heard.subscribe().wait_for(is_ready).await.map(|_| ());
        waited.map_err(|_| ApiError::Storage("the mirror of the API server has ended".to_owned()))
    }

    /// Kinds for which `ready` still waits.
    #[must_use]
    pub fn missing(&self) -> Vec<Kind> {
        let is_missing = |kind: &Kind| match self.heard(*kind) {
            Heard::Listed => false,
            Heard::NotServed => self.requires(*kind),
            Heard::Nothing => true,
        };
        Kind::ALL.into_iter().filter(is_missing).collect()
    }

    /// Bytes of an object's annotations, status and what else is not its spec, about; 0 where it is not there.
    #[must_use]
    pub fn head_bytes(&self, key: &ObjectKey) -> usize {
        let place = place_of(&key.namespace, &key.name);
        let state = self.state();
        let slot = state.objects.get(&key.kind).and_then(|objects| objects.get(place.as_str()));
        slot.map_or(0, |slot| slot.packed.head_bytes())
    }

    /// One object as it was heard last.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn get(&self, key: &ObjectKey) -> Result<Object, ApiError> {
        let place = place_of(&key.namespace, &key.name);
        let packed = {
            let state = self.state();
            let slot = state.objects.get(&key.kind).and_then(|objects| objects.get(place.as_str()));
            slot.map(|slot| Arc::clone(&slot.packed))
        };
        packed.ok_or_else(|| ApiError::NotFound(key.to_string()))?.unpack(key.kind, &place)
    }

    /// All objects of a kind (`None` = of all), and the number of the newest change.
    ///
    /// # Errors
    /// An object cannot be read.
    pub fn list(&self, kind: Option<Kind>) -> Result<(Vec<Arc<Object>>, u64), ApiError> {
        let (packed, revision) = self.packed(kind);
        let unpacked = packed.iter().map(|(kind, place, packed)| packed.unpack(*kind, place).map(Arc::new));
        Ok((unpacked.collect::<Result<_, _>>()?, revision))
    }

    fn packed(&self, kind: Option<Kind>) -> (Vec<Kept>, u64) {
        let state = self.state();
        let kinds = state.objects.iter().filter(|(one, _)| kind.is_none_or(|kind| kind == **one));
        let packed = kinds
            .flat_map(|(kind, objects)| objects.iter().map(|(place, slot)| (*kind, place, &slot.packed)))
            .map(|(kind, place, packed)| (kind, Arc::clone(place), Arc::clone(packed)));
        (packed.collect(), state.revision)
    }

    /// The same, each object unpacked when it is asked for.
    #[must_use]
    pub fn listing(&self, kind: Option<Kind>) -> (Listing, u64) {
        let (packed, revision) = self.packed(kind);
        let objects = packed.into_iter().filter_map(|(kind, place, packed)| {
            let object = packed.unpack(kind, &place);
            let told = object.map_err(|error| tracing::warn!(%kind, place = &*place, %error, "left out"));
            told.ok().map(Arc::new)
        });
        (Box::new(objects), revision)
    }

    /// Changes after `revision`, oldest first, at most `max`.
    ///
    /// # Errors
    /// `Gone` where the log does not reach back that far, or never was at that number.
    pub fn changes_since(&self, revision: u64, max: usize) -> Result<Vec<Change>, ApiError> {
        let entries: Vec<Entry> = {
            let state = self.state();
            if revision < state.forgotten || revision > state.revision {
                return Err(ApiError::Gone { asked: revision });
            }
            let first = state.log.partition_point(|entry| entry.revision <= revision);
            state.log.range((Bound::Included(first), Bound::Unbounded)).take(max).cloned().collect()
        };
        entries.iter().map(Entry::change).collect()
    }

    /// Number of the newest change; it wakes when there is a newer one.
    #[must_use]
    pub fn subscribe(&self) -> latest::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Objects of each kind.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Kind, usize> {
        self.state().objects.iter().map(|(kind, objects)| (*kind, objects.len())).collect()
    }

    /// Bytes of all objects without the tables they stand in, and of the specs they share.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        let state = self.state();
        let bytes = |(kind, objects): (&Kind, &BTreeMap<Arc<str>, Slot>)| {
            objects.iter().map(|(place, slot)| place.len() + slot.packed.own_bytes(*kind)).sum::<usize>()
        };
        (state.objects.iter().map(bytes).sum(), state.texts.size().1)
    }
}

impl State {
    fn apply(&mut self, kind: Kind, mut object: Object, listing: u32) -> Result<(), ApiError> {
        let place = place_of(&object.metadata.namespace, &object.metadata.name);
        let is_version_used = self.is_version_used(&object);
        // Names are given by the API server: what an object asked for is not kept.
        object.metadata.generate_name.clear();
        let packed = Arc::new(Packed::pack(&mut object, &mut self.texts)?);
        let objects = self.objects.entry(kind).or_default();
        let Some((known, slot)) = objects.get_key_value(place.as_str()) else {
            let place: Arc<str> = Arc::from(place);
            objects.insert(Arc::clone(&place), Slot { packed: Arc::clone(&packed), listing });
            self.log(kind, place, packed, Some(object));
            return Ok(());
        };
        let place = Arc::clone(known);
        let old = Arc::clone(&slot.packed);
        let is_other = old.uid != packed.uid;
        let is_told = old.resource_version == packed.resource_version && !is_other
            // Nothing that is read has changed: a node that only says that it still lives, a restart in a pod of others.
            || !is_version_used && old.is_same_but_version(&packed);
        objects.insert(Arc::clone(&place), Slot { packed: Arc::clone(&packed), listing });
        if is_other {
            self.log(kind, Arc::clone(&place), old, None);
        }
        if !is_told {
            self.log(kind, place, packed, Some(object));
        }
        Ok(())
    }

    /// True where writes carry the object's version as a precondition, so that it must be told.
    fn is_version_used(&self, object: &Object) -> bool {
        match object.kind {
            Kind::Node
            | Kind::QueuePolicy
            | Kind::PriorityClass
            | Kind::PodDisruptionBudget
            | Kind::StorageClass
            | Kind::PersistentVolume
            | Kind::PersistentVolumeClaim => false,
            Kind::Pod => self.trim.is_ours(object),
            Kind::Queue | Kind::PodGroup | Kind::Job | Kind::GangPlan => true,
        }
    }

    fn delete(&mut self, kind: Kind, place: &str) {
        let removed = self.objects.get_mut(&kind).and_then(|objects| objects.remove_entry(place));
        if let Some((place, slot)) = removed {
            self.log(kind, place, slot.packed, None);
        }
    }

    /// Notes that an object is there, or, where none is given, gone.
    fn log(&mut self, kind: Kind, place: Arc<str>, packed: Arc<Packed>, object: Option<Object>) {
        self.revision += 1;
        let is_deleted = object.is_none();
        let object = object.map(Arc::new);
        if self.log.len() >= self.log_length
            && let Some(oldest) = self.log.pop_front()
        {
            self.forgotten = oldest.revision;
        }
        let mut entry = Entry { revision: self.revision, kind, place, packed, object, is_deleted };
        if kind == Kind::GangPlan {
            self.supersede(&mut entry);
        }
        self.log.push_back(entry);
        if let Some(at) = self.log.len().checked_sub(FRESH + 1)
            && let Some(entry) = self.log.get_mut(at)
        {
            entry.object = None;
        }
    }

    /// An object of plans is large and changes all the time: the log keeps none of its earlier versions. Who reads of one
    /// of them is told of the newest instead, more than once; of one that is gone, that no plan is in it.
    fn supersede(&mut self, newest: &mut Entry) {
        if newest.is_deleted {
            newest.packed = Arc::new(newest.packed.emptied());
        }
        let mut revisions = self.planned.remove(&newest.place).unwrap_or_default();
        revisions.retain(|revision| *revision > self.forgotten);
        for revision in &revisions {
            // Each change has an entry, so that the number says where it is.
            let at = usize::try_from(revision - self.forgotten - 1).ok();
            if let Some(entry) = at.and_then(|at| self.log.get_mut(at)) {
                entry.packed = Arc::clone(&newest.packed);
                entry.object = entry.object.take().and(newest.object.clone());
            }
        }
        if !newest.is_deleted {
            revisions.push_back(newest.revision);
            self.planned.insert(Arc::clone(&newest.place), revisions);
        }
    }
}

impl Entry {
    fn change(&self) -> Result<Change, ApiError> {
        let body = if self.is_deleted {
            ChangeBody::Deleted { key: key_of(self.kind, &self.place), uid: self.packed.uid.to_string() }
        } else {
            let object = self.object.as_ref().map(|object| Ok(Arc::clone(object)));
            let unpack = || self.packed.unpack(self.kind, &self.place).map(Arc::new);
            ChangeBody::Applied(object.unwrap_or_else(unpack)?)
        };
        Ok(Change { resource_version: self.revision, kind: self.kind, body })
    }
}

#[cfg(test)]
#[path = "mirror/tests.rs"]
mod tests;
