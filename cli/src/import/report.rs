//! What a configuration becomes: a line for each thing in it, and the keys of ours.

use std::fmt::Write as _;
use std::time::Duration;

use phalanx_text::did_you_mean;
use phalanx_text::settings::shown;
use phalanx_text::tree::shorten;
use serde::Serialize;

use super::actions::{self, ACTIONS};
use super::plugins::{self, Known, PLUGINS, SWITCHES};
use super::scheduler::{DEFAULT_ACTIONS, Given, Named, Plugin, Scheduler};
use super::{Problem, duration};

/// What something of Volcano becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Becomes {
    /// It is how Phalanx works, without a key.
    AlwaysOn,
    /// A key of our configuration is set by it.
    Set,
    /// It is said elsewhere, as in an object.
    Elsewhere,
    /// Nothing stands for it.
    Nothing,
    /// Volcano does not know it either.
    Unknown,
}

/// One thing of Volcano's configuration and what it becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Line of the file; `None` for what is absent.
    pub line: Option<usize>,
    /// What it is: `action`, `plugin`, `switch`, `argument`, `field`.
    pub kind: &'static str,
    /// Its name, as people would say it.
    pub name: String,
    /// What it becomes.
    pub becomes: Becomes,
    /// The same for people.
    pub text: String,
}

/// A key of our configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The key.
    pub key: &'static str,
    /// Its value, as TOML.
    pub value: String,
    /// Why it has that value.
    pub because: String,
}

/// All that a configuration becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// In the order of the file; what is absent last.
    pub lines: Vec<Line>,
    /// Our keys.
    pub settings: Vec<Setting>,
}

impl Imported {
    /// A configuration file of the coordinator.
    #[must_use]
    pub fn toml(&self, file: &str) -> String {
        // A name may hold what ends a comment.
        let plain = |text: &str| text.replace(|letter: char| letter.is_control(), "?");
        let mut text =
            format!("# What {} becomes. The other keys are in docs/configuration.md.\n", plain(file));
        for Setting { key, value, because } in &self.settings {
            let _ = write!(text, "\n# {}\n{key} = {value}\n", plain(because));
        }
        text
    }
}

/// Says what everything becomes.
///
/// # Errors
/// Values that Volcano could not read either, though Volcano would only leave them out.
pub fn imported(scheduler: &Scheduler) -> Result<Imported, Vec<Problem>> {
    let mut report = Report { scheduler, imported: Imported::default(), hold: None, problems: Vec::new() };
    report.actions();
    for plugin in &scheduler.plugins {
        report.plugin(plugin);
    }
    for configuration in &scheduler.configurations {
        report.configuration(configuration);
    }
    for other in &scheduler.others {
        report.other(other);
    }
    report.absent();
    report.switched(&PREEMPT);
    report.switched(&RECLAIM);
    report.hold();
    let Report { imported, problems, .. } = report;
    if problems.is_empty() { Ok(imported) } else { Err(problems) }
}

/// One of the two switches, and what Volcano has for it.
struct Switch {
    key: &'static str,
    what: &'static str,
    actions: [&'static str; 2],
    switch: &'static str,
    votes: fn(&Known) -> bool,
    on: &'static str,
    off: &'static str,
}

const PREEMPT: Switch = Switch {
    key: "preempt",
    what: "preemption",
    actions: ["preempt", "gangpreempt"],
    switch: "enablePreemptable",
    votes: |known| known.votes_on_preemption,
    on: "gangs may take the place of less urgent ones of their queue",
    off: "no gang is evicted for a more urgent one",
};

const RECLAIM: Switch = Switch {
    key: "reclaim",
    what: "reclaim",
    actions: ["reclaim", "gangreclaim"],
    switch: "enableReclaimable",
    votes: |known| known.votes_on_reclaim,
    on: "queues take back what others have above their share",
    off: "what a queue has lent comes back only when it is free",
};

impl Switch {
    fn no_victims(&self) -> String {
        format!("no plugin of this file allows victims ({})", self.switch)
    }
}

struct Report<'s> {
    scheduler: &'s Scheduler,
    imported: Imported,
    /// The last that is said counts.
    hold: Option<Setting>,
    problems: Vec<Problem>,
}

