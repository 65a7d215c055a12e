//! `phalanx import`: reads the configuration of Volcano's scheduler, says line by line what each action and plugin
//! becomes here, and writes a configuration of the coordinator.

pub mod actions;
pub mod duration;
pub mod plugins;
pub mod report;
pub mod scheduler;
pub mod source;

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use phalanx_common::describe::plain;
use serde::Serialize;

use self::report::{Imported, Line, Setting};
use crate::arguments::Import;
use crate::failure::{Failure, Format, print_json, print_text};
use crate::table::list;

/// Largest file that is read; Volcano's own must fit into a ConfigMap, which ends at 1 MiB.
const MAX_BYTES: u64 = 4 << 20;

/// More are not all shown.
const PROBLEMS_SHOWN: usize = 20;

/// Something wrong with what was given, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line of the file, from 1; 0 where it is the file as a whole.
    pub line: usize,
    /// Field, what is wrong, and what is allowed.
    pub message: String,
}

impl Problem {
    /// A problem with its line.
    pub fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    file: String,
    lines: &'a [Line],
    settings: &'a [Setting],
    configuration: &'a str,
    written_to: Option<String>,
}

/// Reads, reports and writes.
///
/// # Errors
/// The file cannot be read or is no configuration of Volcano's scheduler; or `--out` cannot be written.
pub fn run(options: &Import, format: Format) -> Result<(), Failure> {
    let name = options.scheduler_conf.display().to_string();
    let text = read(&options.scheduler_conf)?;
    let imported = import(&text).map_err(|problems| {
        let line = |problem: &Problem| match problem.line {
            0 => format!("{name}: {}", problem.message),
            line => format!("{name}:{line}: {}", problem.message),
        };
        let mut lines: Vec<String> = problems.iter().take(PROBLEMS_SHOWN).map(line).collect();
        if problems.len() > PROBLEMS_SHOWN {
            lines.push(format!("{name}: and {} more", problems.len() - PROBLEMS_SHOWN));
        }
        Failure::new(lines.join("\nerror: "))
    })?;
    let configuration = imported.toml(&name);
    if let Some(out) = &options.out {
        write_new(out, &configuration)?;
    }
    if format == Format::Json {
        let written_to = options.out.as_ref().map(|out| out.display().to_string());
        let (lines, settings) = (imported.lines.as_slice(), imported.settings.as_slice());
        return print_json(&Printed {
            file: name,
            lines,
            settings,
            configuration: &configuration,
            written_to,
        });
    }
    print_text(&table(&imported));
    match &options.out {
        Some(out) => print_text(&format!(
            "\nWritten to {0}. Start the coordinator with --config {0}, or add its lines to coordinator.toml.",
            out.display()
        )),
        None => print_text(&format!(
            "\nOur configuration (--out FILE writes it):\n\n{}",
            configuration.trim_end()
        )),
    }
    Ok(())
}

/// What a text says of the scheduler, and what that becomes.
///
/// # Errors
/// All that is wrong with it, in the order of its lines.
pub fn import(text: &str) -> Result<Imported, Vec<Problem>> {
    let found = source::find(text)?;
    let read = scheduler::read(&found)?;
    report::imported(&read)
}

fn table(imported: &Imported) -> String {
    let row = |line: &Line| {
        let at = line.line.map(|line| line.to_string()).unwrap_or_default();
        vec![at, line.name.clone(), line.text.clone()]
    };
    list(&["LINE", "VOLCANO", "HERE"], imported.lines.iter().map(row).collect())
}

fn read(path: &Path) -> Result<String, Failure> {
    let flag = "--scheduler-conf";
    let name = path.display();
    let failed = |error: io::Error| Failure::new(format!("{flag} {name}: {}", plain(&error.to_string())));
    let mut bytes = Vec::new();
    let reader: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(fs::File::open(path).map_err(failed)?)
    };
    reader.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        let limit = MAX_BYTES >> 20;
        return Err(Failure::new(format!(
            "{flag} {name}: more than {limit} MiB: give only volcano-scheduler.conf, or its ConfigMap"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Failure::new(format!(
            "{flag} {name}: line {line} is not UTF-8 text: is it a YAML file? save it as UTF-8"
        ))
    })
}

/// Never over another file: it may be the one that a coordinator runs with.
fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let why = if error.kind() == io::ErrorKind::AlreadyExists {
            "exists already: name a new file, or remove it first".to_owned()
        } else {
            plain(&error.to_string())
        };
        Failure::new(format!("--out {}: {why}", path.display()))
    };
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}
