//! Resource lists and containers' requests.

use std::sync::Arc;

use phalanx_common::gang::{ContainerKind, ContainerRequest};
use phalanx_common::resources::{
    CPU, MAX_RESOURCE_NAMES, MEMORY, NVIDIA_GPU, ResourceName, Resources, format_amount, parse_quantity,
};
use phalanx_text::closest;
use serde_json::{Map, Value};

use super::reader::{Cursor, Sink};
use super::tree::Tree;

/// Reads a list of resources, `{cpu: 2, nvidia.com/gpu: 8}`.
pub fn read_resources(cursor: &Cursor<'_>, sink: &mut Sink) -> Resources {
    let mut resources = Resources::new();
    let Some(entries) = cursor.entries(sink) else { return resources };
    if entries.len() > MAX_RESOURCE_NAMES {
        cursor.error(
            sink,
            format!("must name at most {MAX_RESOURCE_NAMES} resources, found {}", entries.len()),
        );
        return resources;
    }
    for (key, value) in entries {
        let name = match ResourceName::parse(key) {
            Ok(name) => name,
            Err(problem) => {
                value.error(sink, problem.to_string());
                continue;
            }
        };
        let text = match &value.node.value {
            Tree::Number { text, .. } | Tree::Text(text) => text,
            _ => {
                value.error(
                    sink,
                    format!("must be a quantity such as 2, 500m or 16Gi, found {}", value.node.describe()),
                );
                continue;
            }
        };
        warn_of_name(&value, key, sink);
        match parse_quantity(&name, text) {
            Ok(amount) => resources.set(name, amount),
            Err(problem) => value.error(sink, format!("{problem}{}", unit_hint(&name, text))),
        }
    }
    resources
}

/// What was meant by a unit that people write and Kubernetes does not read: `16GB`, `16 GiB`, `16gi`.
fn unit_hint(name: &ResourceName, text: &str) -> String {
    let letters = text.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
    let number = letters.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = letters[number.len()..].to_ascii_lowercase();
    let unit = match unit.strip_suffix('b').unwrap_or(&unit) {
        "k" => "k",
        "m" if unit != "m" => "M",
        "g" => "G",
        "t" => "T",
        "ki" => "Ki",
        "mi" => "Mi",
        "gi" => "Gi",
        "ti" => "Ti",
        _ => return String::new(),
    };
    let meant = format!("{}{unit}", number.trim());
    match parse_quantity(name, &meant) {
        Ok(_) => format!("; did you mean {meant}?"),
        Err(_) => String::new(),
    }
}

/// A name that no node can offer, or that is a slip of the hand, is allowed and warned about.
fn warn_of_name(value: &Cursor<'_>, name: &str, sink: &mut Sink) {
    const STANDARD: [&str; 5] = [CPU, MEMORY, "ephemeral-storage", "storage", "pods"];
    let suggestion = if name.contains('/') {
        closest(name, [NVIDIA_GPU]).filter(|known| *known != name && name.contains("nvidia"))
    } else if STANDARD.contains(&name) || name.starts_with("hugepages-") {
        return;
    } else if matches!(name, "gpu" | "gpus" | "GPU") {
        Some(NVIDIA_GPU)
    } else {
        closest(name, STANDARD)
    };
    match suggestion {
        Some(known) => value.warn(sink, format!("no node offers {name}; did you mean {known}?")),
        None if !name.contains('/') => {
            value.warn(
                sink,
                format!(
                    "{name} is not a standard resource; devices are named DOMAIN/NAME, such as {NVIDIA_GPU}"
                ),
            );
        }
        None => {}
    }
}

/// Reads one container of a pod and what it asks for. `limits` are the requests of what has none.
pub fn read_container_resources(cursor: &Cursor<'_>, sink: &mut Sink) -> (Resources, bool) {
    let Some(mut fields) = cursor.fields(sink) else { return (Resources::new(), false) };
    let limits_at = fields.get("limits");
    let requests_at = fields.get("requests");
    let claims = fields.get("claims").is_some_and(|claims| !claims.is_empty());
    fields.finish(sink);
    let limits = limits_at.as_ref().map(|at| read_resources(at, sink)).unwrap_or_default();
    let mut requests = requests_at.as_ref().map(|at| read_resources(at, sink)).unwrap_or_default();
    for (name, asked) in requests.iter() {
        let at = requests_at.as_ref().unwrap_or(cursor);
        let at = at.entry_or_self(name.as_str());
        let amount = |amount| format_amount(name.as_str(), amount);
        let message = match limits.get(name.as_str()) {
            None if name.is_device() && asked > 0 => {
                format!("a device needs a limit equal to its request: set limits {name} to {}", amount(asked))
            }
            Some(limit) if name.is_device() && limit != asked => format!(
                "request and limit of a device must be equal, found request {} and limit {}",
                amount(asked),
                amount(limit)
            ),
            Some(limit) if limit < asked => {
                format!("must be at most the limit {}, found {}", amount(limit), amount(asked))
            }
            _ => continue,
        };
        at.error(sink, message);
    }
    for (name, limit) in limits.iter() {
        if requests.get(name.as_str()).is_none() {
            requests.set(name.clone(), limit);
        }
    }
    (requests, claims)
}

/// A container as the core knows it.
#[must_use]
pub fn container(name: &str, kind: ContainerKind, requests: Resources) -> ContainerRequest {
    ContainerRequest { name: Arc::from(name), kind, requests }
}

/// Resources as a JSON list of quantities, exact: `{"cpu": "1500m", "memory": "16Gi"}`.
#[must_use]
pub fn resources_to_json(resources: &Resources) -> Value {
    let mut map = Map::new();
    for (name, amount) in resources.iter() {
        let text = format_amount(name.as_str(), amount);
        // Large odd sizes are shortened for people; here the value must survive.
        let exact = parse_quantity(name, &text).is_ok_and(|parsed| parsed == amount);
        let text = match exact {
            true => text,
            false if name.as_str() == CPU => format!("{amount}m"),
            false => amount.to_string(),
        };
        map.insert(name.to_string(), Value::String(text));
    }
    Value::Object(map)
}
