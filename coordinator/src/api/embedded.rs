//! The API without a cluster: the object store beside one redb file. A write is in the file before it
//! is visible and before it is answered.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use phalanx_common::describe::describe;
use phalanx_common::ids::ClusterId;
use phalanx_common::units::Time;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition, WriteTransaction,
};
use thiserror::Error;
use tokio::sync::watch;

use super::store::{DEFAULT_LOG_LENGTH, Store};
use super::{Api, ApiError, Change, ChangeBody, Kind, Mutation, Object, ObjectKey};

const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
const FORMAT: &str = "1";

/// Why the store's file could not be opened. Every text says the way out.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{file}: in use by another coordinator; stop that one, or give this one its own --state-dir")]
    InUse {
        /// The file.
        file: PathBuf,
    },
    /// It cannot be read as a store.
    #[error(
        "{file}: damaged: {cause}; move the file away and start again: objects are applied anew from their manifests, and the agents report what still runs"
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// Another version of Phalanx wrote it.
    #[error(
        "{file}: written in format {found:?}, and this version reads format 1; use the version that wrote it, or move the file away"
    )]
    OtherFormat {
        /// The file.
        file: PathBuf,
        /// The format found.
        found: String,
    },
    /// The file system refused.
    #[error("{file}: {cause}; check that the directory exists, is writable and has space")]
    FileSystem {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        cause: String,
    },
}

/// Source of UIDs.
pub type UidSource = Box<dyn FnMut() -> String + Send>;
/// Source of time: milliseconds since the Unix epoch.
pub type Clock = Box<dyn Fn() -> Time + Send>;

/// Fewer writes than these are done one by one: to do them together costs a copy of the store's index.
const TOGETHER: usize = 8;

/// What came of one write.
type Answer = Result<Arc<Object>, ApiError>;

/// The embedded API. Clones share one store.
#[derive(Clone)]
pub struct EmbeddedApi {
    shared: Arc<Shared>,
}

struct Shared {
    /// Held from `prepare` to `commit`, so that writes are in one order.
    writer: Mutex<Writer>,
    /// Locked for writing only while a durable change is applied: readers never wait for the disk.
    store: RwLock<Store>,
    newest: watch::Sender<u64>,
    cluster: ClusterId,
}

struct Writer {
    database: Database,
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
    pub fn open_with(file: &Path, mut new_uid: UidSource, clock: Clock) -> Result<Self, OpenError> {
        // redb checks its file as it reads; a page that contradicts another one may end in a panic.
        let opened = std::panic::catch_unwind(|| {
            let database = open_database(file)?;
            let stored = read_all(&database, file)?;
            Ok((database, stored))
        });
        let (database, stored) =
            opened.unwrap_or_else(|_| Err(damaged(file, "its pages contradict each other")))?;
        let cluster = match stored.cluster {
            Some(cluster) => cluster,
            None => found_cluster(&database, file, new_uid())?,
        };
        let store = Store::restore(stored.objects, stored.revision, DEFAULT_LOG_LENGTH);
        let newest = watch::Sender::new(store.revision());
        let shared = Shared {
            writer: Mutex::new(Writer { database, new_uid, clock }),
            store: RwLock::new(store),
            newest,
            cluster: ClusterId::from(cluster),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    fn read<T>(&self, read: impl FnOnce(&Store) -> T) -> T {
        read(&self.shared.store.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs a write on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let shared = Arc::clone(&self.shared);
        match tokio::task::spawn_blocking(move || work(&shared)).await {
            Ok(outcome) => outcome,
            Err(error) => Err(ApiError::Storage(format!("the write was interrupted: {error}"))),
        }
    }
}

impl Shared {
    fn lock_writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mutate(&self, mutation: Mutation) -> Result<Arc<Object>, ApiError> {
        let mut writer = self.lock_writer();
        let now = (writer.clock)();
        let uid = (writer.new_uid)();
        let prepared =
            self.store.read().unwrap_or_else(PoisonError::into_inner).prepare(mutation, now, &uid)?;
        self.apply(&writer, &prepared.changes)?;
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
        self.apply(&writer, &changes)?;
        Ok(answers)
    }

    /// To the file, then to the store.
    fn apply(&self, writer: &Writer, changes: &[Change]) -> Result<(), ApiError> {
        if changes.is_empty() {
            return Ok(());
        }
        writer.persist(changes).map_err(|error| storage_error("write objects", &error))?;
        let mut store = self.store.write().unwrap_or_else(PoisonError::into_inner);
        store.commit(changes)?;
        self.newest.send_replace(store.revision());
        Ok(())
    }
}

impl Writer {
    fn persist(&self, changes: &[Change]) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut newest = 0;
            for change in changes {
                newest = change.resource_version;
                match &change.body {
                    ChangeBody::Applied(object) => {
                        let bytes = serde_json::to_vec(&**object)
                            .map_err(|error| redb::Error::Io(std::io::Error::other(error)))?;
                        objects.insert(row_key(&object.key()).as_str(), bytes.as_slice())?;
                    }
                    ChangeBody::Deleted { key, .. } => {
                        objects.remove(row_key(key).as_str())?;
                    }
                }
            }
            write_meta(&transaction, "revision", &newest.to_string())?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn raise_term(&self, above: u64) -> Result<u64, redb::Error> {
        let transaction = self.database.begin_write()?;
        let stored = {
            let meta = transaction.open_table(META)?;
            let text = meta.get("term")?.map(|value| value.value().to_owned());
            text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
        };
        let term = stored.max(above).saturating_add(1);
        write_meta(&transaction, "term", &term.to_string())?;
        transaction.commit()?;
        Ok(term)
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
        self.blocking(move |shared| {
            shared.lock_writer().raise_term(above).map_err(|error| storage_error("raise the term", &error))
        })
        .await
    }
}

/// What the file holds.
struct Stored {
    objects: Vec<Object>,
    revision: u64,
    cluster: Option<String>,
}

fn open_database(file: &Path) -> Result<Database, OpenError> {
    check_magic(file)?;
    Database::create(file).map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            OpenError::InUse { file: file.to_owned() }
        }
        DatabaseError::Storage(StorageError::Io(error)) if !is_damage(&error) => {
            OpenError::FileSystem { file: file.to_owned(), cause: error.to_string() }
        }
        other => damaged(file, other),
    })
}

