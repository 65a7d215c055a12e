//! The fields of a configuration of Volcano's scheduler, read with their lines.

use phalanx_text::did_you_mean;
use phalanx_text::tree::{Entry, Node, Tree, shorten};

use super::Problem;
use super::source::{Found, field};

/// What Volcano does where no actions are named.
pub const DEFAULT_ACTIONS: [&str; 3] = ["enqueue", "allocate", "backfill"];

/// A name and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: String,
    /// Line of the file.
    pub line: usize,
}

/// Something with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given<T> {
    /// The name.
    pub name: String,
    /// What it is set to.
    pub value: T,
    /// Line of the file.
    pub line: usize,
}

/// A plugin of a tier, or the part of `configurations` for an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// The name.
    pub name: String,
    /// Line of the file.
    pub line: usize,
    /// Switches `enable…`.
    pub switches: Vec<Given<bool>>,
    /// Its arguments, as written.
    pub arguments: Vec<Given<String>>,
    /// Fields that Volcano does not know either.
    pub unknown: Vec<Named>,
}

impl Plugin {
    /// What a switch is set to.
    #[must_use]
    pub fn switch(&self, name: &str) -> Option<bool> {
        self.switches.iter().find(|switch| switch.name == name).map(|switch| switch.value)
    }
}

/// What a configuration says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scheduler {
    /// Line of `actions`; `None` where there is none and Volcano's default counts.
    pub actions_line: Option<usize>,
    /// The actions, in order.
    pub actions: Vec<Named>,
    /// The plugins of all tiers, in order.
    pub plugins: Vec<Plugin>,
    /// Arguments of actions.
    pub configurations: Vec<Plugin>,
    /// Other fields of the configuration.
    pub others: Vec<Named>,
}

/// Reads all fields.
///
/// # Errors
/// All that is wrong.
pub fn read(found: &Found) -> Result<Scheduler, Vec<Problem>> {
    let mut reader = Reader { before: found.before, problems: Vec::new() };
    let mut scheduler = Scheduler::default();
    for entry in &found.entries {
        match &*entry.key {
            "actions" => reader.actions(entry, &mut scheduler),
            "tiers" => reader.tiers(&entry.node, &mut scheduler),
            "configurations" => {
                for (place, node) in reader.items("configurations", &entry.node) {
                    scheduler.configurations.extend(reader.plugin(&place, node));
                }
            }
            name => scheduler.others.push(Named { name: name.to_owned(), line: entry.line + found.before }),
        }
    }
    if scheduler.actions.is_empty() {
        let named = |name: &str| Named { name: name.to_owned(), line: 0 };
        scheduler.actions = DEFAULT_ACTIONS.map(named).to_vec();
        scheduler.actions_line = None;
    }
    reader.problems.sort_by_key(|problem| problem.line);
    if reader.problems.is_empty() { Ok(scheduler) } else { Err(reader.problems) }
}

struct Reader {
    before: usize,
    problems: Vec<Problem>,
}

impl Reader {
    fn wrong(&mut self, line: usize, message: String) {
        self.problems.push(Problem::new(line + self.before, message));
    }

    fn line(&self, line: usize) -> usize {
        line + self.before
    }

    /// One text with commas, or a list.
    fn actions(&mut self, entry: &Entry, scheduler: &mut Scheduler) {
        const EXPECTED: &str =
            "must be names with commas between them, such as \"enqueue, allocate, backfill\"";
        let mut names: Vec<(String, usize)> = Vec::new();
        match &entry.node.value {
            Tree::Text(text) => {
                let parts = text.split(',').map(str::trim).filter(|name| !name.is_empty());
                names.extend(parts.map(|name| (name.to_owned(), entry.node.line)));
            }
            Tree::List(nodes) => {
                for node in nodes {
                    match &node.value {
                        Tree::Text(text) => names.push((text.trim().to_owned(), node.line)),
                        _ => self.wrong(node.line, format!("actions: {EXPECTED}, found {}", node.describe())),
                    }
                }
            }
            Tree::Null => {}
            _ => self.wrong(entry.line, format!("actions: {EXPECTED}, found {}", entry.node.describe())),
        }
        scheduler.actions_line = Some(self.line(entry.line));
        for (name, line) in names {
            if scheduler.actions.iter().any(|before| before.name == name) {
                self.wrong(line, format!("actions: {} is named twice: remove one of them", shorten(&name)));
                continue;
            }
            let line = self.line(line);
            scheduler.actions.push(Named { name, line });
        }
    }

