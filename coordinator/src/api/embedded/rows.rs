//! What stands in the store's file: one row an object, and a few numbers. Every row carries a checksum over its key
//! and its value, so that a flipped bit is found and named and never served.

use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use crate::api::{Change, ChangeBody, Object, ObjectKey};

const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
/// Form of the rows; raised when an older one cannot be read any more.
pub(super) const FORMAT: &str = "2";
const CHECKSUM_BYTES: usize = 4;

/// The numbers beside the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    /// Of the newest change.
    pub revision: u64,
    /// Highest term that a coordinator of this store took.
    pub term: u64,
    /// Transactions so far: it never goes back.
    pub sequence: u64,
}

/// What the file holds.
#[derive(Debug)]
pub(super) struct Stored {
    pub objects: Vec<Object>,
    pub numbers: Numbers,
    pub cluster: String,
}

/// Why rows cannot be used.
#[derive(Debug)]
pub(super) enum Flaw {
    /// A row is not what was written.
    Broken(String),
    /// Rows of another form.
    Format(String),
    /// The file cannot be read.
    Failed(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for Flaw {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// One row to be written.
pub(super) enum Row<'a> {
    Put(&'a Object),
    Remove(&'a ObjectKey),
}

impl<'a> From<&'a Change> for Row<'a> {
    fn from(change: &'a Change) -> Self {
        match &change.body {
            ChangeBody::Applied(object) => Self::Put(object),
            ChangeBody::Deleted { key, .. } => Self::Remove(key),
        }
    }
}

/// Writes rows and numbers in one transaction.
pub(super) fn write<'a>(
    database: &Database,
    numbers: Numbers,
    rows: impl Iterator<Item = Row<'a>>,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    fill(&transaction, numbers, rows)?;
    transaction.commit()?;
    Ok(())
}

/// The first transaction of a file.
pub(super) fn found(
    database: &Database,
    cluster: &str,
    numbers: Numbers,
    objects: &[Arc<Object>],
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(META)?.insert("format", FORMAT)?;
    write_meta(&transaction, "cluster", cluster)?;
    fill(&transaction, numbers, objects.iter().map(|object| Row::Put(object)))?;
    transaction.commit()?;
    Ok(())
}

fn fill<'a>(
    transaction: &WriteTransaction,
    numbers: Numbers,
    rows: impl Iterator<Item = Row<'a>>,
) -> Result<(), redb::Error> {
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        for row in rows {
            match row {
                Row::Put(object) => {
                    let key = row_key(&object.key());
                    objects.insert(key.as_str(), sealed(&key, object)?.as_slice())?;
                }
                Row::Remove(key) => {
                    objects.remove(row_key(key).as_str())?;
                }
            }
        }
    }
    write_meta(transaction, "revision", &numbers.revision.to_string())?;
    write_meta(transaction, "term", &numbers.term.to_string())?;
    write_meta(transaction, "sequence", &numbers.sequence.to_string())
}

fn write_meta(transaction: &WriteTransaction, name: &str, value: &str) -> Result<(), redb::Error> {
    let checksum = checksum(name, value.as_bytes());
    transaction.open_table(META)?.insert(name, format!("{value} crc32={checksum:08x}").as_str())?;
    Ok(())
}

/// Reads and checks everything.
pub(super) fn read(database: &impl ReadableDatabase) -> Result<Stored, Flaw> {
    let transaction = database.begin_read()?;
    let meta = transaction.open_table(META)?;
    match meta.get("format")?.map(|value| value.value().to_owned()) {
        Some(found) if found == FORMAT => {}
        Some(found) => return Err(Flaw::Format(found)),
        None => return Err(Flaw::Broken("its format is missing".to_owned())),
    }
    let text = |name: &str| -> Result<String, Flaw> {
        let stored = meta.get(name)?.map(|value| value.value().to_owned());
        let intact = stored.as_deref().and_then(|stored| {
            let (value, found) = stored.rsplit_once(" crc32=")?;
            (format!("{:08x}", checksum(name, value.as_bytes())) == found).then(|| value.to_owned())
        });
        intact.ok_or_else(|| Flaw::Broken(format!("its {name} is not what was written: {stored:?}")))
    };
    let number = |name: &str| -> Result<u64, Flaw> {
        let value = text(name)?;
        value.parse().map_err(|_| Flaw::Broken(format!("its {name} is {value:?}")))
    };
    let numbers =
        Numbers { revision: number("revision")?, term: number("term")?, sequence: number("sequence")? };
    let mut objects = Vec::new();
    for entry in transaction.open_table(OBJECTS)?.iter()? {
        let (key, value) = entry?;
        objects.push(opened(key.value(), value.value()).map_err(Flaw::Broken)?);
    }
    Ok(Stored { objects, numbers, cluster: text("cluster")? })
}

fn checksum(key: &str, value: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.as_bytes());
    hasher.update(&[0]);
    hasher.update(value);
    hasher.finalize()
}

fn sealed(key: &str, object: &Object) -> Result<Vec<u8>, redb::Error> {
    let mut bytes = vec![0; CHECKSUM_BYTES];
    serde_json::to_writer(&mut bytes, object)
        .map_err(|error| redb::Error::Io(std::io::Error::other(error)))?;
    let checksum = checksum(key, &bytes[CHECKSUM_BYTES..]);
    bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

fn opened(key: &str, bytes: &[u8]) -> Result<Object, String> {
    let name = || key.splitn(2, '/').collect::<Vec<_>>().join(" ").replacen(" /", " ", 1);
    let (found, body) = bytes
        .split_first_chunk::<CHECKSUM_BYTES>()
        .ok_or_else(|| format!("the object {:?} is cut off", name()))?;
    if u32::from_le_bytes(*found) != checksum(key, body) {
        return Err(format!("the object {:?} is not what was written: its checksum does not match", name()));
    }
    let object: Object = serde_json::from_slice(body)
        .map_err(|error| format!("the object {:?} cannot be read: {error}", name()))?;
    if row_key(&object.key()) == key {
        Ok(object)
    } else {
        Err(format!("the object {:?} stands under the name of {:?}", object.key().to_string(), name()))
    }
}

/// Names hold no slash, so the key is unique.
fn row_key(key: &ObjectKey) -> String {
    format!("{}/{}/{}", key.kind, key.namespace, key.name)
}

#[cfg(test)]
mod tests {
    use crate::api::Kind;

    use super::*;

    #[test]
    fn every_flipped_bit_of_a_row_is_found_and_the_object_named() {
        let object = Object::new(Kind::PodGroup, "team", "train");
        let key = row_key(&object.key());
        let bytes = sealed(&key, &object).unwrap();
        assert_eq!(opened(&key, &bytes), Ok(object));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = opened(&key, &flipped).unwrap_err();
            assert!(error.contains("\"PodGroup team/train\""), "{error}");
        }
        for length in 0..bytes.len() {
            assert!(opened(&key, &bytes[..length]).is_err(), "{length}");
        }
        assert!(opened("PodGroup/team/other", &bytes).is_err());
        let queue = Object::new(Kind::Queue, "", "research");
        let error = opened(&row_key(&queue.key()), b"1234{}").unwrap_err();
        assert!(error.contains("\"Queue research\""), "{error}");
    }
}