fn check_magic(file: &Path) -> Result<(), OpenError> {
    use std::io::Read as _;
    let refused =
        |error: std::io::Error| OpenError::FileSystem { file: file.to_owned(), cause: error.to_string() };
    let mut magic = [0_u8; 4];
    match std::fs::File::open(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(refused(error)),
        Ok(mut opened) => {
            // An empty file is what a crash right after its creation leaves.
            if opened.metadata().map_err(refused)?.len() == 0 {
                return Ok(());
            }
            match opened.read_exact(&mut magic) {
                Ok(()) if magic == *b"redb" => Ok(()),
                Ok(()) => Err(damaged(file, "it does not begin as a redb file")),
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    Err(damaged(file, "it is cut off"))
                }
                Err(error) => Err(refused(error)),
            }
        }
    }
}

fn is_damage(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof)
}

fn damaged(file: &Path, cause: impl ToString) -> OpenError {
    OpenError::Damaged { file: file.to_owned(), cause: cause.to_string() }
}

fn read_all(database: &Database, file: &Path) -> Result<Stored, OpenError> {
    let failed = |error: redb::Error| damaged(file, error);
    let meta = read_meta(database).map_err(failed)?;
    let value = |name: &str| meta.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    if let Some(found) = value("format")
        && found != FORMAT
    {
        return Err(OpenError::OtherFormat { file: file.to_owned(), found });
    }
    let revision = match value("revision") {
        None => 0,
        Some(text) => text.parse().map_err(|_| damaged(file, format!("its revision is {text:?}")))?,
    };
    let mut objects = Vec::new();
    for (key, bytes) in read_objects(database).map_err(failed)? {
        let object: Object = serde_json::from_slice(&bytes)
            .map_err(|error| damaged(file, format!("the object {key:?} cannot be read: {error}")))?;
        objects.push(object);
    }
    Ok(Stored { objects, revision, cluster: value("cluster") })
}

fn read_meta(database: &Database) -> Result<Vec<(String, String)>, redb::Error> {
    let transaction = database.begin_read()?;
    let table = match transaction.open_table(META) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        other => other?,
    };
    let mut entries = Vec::new();
    for entry in table.iter()? {
        let (key, value) = entry?;
        entries.push((key.value().to_owned(), value.value().to_owned()));
    }
    Ok(entries)
}

fn read_objects(database: &Database) -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
    let transaction = database.begin_read()?;
    let table = match transaction.open_table(OBJECTS) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        other => other?,
    };
    let mut entries = Vec::new();
    for entry in table.iter()? {
        let (key, value) = entry?;
        entries.push((key.value().to_owned(), value.value().to_vec()));
    }
    Ok(entries)
}

fn found_cluster(database: &Database, file: &Path, cluster: String) -> Result<String, OpenError> {
    let write = || -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        write_meta(&transaction, "format", FORMAT)?;
        write_meta(&transaction, "cluster", &cluster)?;
        transaction.commit()?;
        Ok(())
    };
    write().map_err(|error| OpenError::FileSystem { file: file.to_owned(), cause: error.to_string() })?;
    Ok(cluster)
}

fn write_meta(transaction: &WriteTransaction, name: &str, value: &str) -> Result<(), redb::Error> {
    transaction.open_table(META)?.insert(name, value)?;
    Ok(())
}

/// Names hold no slash, so the key is unique.
fn row_key(key: &ObjectKey) -> String {
    format!("{}/{}/{}", key.kind, key.namespace, key.name)
}

fn storage_error(what: &str, error: &redb::Error) -> ApiError {
    let cause = describe(error);
    ApiError::Storage(format!("could not {what}: {cause}; check the disk of the state directory"))
}