impl Report<'_> {
    fn say(
        &mut self,
        line: Option<usize>,
        kind: &'static str,
        name: impl Into<String>,
        becomes: Becomes,
        text: impl Into<String>,
    ) {
        let line = line.filter(|line| *line > 0);
        self.imported.lines.push(Line { line, kind, name: name.into(), becomes, text: text.into() });
    }

    fn set(&mut self, key: &'static str, value: impl Into<String>, because: impl Into<String>) {
        self.imported.settings.push(Setting { key, value: value.into(), because: because.into() });
    }

    fn actions(&mut self) {
        if self.scheduler.actions_line.is_none() {
            let text = format!("Volcano's default counts: \"{}\"", DEFAULT_ACTIONS.join(", "));
            self.say(None, "action", "actions absent", Becomes::AlwaysOn, text);
        }
        for Named { name, line } in &self.scheduler.actions {
            match actions::find(name) {
                Some(action) => {
                    let mut switches = [PREEMPT, RECLAIM].into_iter();
                    let switch = switches.find(|switch| switch.actions.contains(&action.name));
                    let text = match switch.filter(|switch| !self.allows_victims(switch)) {
                        Some(switch) => {
                            format!("{} off ({} = false): {}", switch.what, switch.key, switch.no_victims())
                        }
                        None => action.text.to_owned(),
                    };
                    self.say(Some(*line), "action", name, action.becomes, text);
                }
                None => {
                    let hint = did_you_mean(name, ACTIONS.iter().map(|action| action.name));
                    // What it was to switch on would be off otherwise, and nobody asked for that.
                    self.problems.push(Problem {
                        line: *line,
                        message: format!(
                            "actions: unknown action {:?}{hint}: Volcano refuses the file too; correct it, or leave it out",
                            shorten(name)
                        ),
                    });
                }
            }
        }
    }

    fn plugin(&mut self, plugin: &Plugin) {
        let (name, line) = (shorten(&plugin.name), Some(plugin.line));
        match plugins::find(&plugin.name) {
            Some(known) => self.say(line, "plugin", &name, known.becomes, known.text),
            None => {
                let hint = did_you_mean(&plugin.name, PLUGINS.iter().map(|known| known.name));
                let text = format!(
                    "unknown{hint}: a plugin of your own? nothing here stands for it: see docs/configuration.md for \
                     what can be set, and docs/reasons.md for what pods may ask"
                );
                self.say(line, "plugin", &name, Becomes::Unknown, text);
            }
        }
        for switch in &plugin.switches {
            self.plugin_switch(plugin, switch);
        }
        self.details(plugin, &name);
    }

    fn plugin_switch(&mut self, plugin: &Plugin, switch: &Given<bool>) {
        let name = format!("{}.{} = {}", shorten(&plugin.name), shorten(&switch.name), switch.value);
        if SWITCHES.contains(&switch.name.as_str()) {
            let text = plugins::switch(&plugin.name, &switch.name, switch.value);
            let becomes = match text.split(':').next() {
                Some("always on") => Becomes::AlwaysOn,
                Some("nothing") => Becomes::Nothing,
                _ => Becomes::Elsewhere,
            };
            return self.say(Some(switch.line), "switch", name, becomes, text);
        }
        let hint = did_you_mean(&switch.name, SWITCHES);
        let text = format!("unknown{hint}: leave it out");
        self.say(Some(switch.line), "switch", name, Becomes::Unknown, text);
    }

    /// Arguments, and fields that nobody knows.
    fn details(&mut self, plugin: &Plugin, name: &str) {
        for argument in &plugin.arguments {
            let shown_name = format!("{name}.{} = {}", shorten(&argument.name), shorten(&argument.value));
            if (plugin.name.as_str(), argument.name.as_str()) == ("sla", SLA_TIME) {
                self.sla(argument, shown_name);
                continue;
            }
            let text = plugins::argument(&plugin.name, &argument.name);
            self.say(Some(argument.line), "argument", shown_name, Becomes::Nothing, text);
        }
        for Named { name: field, line } in &plugin.unknown {
            let hint = did_you_mean(field, SWITCHES.into_iter().chain(["name", "arguments"]));
            let text = format!("unknown{hint}: leave it out");
            self.say(Some(*line), "field", format!("{name}.{}", shorten(field)), Becomes::Unknown, text);
        }
    }

    fn sla(&mut self, argument: &Given<String>, name: String) {
        let Some(waiting) = duration::read(&argument.value).filter(|waiting| !waiting.is_zero()) else {
            self.problems.push(Problem::new(
                argument.line,
                format!(
                    "sla.{SLA_TIME}: must be a duration above 0 such as 1h30m or 90s, found {:?}",
                    shorten(&argument.value)
                ),
            ));
            return;
        };
        let limited = waiting.clamp(LEAST_HOLD, MOST_HOLD);
        let limit = if limited == waiting {
            String::new()
        } else {
            format!(
                "; {} is out of its range of {} to {}",
                shown(waiting),
                shown(LEAST_HOLD),
                shown(MOST_HOLD)
            )
        };
        let value = format!("\"{}\"", shown(limited));
        let text = format!("hold-after = {value}: who waited so long gets a hold, urgent or not{limit}");
        self.say(Some(argument.line), "argument", name, Becomes::Set, text);
        let because = format!("sla.{SLA_TIME} (line {}): who waited so long gets a hold", argument.line);
        self.hold = Some(Setting { key: HOLD_AFTER, value, because });
    }

    fn configuration(&mut self, configuration: &Plugin) {
        let name = shorten(&configuration.name);
        if actions::find(&configuration.name).is_none() {
            let hint = did_you_mean(&configuration.name, ACTIONS.iter().map(|action| action.name));
            let text = format!("unknown{hint}: no action of that name");
            let name = format!("configuration of {name}");
            self.say(Some(configuration.line), "field", name, Becomes::Unknown, text);
        }
        self.details(configuration, &name);
    }

    fn other(&mut self, other: &Named) {
        let known = ["actions", "tiers", "configurations", "metrics"];
        let (becomes, text) = match other.name.as_str() {
            "metrics" => {
                (Becomes::Nothing, "nothing: what is asked counts, not the load that is measured".to_owned())
            }
            name => (
                Becomes::Unknown,
                format!("unknown{}: leave it out; known are {}", did_you_mean(name, known), known.join(", ")),
            ),
        };
        self.say(Some(other.line), "field", shorten(&other.name), becomes, text);
    }

    /// True where some plugin would let Volcano have victims. Of a plugin of somebody's own nobody knows.
    fn allows_victims(&self, switch: &Switch) -> bool {
        let may = |plugin: &Plugin| plugin.switch(switch.switch).unwrap_or(true);
        let would = |plugin: &Plugin| match plugins::find(&plugin.name) {
            Some(known) => (switch.votes)(known) && may(plugin),
            None => true,
        };
        self.scheduler.plugins.iter().any(would)
    }

    fn switched(&mut self, switch: &Switch) {
        let Switch { key, what, off, on, .. } = switch;
        let mut acting =
            self.scheduler.actions.iter().filter(|action| switch.actions.contains(&action.name.as_str()));
        let Some(Named { name, line }) = acting.next() else {
            let text = format!("{what} off ({key} = false): {off}");
            self.say(None, "action", format!("{key} absent"), Becomes::Set, text);
            let place = self.scheduler.actions_line.map(|line| format!(" (line {line})")).unwrap_or_default();
            return self.set(key, "false", format!("{key} is absent from actions{place}: {off}"));
        };
        if self.allows_victims(switch) {
            return self.set(key, "true", format!("{name} is in actions (line {line}): {on}"));
        }
        let why = format!("{name} is in actions (line {line}), where {}: {off}", switch.no_victims());
        self.set(key, "false", why);
    }

    /// What Volcano does only where it is named, and Phalanx always.
    fn absent(&mut self) {
        for name in DEFAULT_ACTIONS {
            if !self.scheduler.actions.iter().any(|action| action.name == name) {
                let text = actions::find(name).map_or("", |action| action.text);
                self.say(None, "action", format!("{name} absent"), Becomes::AlwaysOn, text);
            }
        }
    }

    /// What nobody asked for in Volcano and holds here.
    fn hold(&mut self) {
        let hold = self.hold.take();
        if hold.is_none() {
            let text = "hold-after stays at its default, 5m: a gang that waited so long gets a hold";
            self.say(None, "argument", format!("{SLA_TIME} absent"), Becomes::AlwaysOn, text);
        }
        self.imported.settings.extend(hold);
    }
}

const HOLD_AFTER: &str = "hold-after";
const SLA_TIME: &str = "sla-waiting-time";
/// The range of `hold-after`.
const LEAST_HOLD: Duration = Duration::from_secs(1);
const MOST_HOLD: Duration = Duration::from_secs(7 * 24 * 3600);
