//! Opens and checks the store's file, and makes the first one.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::Once;

use phalanx_common::describe::describe;
use redb::{Builder, Database};

use super::medium::{self, Confirmed, Medium, OpenError};
use super::rows::{self, Flaw, Numbers, Stored};

/// Opens and reads what is there.
pub(super) fn load(medium: &mut dyn Medium) -> Result<Option<(Database, Stored)>, OpenError> {
    let file = medium.file().to_owned();
    let loaded = quietly(|| {
        let Some(database) = medium.open()? else { return Ok(None) };
        let stored = rows::read(&database).map_err(|flaw| open_error(&file, flaw))?;
        Ok(Some((database, stored)))
    });
    match loaded.unwrap_or_else(|| Err(OpenError::damaged(&file, "its pages contradict each other"))) {
        Err(OpenError::Damaged { file, cause }) => {
            let flaw = flawed_row(&file).filter(|flaw| *flaw != cause);
            let cause = flaw.map_or(cause.clone(), |flaw| format!("{cause}; {flaw}"));
            Err(OpenError::Damaged { file, cause })
        }
        loaded => loaded,
    }
}

/// The first row that is not what was written, where redb still finds the rows.
fn flawed_row(file: &Path) -> Option<String> {
    let read = quietly(|| rows::read(&Builder::new().open_read_only(file).ok()?).err());
    match read.flatten()? {
        Flaw::Broken(what) => Some(what),
        Flaw::Format(_) | Flaw::Failed(_) => None,
    }
}

fn open_error(file: &Path, flaw: Flaw) -> OpenError {
    match flaw {
        Flaw::Broken(cause) => OpenError::damaged(file, cause),
        Flaw::Format(found) => OpenError::OtherFormat { file: file.to_owned(), found, reads: rows::FORMAT },
        Flaw::Failed(redb::Error::Io(error)) if !medium::is_damage(&error) => OpenError::system(file, &error),
        Flaw::Failed(error) => OpenError::damaged(file, error),
    }
}

/// Opens the store, or makes a new one where there is none. What is known of writes that are missing is said.
pub(super) fn begin(
    medium: &mut dyn Medium,
    new_cluster: &mut dyn FnMut() -> String,
) -> Result<(Database, Stored), OpenError> {
    let (file, witness) = (medium.file().to_owned(), medium.witness());
    let noted = match medium.confirmed() {
        Ok(noted) => Ok(noted),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error.to_string()),
        // It would know of no write, now and later.
        Err(error) => return Err(OpenError::system(&witness, &error)),
    };
    let Some((database, stored)) = load(medium)? else {
        let begun = found(medium, &new_cluster())?;
        match noted {
            // The first start of all.
            Ok(None) => {}
            Ok(Some(Confirmed { cluster, sequence })) => tracing::warn!(
                "{}: missing: all {sequence} confirmed writes of cluster {cluster} are gone, and a new cluster is begun: \
                 agents that join it stop the pods that run; put a backup of the state directory in its place, or apply \
                 the objects anew from their manifests",
                file.display()
            ),
            Err(why) => tracing::warn!(
                "{}: missing, and {}: {why}: an unknown number of confirmed writes is gone, and a new cluster is begun: \
                 agents that join it stop the pods that run",
                file.display(),
                witness.display()
            ),
        }
        return Ok(begun);
    };
    match noted {
        Ok(None) => unwitnessed(&witness, "it is missing"),
        Ok(Some(Confirmed { cluster, sequence })) if cluster == stored.cluster => {
            let found = stored.numbers.sequence;
            if sequence > found {
                return Err(OpenError::Behind { file, witness, found, confirmed: sequence });
            }
        }
        Ok(Some(Confirmed { cluster, .. })) => {
            unwitnessed(
                &witness,
                &format!("it is of another cluster ({cluster}, the store: {})", stored.cluster),
            );
        }
        Err(why) => unwitnessed(&witness, &why),
    }
    Ok((database, stored))
}

fn unwitnessed(witness: &Path, why: &str) {
    tracing::warn!(
        "{}: {why}: whether the store is older than what was confirmed cannot be known this time; it is made anew",
        witness.display()
    );
}

/// The first file of a new store, and its cluster.
fn found(medium: &mut dyn Medium, cluster: &str) -> Result<(Database, Stored), OpenError> {
    let file = medium.file().to_owned();
    let numbers = Numbers { sequence: 1, ..Numbers::default() };
    medium
        .replace(&mut |database| rows::found(database, cluster, numbers, &[]))
        .map_err(|error| open_error(&file, Flaw::Failed(error)))?;
    let gone = || OpenError::damaged(&file, "it was taken away while it was made");
    let loaded = load(medium)?.ok_or_else(gone)?;
    medium.confirm(&Confirmed { cluster: cluster.to_owned(), sequence: numbers.sequence });
    Ok(loaded)
}

/// What went wrong, in the system's words where it is the system's answer.
pub(super) fn cause(error: &redb::Error) -> String {
    match error {
        redb::Error::Io(error) => describe(error),
        error => describe(error),
    }
}

pub(super) fn contradiction() -> redb::Error {
    redb::Error::Corrupted("its pages contradict each other".to_owned())
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs what may panic on a damaged file: redb checks as it reads, and a page that contradicts another one may end
/// in a panic. `None` where it does; nothing is printed, because the caller says what is wrong.
pub(super) fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                usual(panic);
            }
        }));
    });
    QUIET.set(true);
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok();
    QUIET.set(false);
    done
}
