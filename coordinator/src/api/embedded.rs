//! The API without a cluster: the object store beside one redb file. A write is in the file before it
//! is visible and before it is answered.
//!
//! What is in memory is what was confirmed. After a write that failed the file may hold it or not; before the next
//! one the file is opened anew, checked, and made equal to memory. So a disk that is well again needs no restart.

mod health;
mod loading;
mod medium;
mod rows;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use phalanx_common::describe::describe;
use phalanx_common::ids::ClusterId;
use phalanx_common::units::Time;
use redb::Database;
use tokio::sync::{Semaphore, watch};

use self::health::Health;
use self::loading::{begin, cause, contradiction, load, quietly};
pub use self::medium::{Confirmed, DiskFile, Fill, Medium, OpenError, builder};
use self::rows::{Numbers, Row, Stored};
use super::store::{DEFAULT_LOG_LENGTH, Store};
use super::{Api, ApiError, Change, Kind, Mutation, Object, ObjectKey};

/// Source of UIDs.
pub type UidSource = Box<dyn FnMut() -> String + Send>;
/// Source of time: milliseconds since the Unix epoch.
pub type Clock = Box<dyn Fn() -> Time + Send>;

/// Fewer writes than these are done one by one: to do them together costs a copy of the store's index.
const TOGETHER: usize = 8;

/// Pause before a disk that failed is tried again although nobody writes.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// What came of one write.
type Answer = Result<Arc<Object>, ApiError>;

/// The embedded API. Clones share one store.
#[derive(Clone)]
pub struct EmbeddedApi {
    shared: Arc<Shared>,
}

struct Shared {
    /// The turn to write, taken before a thread is: on a disk that hangs, one write has begun, and whoever gave up
    /// waiting has left nothing behind.
    turn: Arc<Semaphore>,
    /// How long a write waits for its turn.
    patience: Duration,
    /// The medium's file, for errors of those who do not come to their turn.
    file: PathBuf,
    /// Held from `prepare` to `commit`, so that writes are in one order.
    writer: Mutex<Writer>,
    /// Locked for writing only while a durable change is applied: readers never wait for the disk.
    store: RwLock<Store>,
    newest: watch::Sender<u64>,
    health: Health,
    cluster: ClusterId,
}

struct Writer {
    medium: Box<dyn Medium>,
    /// `None` after a failure, until the file is opened anew.
    database: Option<Database>,
    /// As confirmed last.
    numbers: Numbers,
    /// Until then a disk that failed is left alone, and why it failed.
    rest: Option<(Instant, String)>,
    new_uid: UidSource,
    clock: Clock,
}

impl std::fmt::Debug for EmbeddedApi {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("EmbeddedApi").field("cluster", &self.shared.cluster).finish_non_exhaustive()
    }
}

