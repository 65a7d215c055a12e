//! Opens and checks the store's file, and makes the first one.

use std::cell::Cell;
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

/// The first file of a new store, and its cluster.
pub(super) fn found(medium: &mut dyn Medium, cluster: &str) -> Result<(Database, Stored), OpenError> {
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
