//! Reads a profile of either format, and what both have in common.

mod compact;
mod observed;

use std::collections::BTreeMap;

use phalanx_common::resources::{MEMORY, ResourceName, parse_quantity};
use phalanx_common::topology::{MAX_GPUS_PER_NODE, MAX_NICS_PER_NODE};
use phalanx_text::places::{line_of_field, toml_error};
use serde_json::Value;

use crate::error::ProfileError;
use crate::field::Field;
use crate::{Host, NumaNode, PciAddress, PciDevice, Profile};

/// Driver version where the profile names none: a production branch before the renumbering of field
/// ids in 580.82.
const DEFAULT_DRIVER: &str = "570.172.08";

const MAX_NUMA_NODES: usize = 256;
const MAX_NUMA_ID: u64 = 1023;
const MAX_PATH_PARTS: usize = 24;
const MAX_MEMORY_MIB: u64 = 1 << 24;

/// Reads a profile: JSON where the text begins with a brace, TOML otherwise.
pub(crate) fn parse(text: &str, file: &str) -> Result<Profile, ProfileError> {
    let syntax =
        |line, format, reason| ProfileError::Syntax { file: format!("{file}:{line}"), format, reason };
    let json = text.trim_start().starts_with('{');
    let value: Value = if json {
        serde_json::from_str(text).map_err(|error| syntax(error.line(), "JSON", json_reason(&error)))?
    } else {
        toml::from_str(text).map_err(|error| {
            let (line, reason) = toml_error(text, &error);
            syntax(line, "TOML (nor JSON, which begins with a brace)", reason)
        })?
    };
    let read = read_value(&value, file);
    // Lines are looked up only where one is to be told. Of JSON only the fields are known.
    read.map_err(|error| match error {
        ProfileError::Field { field, reason, .. } => {
            let line = if json { None } else { line_of_field(text, &field) };
            let file = line.map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"));
            ProfileError::Field { file, field, reason }
        }
        other => other,
    })
}

/// What the parser says, without the place, which stands before it.
fn json_reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

fn read_value(value: &Value, file: &str) -> Result<Profile, ProfileError> {
    let root = Field::root(file, value);
    let schema = root.get("schema")?;
    let read = schema.word(&[
        ("gpu-node-topology/1", observed::read as fn(&Field<'_>) -> Result<Profile, ProfileError>),
        ("phalanx-node/1", compact::read),
    ])?;
    let profile = read(&root)?;
    check_devices(&profile, &root)?;
    Ok(profile)
}

/// `host = {cpus, memory}`, both optional.
fn host(root: &Field<'_>) -> Result<Host, ProfileError> {
    let field = root.get("host")?;
    let mut host = Host::default();
    if let Some(cpus) = field.get("cpus")?.optional_number(1, 65_536)? {
        host.cpus = cpus as u32;
    }
    let memory = field.get("memory")?;
    if let Some(text) = memory.number_or_text() {
        let bytes = parse_quantity(&ResourceName::known(MEMORY), &text).ok().filter(|bytes| *bytes > 0);
        host.memory_bytes = bytes.ok_or_else(|| memory.expected("a size such as 1Ti or 512Gi, or bytes"))?;
    }
    Ok(host)
}

fn numa_nodes(list: &Field<'_>) -> Result<Vec<NumaNode>, ProfileError> {
    let mut nodes: Vec<NumaNode> = Vec::new();
    for field in list.items(MAX_NUMA_NODES)? {
        let id_field = field.get("id")?;
        let id = id_field.number(0, MAX_NUMA_ID)? as u32;
        if nodes.iter().any(|node| node.id == id) {
            return Err(id_field.error(format!("NUMA node {id} is listed twice: remove one of them")));
        }
        let cpus_field = field.get("cpus")?;
        let cpus = cpus_field.optional_text()?.map(str::to_owned);
        if cpus.as_deref().is_some_and(|text| !is_cpu_list(text)) {
            return Err(cpus_field.expected("a CPU list such as 0-47,96-143"));
        }
        nodes.push(NumaNode { id, cpus });
    }
    Ok(nodes)
}

/// True for a CPU list as sysfs writes it; the empty list is one.
fn is_cpu_list(text: &str) -> bool {
    let number = |digits: &str| {
        let is_short = digits.len() <= 6 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u32>().ok().filter(|_| is_short)
    };
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => {
            number(first).is_some_and(|first| number(last).is_some_and(|last| first <= last))
        }
        None => number(part).is_some(),
    };
    text.is_empty() || text.split(',').all(range)
}

fn numa(field: &Field<'_>) -> Result<Option<u32>, ProfileError> {
    Ok(field.optional_number(0, MAX_NUMA_ID)?.map(|node| node as u32))
}

fn memory_mib(field: &Field<'_>) -> Result<Option<u64>, ProfileError> {
    field.optional_number(1, MAX_MEMORY_MIB)
}

/// `10de:2330`: vendor and device.
fn pci_ids(field: &Field<'_>) -> Result<(u16, u16), ProfileError> {
    let read = |text: &str| {
        let (vendor, device) = text.split_once(':')?;
        let hex = |digits: &str| if digits.len() == 4 { u16::from_str_radix(digits, 16).ok() } else { None };
        Some((hex(vendor)?, hex(device)?))
    };
    read(field.text()?).ok_or_else(|| field.expected("vendor and device id, such as 10de:2330"))
}

/// What sysfs says of a port, and "Unknown" of one where it says nothing.
const LINK_LAYERS: [&str; 4] = ["InfiniBand", "Ethernet", "Unspecified", "Unknown"];

fn link_layer(field: &Field<'_>) -> Result<String, ProfileError> {
    match field.optional_text()? {
        Some(text) if LINK_LAYERS.contains(&text) => Ok(text.to_owned()),
        _ => Err(field.expected(&LINK_LAYERS.join(", "))),
    }
}

/// `0x030200`.
fn pci_class(field: &Field<'_>, default: u32) -> Result<u32, ProfileError> {
    let Some(text) = field.optional_text()? else { return Ok(default) };
    let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 6);
    let class = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    class.ok_or_else(|| field.expected("a PCI class such as 0x030200"))
}