    fn tiers(&mut self, node: &Node, scheduler: &mut Scheduler) {
        for (place, tier) in self.items("tiers", node) {
            let Tree::Map(entries) = &tier.value else {
                self.wrong(
                    tier.line,
                    format!("{place}: must be a mapping with plugins, found {}", tier.describe()),
                );
                continue;
            };
            for entry in entries.iter().filter(|entry| &*entry.key != "plugins") {
                let hint = did_you_mean(&entry.key, ["plugins"]);
                self.wrong(entry.line, format!("{place}: unknown field {:?}{hint}", shorten(&entry.key)));
            }
            let Some(plugins) = field(entries, "plugins") else { continue };
            for (place, node) in self.items(&format!("{place}.plugins"), plugins) {
                scheduler.plugins.extend(self.plugin(&place, node));
            }
        }
    }

    fn items<'n>(&mut self, place: &str, node: &'n Node) -> Vec<(String, &'n Node)> {
        match &node.value {
            Tree::List(nodes) => {
                nodes.iter().enumerate().map(|(at, node)| (format!("{place}[{at}]"), node)).collect()
            }
            Tree::Null => Vec::new(),
            _ => {
                self.wrong(node.line, format!("{place}: must be a list, found {}", node.describe()));
                Vec::new()
            }
        }
    }

    fn plugin(&mut self, place: &str, node: &Node) -> Option<Plugin> {
        let Tree::Map(entries) = &node.value else {
            let found = node.describe();
            self.wrong(
                node.line,
                format!("{place}: must be a mapping with name, found {found}; write - name: NAME"),
            );
            return None;
        };
        let mut plugin = Plugin {
            name: String::new(),
            line: self.line(node.line),
            switches: Vec::new(),
            arguments: Vec::new(),
            unknown: Vec::new(),
        };
        for entry in entries {
            let line = self.line(entry.line);
            match (&*entry.key, &entry.node.value) {
                ("name", Tree::Text(name)) if !name.trim().is_empty() => {
                    (plugin.name, plugin.line) = (name.trim().to_owned(), line);
                }
                ("name", _) => {
                    self.wrong(
                        entry.line,
                        format!("{place}.name: must be a name, found {}", entry.node.describe()),
                    );
                    return None;
                }
                ("arguments", _) => plugin.arguments = self.arguments(place, &entry.node),
                (key, _) if key.starts_with("enable") => match truth(&entry.node.value) {
                    Some(value) => plugin.switches.push(Given { name: key.to_owned(), value, line }),
                    None => {
                        let found = entry.node.describe();
                        self.wrong(
                            entry.line,
                            format!("{place}.{key}: must be true or false, found {found}"),
                        );
                    }
                },
                (key, _) => plugin.unknown.push(Named { name: key.to_owned(), line }),
            }
        }
        if plugin.name.is_empty() {
            self.wrong(node.line, format!("{place}.name: is missing; write name: NAME"));
            return None;
        }
        Some(plugin)
    }

    fn arguments(&mut self, place: &str, node: &Node) -> Vec<Given<String>> {
        let entries = match &node.value {
            Tree::Map(entries) => entries,
            Tree::Null => return Vec::new(),
            _ => {
                self.wrong(
                    node.line,
                    format!("{place}.arguments: must be a mapping, found {}", node.describe()),
                );
                return Vec::new();
            }
        };
        let text = |node: &Node| match &node.value {
            Tree::Text(text) | Tree::Number { text, .. } => text.to_string(),
            _ => node.describe(),
        };
        let given = |entry: &Entry| Given {
            name: entry.key.to_string(),
            value: text(&entry.node),
            line: self.line(entry.line),
        };
        entries.iter().map(given).collect()
    }
}

/// Volcano reads YAML 1.1, in which more words are a truth than in 1.2.
fn truth(value: &Tree) -> Option<bool> {
    match value {
        Tree::Bool(value) => Some(*value),
        Tree::Text(text) => match text.to_lowercase().as_str() {
            "yes" | "on" | "y" => Some(true),
            "no" | "off" | "n" => Some(false),
            _ => None,
        },
        _ => None,
    }
}
