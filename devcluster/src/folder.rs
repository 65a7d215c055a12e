//! A folder that goes with the value, and with the process however it ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::error::Error;
use crate::process;

/// Where a group of servers keeps its data, keys and logs.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    kept: bool,
    /// Waits for the end of its input, which is the end of this process, and removes the folder then: a value in a
    /// static is never dropped.
    janitor: Option<Child>,
}

impl Folder {
    /// A new one among the system's temporary folders.
    pub fn temporary() -> Result<Self, Error> {
        let parent = std::env::temp_dir();
        let made = tempfile::Builder::new().prefix("phalanx-servers-").tempdir_in(&parent);
        let path = made.map_err(Error::file(&parent))?.keep();
        let mut janitor = Command::new("sh");
        janitor
            .args(["-c", "trap '' INT TERM HUP; cat >/dev/null; sleep 0.2; rm -rf -- \"$0\""])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let janitor = process::spawn("sh", janitor, process::AtParentsEnd::Lives)?;
        Ok(Self { path, kept: false, janitor: Some(janitor) })
    }

    /// One of the caller's, which stays.
    pub fn kept(path: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(path).map_err(Error::file(path))?;
        let path = path.canonicalize().map_err(Error::file(path))?;
        Ok(Self { path, kept: true, janitor: None })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file of this folder; only its owner may read it.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.path.join(name);
        let options =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        options.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::file(&path))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // What is left now the janitor removes.
        let _ = std::fs::remove_dir_all(&self.path);
        if let Some(mut janitor) = self.janitor.take() {
            drop(janitor.stdin.take());
            let _ = janitor.wait();
        }
    }
}
