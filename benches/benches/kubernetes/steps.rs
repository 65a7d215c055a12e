//! Where the time of a gang goes, by the coordinator's own recording: from the fact that lets it start to its last
//! Binding. Times are whole milliseconds.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use phalanx_common::ids::{ActionId, GangName, LeaseId, PodUid};
use phalanx_common::units::Time;
use phalanx_common::wire::ToAgent;
use phalanx_coordinator::recorder::Record;
use phalanx_core::action::Command;
use phalanx_core::event::Event;
use phalanx_devcluster::installation::Installation;

use crate::Failure;

/// When a gang did what.
#[derive(Debug, Default)]
struct Steps {
    /// The last fact about one of its pods or about queues before it was planned.
    may_start: Option<Time>,
    reserve: Option<Time>,
    plan: Option<Time>,
    arm: Option<Time>,
    bind: Option<Time>,
    bound: Option<Time>,
}

/// Files of the recording, and how far they were read.
#[derive(Debug)]
pub struct Recording {
    folder: PathBuf,
    /// Files that are older, or were read so far, with their length.
    read: BTreeMap<PathBuf, u64>,
}

impl Recording {
    /// Passes over what is recorded so far.
    pub fn begin(installation: &Installation) -> Result<Self, Failure> {
        let replica = installation.replicas().first().ok_or("there is no coordinator")?;
        let folder = replica.state_dir().join("recordings");
        let mut recording = Self { folder, read: BTreeMap::new() };
        recording.read = recording.files()?;
        Ok(recording)
    }

    fn files(&self) -> Result<BTreeMap<PathBuf, u64>, Failure> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            files.insert(entry.path(), entry.metadata()?.len());
        }
        Ok(files)
    }

    /// Prints how long each step took, of all gangs since `begin`.
    pub fn print(&self) -> Result<(), Failure> {
        let mut reader = Reader::default();
        for path in self.files()?.into_keys() {
            let mut lines = BufReader::new(fs::File::open(&path)?);
            let known = self.read.get(&path).copied().unwrap_or_default();
            std::io::Seek::seek(&mut lines, std::io::SeekFrom::Start(known))?;
            for line in lines.lines() {
                // The last line may not be whole yet.
                if let Ok(record) = serde_json::from_str(&line?) {
                    reader.take(record);
                }
            }
        }
        reader.print();
        Ok(())
    }
}

#[derive(Default)]
struct Reader {
    gangs: BTreeMap<GangName, Steps>,
    of_lease: BTreeMap<LeaseId, GangName>,
    of_pod: BTreeMap<PodUid, GangName>,
    binds: BTreeMap<ActionId, GangName>,
    queue: Option<Time>,
}

impl Reader {
    fn take(&mut self, record: Record) {
        match record {
            Record::Event { at, event } => self.event(at, &event),
            Record::Cycle { at, actions } => {
                for action in actions {
                    self.command(at, action.id, action.command);
                }
            }
            Record::Header(_) | Record::Snapshot { .. } => {}
        }
    }

    fn event(&mut self, at: Time, event: &Event) {
        match event {
            Event::QueueApplied(_) => self.queue = Some(at),
            Event::PodApplied(pod) | Event::LonePodApplied { pod, .. } => {
                let steps = self.gangs.entry(pod.gang.clone()).or_default();
                if steps.reserve.is_none() {
                    steps.may_start = Some(at);
                }
            }
            Event::ActionDone { action, .. } => {
                if let Some(steps) = self.binds.get(action).and_then(|gang| self.gangs.get_mut(gang)) {
                    steps.bound = Some(at);
                }
            }
            _ => {}
        }
    }

    fn command(&mut self, at: Time, id: ActionId, command: Command) {
        match command {
            Command::Send { message, .. } => match *message {
                ToAgent::Reserve { lease, request, .. } => {
                    let steps = self.gangs.entry(request.gang.clone()).or_default();
                    if steps.reserve.is_none() {
                        steps.may_start = steps.may_start.max(self.queue.filter(|opened| *opened <= at));
                        steps.reserve = Some(at);
                    }
                    self.of_pod.insert(request.pod.clone(), request.gang.clone());
                    self.of_lease.insert(lease, request.gang.clone());
                }
                ToAgent::Arm { lease, .. } => {
                    if let Some(steps) = self.of_lease.get(&lease).and_then(|gang| self.gangs.get_mut(gang)) {
                        steps.arm.get_or_insert(at);
                    }
                }
                _ => {}
            },
            Command::WritePlan(plan) => {
                self.gangs.entry(plan.gang.clone()).or_default().plan.get_or_insert(at);
            }
            Command::Bind { pod, .. } => {
                if let Some(gang) = self.of_pod.get(&pod) {
                    self.gangs.entry(gang.clone()).or_default().bind.get_or_insert(at);
                    self.binds.insert(id, gang.clone());
                }
            }
            _ => {}
        }
    }

    fn print(&self) {
        type Step = (&'static str, fn(&Steps) -> (Option<Time>, Option<Time>));
        let steps: [Step; 5] = [
            ("decided", |steps| (steps.may_start, steps.reserve)),
            ("reserved by all agents", |steps| (steps.reserve, steps.plan.or(steps.arm))),
            ("plan stored", |steps| (steps.plan, steps.arm)),
            ("armed by all agents", |steps| (steps.arm, steps.bind)),
            ("bound", |steps| (steps.bind, steps.bound)),
        ];
        let mut parts = Vec::new();
        for (name, span) in steps {
            let spans = self.gangs.values().map(span);
            let spans = spans.filter_map(|(from, to)| Some(to?.0.saturating_sub(from?.0)));
            let mut spans: Vec<u64> = spans.collect();
            spans.sort_unstable();
            if let (Some(median), Some(most)) = (spans.get(spans.len() / 2), spans.last()) {
                parts.push(format!("{name} {median} ms (most {most})"));
            }
        }
        println!("    of {} gangs: {}", self.gangs.len(), parts.join(", "));
    }
}