impl EmbeddedApi {
    /// Opens or makes the store in this file, with random UIDs and the system's clock.
    ///
    /// # Errors
    /// In use, damaged, of another format, or the file system refused.
    pub fn open(file: &Path) -> Result<Self, OpenError> {
        let clock = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
        };
        Self::open_with(file, Box::new(|| uuid::Uuid::new_v4().to_string()), Box::new(clock))
    }

    /// Opens or makes the store in this file.
    ///
    /// # Errors
    /// In use, damaged, of another format, or the file system refused.
    pub fn open_with(file: &Path, new_uid: UidSource, clock: Clock) -> Result<Self, OpenError> {
        Self::open_on(Box::new(DiskFile::take(file)?), new_uid, clock)
    }

    /// Opens or makes the store on a medium.
    ///
    /// # Errors
    /// As `open_with`.
    pub fn open_on(
        mut medium: Box<dyn Medium>,
        mut new_uid: UidSource,
        clock: Clock,
    ) -> Result<Self, OpenError> {
        let (database, stored) = begin(medium.as_mut(), &mut new_uid)?;
        let Stored { objects, numbers, cluster } = stored;
        let store = Store::restore(objects, numbers.revision, DEFAULT_LOG_LENGTH);
        let newest = watch::Sender::new(store.revision());
        let (file, patience) = (medium.file().to_owned(), medium.patience());
        let writer = Writer { medium, database: Some(database), numbers, rest: None, new_uid, clock };
        let shared = Shared {
            turn: Arc::new(Semaphore::new(1)),
            patience,
            file,
            writer: Mutex::new(writer),
            store: RwLock::new(store),
            newest,
            health: Health::new(),
            cluster: ClusterId::from(cluster),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Why nothing can be written; `None` while all is well.
    #[must_use]
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.shared.health.subscribe()
    }

    /// Tries a disk that failed until it is well again, so that this is seen also where nobody writes.
    pub async fn tend(self) {
        let mut trouble = self.trouble();
        while trouble.wait_for(Option::is_some).await.is_ok() {
            tokio::time::sleep(LOOK_AGAIN).await;
            // What failed is noted where it failed.
            let _ = self.blocking(Shared::look_again).await;
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Store) -> T) -> T {
        read(&self.shared.store.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs a write on a thread that may block, when it is its turn. Where that does not come, nothing is begun.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let shared = Arc::clone(&self.shared);
        let turn = Arc::clone(&shared.turn).acquire_owned();
        let Ok(Ok(turn)) = tokio::time::timeout(shared.patience, turn).await else {
            return Err(shared.busy());
        };
        let write = move || {
            let outcome = work(&shared);
            drop(turn);
            outcome
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(outcome) => outcome,
            Err(error) => Err(ApiError::Storage(format!("the write was interrupted: {error}"))),
        }
    }
}

impl Shared {
    fn busy(&self) -> ApiError {
        self.noted(format!(
            "{}: the disk has not done the writes before this one within {} s; nothing of this one was begun: see \
             whether the disk of the state directory answers and try again, no restart is needed",
            self.file.display(),
            self.patience.as_secs()
        ))
    }

    fn failed(&self, cause: &str) -> ApiError {
        self.noted(format!(
            "{}: cannot be written: {cause}; nothing changes until it can: free space or mend the disk of the state \
             directory and try again, no restart is needed",
            self.file.display()
        ))
    }

    /// An error that is known also to those who did not ask for the write.
    fn noted(&self, text: String) -> ApiError {
        self.health.failed(&text);
        ApiError::Storage(text)
    }

    fn look_again(&self) -> Result<(), ApiError> {
        let mut writer = self.lock_writer();
        writer.medium.room().map_err(|error| self.failed(&describe(&error)))?;
        let database = self.usable(&mut writer)?;
        writer.database = Some(database);
        self.health.well(&self.file);
        Ok(())
    }

    fn lock_writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mutate(&self, mutation: Mutation) -> Result<Arc<Object>, ApiError> {
        let mut writer = self.lock_writer();
        let now = (writer.clock)();
        let uid = (writer.new_uid)();
        let prepared =
            self.store.read().unwrap_or_else(PoisonError::into_inner).prepare(mutation, now, &uid)?;
        self.apply(&mut writer, &prepared.changes)?;
        Ok(prepared.object)
    }

    /// One transaction for all.
    fn mutate_all(&self, mutations: Vec<Mutation>) -> Result<Vec<Answer>, ApiError> {
        let mut writer = self.lock_writer();
        let now = (writer.clock)();
        // Each write sees those before it, and readers see none of them before all are durable.
        let mut ahead = self.store.read().unwrap_or_else(PoisonError::into_inner).ahead();
        let mut changes = Vec::new();
        let mut answers = Vec::with_capacity(mutations.len());
        for mutation in mutations {
            let prepared = ahead.prepare(mutation, now, &(writer.new_uid)());
            answers.push(prepared.and_then(|prepared| {
                ahead.commit(&prepared.changes)?;
                changes.extend(prepared.changes);
                Ok(prepared.object)
            }));
        }
        self.apply(&mut writer, &changes)?;
        Ok(answers)
    }

    /// To the file, then to the store.
    fn apply(&self, writer: &mut Writer, changes: &[Change]) -> Result<(), ApiError> {
        let Some(last) = changes.last() else { return Ok(()) };
        let numbers = Numbers { revision: last.resource_version, ..writer.numbers };
        self.persist(writer, numbers, changes)?;
        let mut store = self.store.write().unwrap_or_else(PoisonError::into_inner);
        store.commit(changes)?;
        self.newest.send_replace(store.revision());
        Ok(())
    }

    fn raise_term(&self, above: u64) -> Result<u64, ApiError> {
        let mut writer = self.lock_writer();
        // One that failed may be in the file all the same: that must be known before a number is chosen.
        let database = self.usable(&mut writer)?;
        writer.database = Some(database);
        let term = writer.numbers.term.max(above).saturating_add(1);
        let numbers = Numbers { term, ..writer.numbers };
        self.persist(&mut writer, numbers, &[])?;
        Ok(term)
    }

    /// One durable transaction. Where it fails the file counts as unknown.
    fn persist(&self, writer: &mut Writer, numbers: Numbers, changes: &[Change]) -> Result<(), ApiError> {
        let database = self.usable(writer)?;
        let sequence = writer.numbers.sequence + 1;
        let numbers = Numbers { term: numbers.term.max(writer.numbers.term), sequence, ..numbers };
        let written = quietly(|| rows::write(&database, numbers, changes.iter().map(Row::from)));
        match written.unwrap_or_else(|| Err(contradiction())) {
            Ok(()) => {
                writer.database = Some(database);
                self.confirm(writer, numbers);
                self.health.well(&self.file);
                Ok(())
            }
            Err(error) => {
                quietly(|| drop(database));
                writer.numbers.sequence = sequence;
                Err(self.failed(&cause(&error)))
            }
        }
    }

    fn confirm(&self, writer: &mut Writer, numbers: Numbers) {
        writer.numbers = numbers;
        let cluster = self.cluster.as_str().to_owned();
        writer.medium.confirm(&Confirmed { cluster, sequence: numbers.sequence });
    }

    /// Takes the open file, which is opened anew where the last write failed or the file was moved away.
    fn usable(&self, writer: &mut Writer) -> Result<Database, ApiError> {
        match writer.database.take() {
            Some(database) if writer.medium.is_in_place() => return Ok(database),
            Some(_) => tracing::warn!(
                file = %writer.medium.file().display(),
                "the file was moved away or replaced while it was in use; it is written anew"
            ),
            None => {}
        }
        let now = Instant::now();
        if let Some((_, cause)) = writer.rest.as_ref().filter(|(until, _)| now < *until) {
            return Err(self.failed(cause));
        }
        match self.reopen(writer) {
            Ok(database) => {
                writer.rest = None;
                Ok(database)
            }
            Err(cause) => {
                let error = self.failed(&cause);
                writer.rest = Some((now + writer.medium.rest(), cause));
                Err(error)
            }
        }
    }

    /// Opens the file and makes it equal to memory. One that is damaged, gone or another one by now is replaced.
    fn reopen(&self, writer: &mut Writer) -> Result<Database, String> {
        let (objects, revision) = self.store.read().unwrap_or_else(PoisonError::into_inner).list(None);
        writer.medium.renew().map_err(|error| describe(&error))?;
        let mut numbers = Numbers { revision, sequence: writer.numbers.sequence + 1, ..writer.numbers };
        let (database, stored) = match load(writer.medium.as_mut()) {
            Ok(Some((database, stored))) if stored.cluster == self.cluster.as_str() => (database, stored),
            Ok(_) | Err(OpenError::Damaged { .. } | OpenError::OtherFormat { .. }) => {
                return self.replace(writer, numbers, &objects);
            }
            Err(OpenError::FileSystem { cause, .. }) => return Err(cause),
            Err(error) => return Err(error.to_string()),
        };
        numbers.term = numbers.term.max(stored.numbers.term);
        numbers.sequence = numbers.sequence.max(stored.numbers.sequence + 1);
        let mut found: BTreeMap<ObjectKey, Object> =
            stored.objects.into_iter().map(|object| (object.key(), object)).collect();
        let mut put = Vec::new();
        for object in &objects {
            if found.remove(&object.key()).as_ref() != Some(&**object) {
                put.push(Row::Put(object));
            }
        }
        let rows = put.into_iter().chain(found.keys().map(Row::Remove));
        let written = quietly(|| rows::write(&database, numbers, rows));
        written.unwrap_or_else(|| Err(contradiction())).map_err(|error| cause(&error))?;
        self.confirm(writer, numbers);
        Ok(database)
    }

    /// A new file with all that was confirmed.
    fn replace(
        &self,
        writer: &mut Writer,
        numbers: Numbers,
        objects: &[Arc<Object>],
    ) -> Result<Database, String> {
        let medium = writer.medium.as_mut();
        medium
            .replace(&mut |database| rows::found(database, self.cluster.as_str(), numbers, objects))
            .map_err(|error| cause(&error))?;
        let loaded = load(medium).map_err(|error| error.to_string())?;
        let (database, _) = loaded.ok_or_else(|| "the new file is gone".to_owned())?;
        self.confirm(writer, numbers);
        Ok(database)
    }
}

impl Api for EmbeddedApi {
    async fn get(&self, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
        self.read(|store| store.get(key))
    }

    async fn list(&self, kind: Option<Kind>) -> Result<(Vec<Arc<Object>>, u64), ApiError> {
        Ok(self.read(|store| store.list(kind)))
    }

    async fn changes_since(&self, resource_version: u64, max: usize) -> Result<Vec<Change>, ApiError> {
        self.read(|store| store.changes_since(resource_version, max))
    }

    async fn mutate(&self, mutation: Mutation) -> Result<Arc<Object>, ApiError> {
        self.blocking(|shared| shared.mutate(mutation)).await
    }

    async fn mutate_all(&self, mutations: Vec<Mutation>) -> Vec<Answer> {
        let count = mutations.len();
        if count < TOGETHER {
            let mut answers = Vec::with_capacity(count);
            for mutation in mutations {
                answers.push(self.mutate(mutation).await);
            }
            return answers;
        }
        let answers = self.blocking(|shared| shared.mutate_all(mutations)).await;
        answers.unwrap_or_else(|error| vec![Err(error); count])
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.newest.subscribe()
    }

    fn cluster_id(&self) -> ClusterId {
        self.shared.cluster.clone()
    }

    async fn raise_term(&self, above: u64) -> Result<u64, ApiError> {
        self.blocking(move |shared| shared.raise_term(above)).await
    }
}
