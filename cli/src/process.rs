//! Child processes: started so that they never outlive us by accident, stopped in order, and found
//! again by `down` when they were left running on purpose.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child as StdChild, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::arguments::Child;
use crate::failure::Failure;

/// How long a process may take to end by itself before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Lines of a log shown when its process fails.
const TAIL_LINES: usize = 15;

/// A program beside the running one.
///
/// # Errors
/// It is not there.
pub fn sibling(program: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find the running program: {error}")))?;
    let path = own.with_file_name(program);
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::new(format!(
        "{} is missing: build it with `cargo build -p phalanx-coordinator -p phalanx-agent -p mock-nvml`",
        path.display()
    )))
}

/// A running child.
pub struct Process {
    /// Name for people.
    pub name: String,
    /// Its log.
    pub log: PathBuf,
    child: StdChild,
}

impl Process {
    /// Starts `program`. Its output goes to `log`; the log of an earlier run is kept beside it as
    /// `*.previous`. Unless `detached`, the kernel ends it when this process ends, however that comes.
    ///
    /// # Errors
    /// The log cannot be written or the program not started.
    pub fn start(
        name: &str,
        program: &Path,
        arguments: &[String],
        log: PathBuf,
        detached: bool,
    ) -> Result<Self, Failure> {
        if log.exists() {
            // Best effort: only the older log is lost.
            let _ = fs::rename(&log, log.with_extension("previous"));
        }
        let failed = |error: std::io::Error| Failure::new(format!("cannot write {}: {error}", log.display()));
        let output = File::create(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let mut command = if detached {
            Command::new(program)
        } else {
            // The parent-death signal can only be set by the child itself, between fork and exec;
            // a second start of this program does that without unsafe code.
            let mut command = Command::new(own_program()?);
            command.args(["child", "--parent", &std::process::id().to_string(), "--"]).arg(program);
            command
        };
        let child = command
            .args(arguments)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            // Own group: Ctrl-C reaches us alone, and we stop the children in order.
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::new(format!("cannot start {}: {error}", program.display())))?;
        Ok(Self { name: name.to_owned(), log, child })
    }

    /// Its process id; the same before and after the child has become the program.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails where the process has ended, with the end of its log.
    ///
    /// # Errors
    /// It has ended.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Failure::new(format!(
                "{} has ended by itself ({status}), so that all is stopped; {}",
                self.name,
                self.tail()
            ))),
            Err(error) => Err(Failure::new(format!("cannot watch {}: {error}", self.name))),
        }
    }

    /// The last lines of its log under a heading.
    #[must_use]
    pub fn tail(&self) -> String {
        let text = fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let text = text.unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        let body: String = last.iter().map(|line| format!("  {line}\n")).collect();
        format!("end of {}:\n{body}", self.log.display())
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

/// Asks all to end, waits, kills what is left. Nothing remains, not even a zombie.
pub fn stop(processes: &mut [Process]) {
    for process in processes.iter() {
        send(process.id(), Signal::TERM);
    }
    wait_until(GRACE, || processes.iter_mut().all(Process::has_ended));
    for process in processes {
        if !process.has_ended() {
            // Both may only fail where the process has just ended.
            let _ = process.child.kill();
        }
        let _ = process.child.wait();
    }
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // An error means that it is gone.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::new(format!("cannot find the running program: {error}")))
}

/// Becomes the given program after asking the kernel for a signal at the parent's end. Returns only
/// when that fails.
#[must_use]
pub fn become_child(options: &Child) -> Failure {
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::TERM)) {
        return Failure::new(format!("cannot ask for a signal at the parent's end: {error}"));
    }
    // The parent may have ended before the request was in place.
    if std::os::unix::process::parent_id() != options.parent {
        return Failure::new("the parent process has ended");
    }
    let Some((program, arguments)) = options.command.split_first() else {
        return Failure::new("no program is named");
    };
    let error = Command::new(program).args(arguments).exec();
    Failure::new(format!("cannot start {}: {error}", Path::new(program).display()))
}

/// A process as it is found again later. The start time tells it from a later one with its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Name for people.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

impl Known {
    /// A process that runs now; `None` where it does not.
    #[must_use]
    pub fn find(name: &str, pid: u32) -> Option<Self> {
        Some(Self { name: name.to_owned(), pid, started: start_time(pid)? })
    }

    /// Asks it to end; kills it where it has not after this time.
    pub fn end(&self, limit: Duration) {
        send(self.pid, Signal::TERM);
        if !wait_until(limit, || !self.runs()) {
            send(self.pid, Signal::KILL);
            wait_until(GRACE, || !self.runs());
        }
    }

    /// True while this very process runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }
}

/// Field 22 of `/proc/PID/stat`; `None` for a process that is gone or only waits to be reaped.
fn start_time(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets and may hold anything.
    let (_, fields) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    if fields.first() == Some(&"Z") { None } else { fields.get(19)?.parse().ok() }
}

/// What was started from a state folder.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Started {
    /// The `up` that watches the others; it stops them itself.
    pub supervisor: Option<Known>,
    /// Coordinator and agents.
    pub processes: Vec<Known>,
    /// The folder was made for a demo and is removed when all is stopped.
    pub temporary: bool,
}

impl Started {
    const FILE: &'static str = "processes.json";

    /// Reads the list of a state folder; `None` where there is none.
    #[must_use]
    pub fn read(state_dir: &Path) -> Option<Self> {
        serde_json::from_str(&fs::read_to_string(state_dir.join(Self::FILE)).ok()?).ok()
    }

    /// Writes the list.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, state_dir: &Path) -> Result<(), Failure> {
        let path = state_dir.join(Self::FILE);
        let text = serde_json::to_string_pretty(self).map_err(|error| Failure::new(error.to_string()))?;
        fs::write(&path, text)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))
    }

    /// Removes the list of a state folder.
    pub fn remove(state_dir: &Path) {
        // A list that stays names processes that no longer run, which is seen.
        let _ = fs::remove_file(state_dir.join(Self::FILE));
    }

    /// Those that still run, the supervisor first.
    #[must_use]
    pub fn running(&self) -> Vec<Known> {
        self.supervisor.iter().chain(&self.processes).filter(|process| process.runs()).cloned().collect()
    }

    /// Stops all that runs: first the supervisor, which stops the others; then what is left.
    pub fn stop(&self) {
        let all_ended = || self.running().is_empty();
        if let Some(supervisor) = self.supervisor.as_ref().filter(|process| process.runs()) {
            send(supervisor.pid, Signal::TERM);
            wait_until(GRACE * 2, all_ended);
        }
        for signal in [Signal::TERM, Signal::KILL] {
            self.running().iter().for_each(|process| send(process.pid, signal));
            wait_until(GRACE, all_ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_too() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let known = Known::find("sleep", child.id()).unwrap();
        assert!(known.runs());
        assert!(!Known { started: known.started + 1, ..known.clone() }.runs(), "another one with its id");
        let started = Started { processes: vec![known.clone()], ..Started::default() };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!known.runs());
        assert!(started.running().is_empty());
    }

    #[test]
    fn what_was_left_running_is_stopped() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let known = Known::find("sleep", child.id()).unwrap();
        let reaper = std::thread::spawn(move || child.wait().unwrap());
        Started { processes: vec![known.clone()], ..Started::default() }.stop();
        assert!(!known.runs());
        assert!(!reaper.join().unwrap().success());
    }
}