/// A directory below `/sys/devices`: the host bridge, then PCI addresses; the last one is the device.
fn pci_path(field: &Field<'_>) -> Result<(Vec<String>, PciAddress), ProfileError> {
    let text = field.text()?;
    let parts: Vec<&str> = text.strip_prefix("/sys/devices/").unwrap_or(text).split('/').collect();
    let wrong = || {
        field.expected(&format!(
            "a path such as pci0000:15/0000:15:01.0/0000:16:00.0 of 2 to {MAX_PATH_PARTS} parts"
        ))
    };
    if !(2..=MAX_PATH_PARTS).contains(&parts.len()) || !is_host_bridge(parts[0]) {
        return Err(wrong());
    }
    let mut path = vec![parts[0].to_owned()];
    let mut last = None;
    for part in &parts[1..] {
        let address: PciAddress = part.parse().map_err(|_| wrong())?;
        path.push(address.to_string());
        last = Some(address);
    }
    last.map(|address| (path, address)).ok_or_else(wrong)
}

/// `pciDDDD:BB`, the name of a host bridge in sysfs.
fn is_host_bridge(part: &str) -> bool {
    let Some((domain, bus)) = part.strip_prefix("pci").and_then(|digits| digits.split_once(':')) else {
        return false;
    };
    (4..=8).contains(&domain.len())
        && bus.len() == 2
        && domain
            .bytes()
            .chain(bus.bytes())
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// A name that becomes a directory in sysfs.
fn device_name(field: &Field<'_>) -> Result<String, ProfileError> {
    let text = field.text()?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if first && text.len() <= 64 && text.bytes().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err(field.expected(
            "a device name: 1 to 64 letters, digits, '_', '-' or '.', beginning with a letter or digit",
        ))
    }
}

/// The links of a compact or observed profile's `sources`, without what is no link.
fn sources(field: &Field<'_>, member: Option<&str>) -> Result<Vec<String>, ProfileError> {
    let mut links = Vec::new();
    for source in field.items(256)? {
        let text = match member {
            Some(name) => source.get(name)?.optional_text()?.unwrap_or_default(),
            None => source.text()?,
        };
        if text.starts_with("https://") || text.starts_with("http://") {
            links.push(text.to_owned());
        } else if member.is_none() {
            return Err(source.expected("a link, https://..."));
        }
    }
    Ok(links)
}

fn gpu_fields<'file>(root: &Field<'file>) -> Result<Vec<Field<'file>>, ProfileError> {
    root.get("gpus")?.items(MAX_GPUS_PER_NODE)
}

fn nic_fields<'file>(root: &Field<'file>) -> Result<Vec<Field<'file>>, ProfileError> {
    root.get("nics")?.items(MAX_NICS_PER_NODE)
}

/// No two devices at one address, no device inside another, no name twice, no unknown NUMA node.
fn check_devices(profile: &Profile, root: &Field<'_>) -> Result<(), ProfileError> {
    let gpus = profile.gpus.iter().enumerate().map(|(at, gpu)| (format!("gpus[{at}]"), &gpu.pci));
    let nics = profile.nics.iter().enumerate().map(|(at, nic)| (format!("nics[{at}]"), &nic.pci));
    let devices: Vec<(String, &PciDevice)> = gpus.chain(nics).collect();
    let mut places: BTreeMap<&str, (&[String], &str)> = BTreeMap::new();
    let error = |field: &str, reason: String| {
        Err(ProfileError::Field { file: root.file().to_owned(), field: field.to_owned(), reason })
    };
    for (field, device) in &devices {
        if let Some(node) = device.numa
            && !profile.numa_nodes.is_empty()
            && profile.numa_nodes.iter().all(|known| known.id != node)
        {
            return error(
                field,
                format!(
                    "NUMA node {node} is not in the list of NUMA nodes: add it there, or name one of them"
                ),
            );
        }
        for end in 2..=device.path.len() {
            let name = &device.path[end - 1];
            let prefix = &device.path[..end - 1];
            let is_device = end == device.path.len();
            match places.get(name.as_str()) {
                None => {}
                Some((_, other)) if is_device => {
                    return error(
                        field,
                        format!("PCI address {name} is used twice, by {other} too: give each device its own"),
                    );
                }
                Some((at, other)) if *at != prefix => {
                    return error(
                        field,
                        format!("bridge {name} of its path stands elsewhere in the path of {other}"),
                    );
                }
                Some(_) => {}
            }
            places.insert(name, (prefix, field));
        }
    }
    for (field, device) in &devices {
        let address = device.address.to_string();
        if let Some((other, _)) =
            devices.iter().find(|(_, other)| other.path[..other.path.len() - 1].contains(&address))
        {
            return error(field, format!("the path of {other} leads through this device"));
        }
    }
    for (at, nic) in profile.nics.iter().enumerate() {
        if profile.nics[..at].iter().any(|other| other.name == nic.name) {
            return error(
                &format!("nics[{at}].name"),
                format!("{:?} is used twice: rename one of the NICs", nic.name),
            );
        }
    }
    Ok(())
}
