//! Programs that end with this process, whatever ends it, and whose log is shown when they fail.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use rustix::process::Signal;

use crate::error::Error;

/// Last lines of a log that an error shows.
const TAIL_LINES: usize = 30;

/// What becomes of a program when this process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtParentsEnd {
    /// The kernel kills it.
    Dies,
    /// It goes on.
    Lives,
}

type Request = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a program. The kernel counts the end of the *thread* that started it as its parent's end, and tests run in
/// threads that end: so one thread that never ends starts them all.
pub(crate) fn spawn(name: &str, mut command: Command, at_end: AtParentsEnd) -> Result<Child, Error> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Request>>> = OnceLock::new();
    let failed = |source| Error::Start { name: name.to_owned(), source };
    if at_end == AtParentsEnd::Dies {
        die_with_parent(&mut command);
    }
    // A signal of the terminal goes to this process only, which then ends its servers.
    command.process_group(0);
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        std::thread::spawn(move || {
            while let Ok((mut command, answer)) = requests.recv() {
                // Whoever asked waits for it.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (answer, child) = mpsc::channel();
    let ended = |_| io::Error::other("the thread that starts programs has ended");
    let sender = spawner.lock().unwrap_or_else(PoisonError::into_inner).clone();
    sender.send((command, answer)).map_err(|_| failed(ended(())))?;
    child.recv().map_err(|_| failed(ended(())))?.map_err(failed)
}

fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before the request was in place.
        if std::os::unix::process::parent_id() == parent {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::BrokenPipe))
        }
    };
    // SAFETY: between fork and exec it makes two system calls and touches neither memory of others nor locks.
    unsafe {
        command.pre_exec(ask);
    }
}

/// A server that runs. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Server {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts a program whose output goes to `NAME.log` of the folder.
    pub fn start(name: &str, program: &Path, arguments: &[String], folder: &Path) -> Result<Self, Error> {
        Self::start_in(name, program, arguments, &[], folder)
    }

    /// The same with these variables in its environment.
    pub fn start_in(
        name: &str,
        program: &Path,
        arguments: &[String],
        environment: &[(String, String)],
        folder: &Path,
    ) -> Result<Self, Error> {
        let log = folder.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).map_err(Error::file(&log))?;
        let second = file.try_clone().map_err(Error::file(&log))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(environment.iter().cloned())
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(second);
        let child = spawn(name, command, AtParentsEnd::Dies)?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails where it has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failure(&format!("has ended ({status})"))),
            Err(error) => Err(self.failure(&format!("cannot be watched: {error}"))),
        }
    }

    /// An error of this server, with the end of its log.
    pub fn failure(&self, what: &str) -> Error {
        Error::NotReady { name: self.name.clone(), what: what.to_owned(), tail: self.tail() }
    }

    fn tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n  ");
        format!("end of {}:\n  {last}", self.log.display())
    }

    /// Sends a signal; that it is gone already is no error.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        // Both may only fail where it has just ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
