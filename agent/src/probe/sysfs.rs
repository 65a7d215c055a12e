//! PCI places, NUMA nodes and RDMA NICs from sysfs. The parsers are pure; the root is configurable.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use phalanx_common::topology::{MAX_NICS_PER_NODE, PcieLevel};
use phalanx_profile::PciAddress;

/// Longest attribute that is read; the kernel writes one page at most.
const MAX_ATTRIBUTE_BYTES: u64 = 4096;

/// Where a PCI device sits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciPlace {
    /// Directories below `/sys/devices`, from the host bridge to the device.
    pub parts: Vec<String>,
    /// NUMA node; `None` = not known.
    pub numa: Option<u32>,
}

/// One device of `/sys/class/infiniband`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicReading {
    /// Device name.
    pub name: String,
    /// PCI address.
    pub address: PciAddress,
    /// Where it sits.
    pub place: PciPlace,
    /// Link layer of port 1, empty where not known.
    pub link_layer: String,
    /// Rate of port 1 in Gb/s, rounded down.
    pub rate_gbps: Option<u32>,
    /// True where port 1 is ACTIVE.
    pub active: bool,
}

/// A sysfs tree.
pub struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// The tree at `root`, normally `/sys`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Where a PCI device sits; `None` where sysfs does not have it.
    #[must_use]
    pub fn place(&self, address: PciAddress) -> Option<PciPlace> {
        self.place_of_link(&self.root.join("bus/pci/devices").join(address.to_string()))
    }

    fn place_of_link(&self, link: &Path) -> Option<PciPlace> {
        let devices = fs::canonicalize(self.root.join("devices")).ok()?;
        let directory = fs::canonicalize(link).ok()?;
        let below = directory.strip_prefix(&devices).ok()?;
        let parts = below.iter().map(|part| part.to_str().map(str::to_owned)).collect::<Option<_>>()?;
        let numa = read_attribute(&directory.join("numa_node")).and_then(|text| parse_numa(&text));
        Some(PciPlace { parts, numa })
    }

    /// The RDMA NICs, in the order of their names with numbers counted (`mlx5_2` before `mlx5_10`).
    /// Devices without a PCI function, such as software RoCE, are left out.
    #[must_use]
    pub fn nics(&self) -> Vec<NicReading> {
        let directory = self.root.join("class/infiniband");
        // No such directory is normal: a node without RDMA.
        let Ok(entries) = fs::read_dir(&directory) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut nics: Vec<NicReading> =
            names.filter_map(|name| self.nic(&directory.join(&name), name)).collect();
        nics.sort_by_cached_key(|nic| natural_key(&nic.name));
        if nics.len() > MAX_NICS_PER_NODE {
            tracing::warn!(found = nics.len(), used = MAX_NICS_PER_NODE, "more NICs than are served");
            nics.truncate(MAX_NICS_PER_NODE);
        }
        nics
    }

    fn nic(&self, directory: &Path, name: String) -> Option<NicReading> {
        let place = self.place_of_link(&directory.join("device"))?;
        let address = place.parts.last()?.parse().ok()?;
        let port =
            |attribute: &str| read_attribute(&directory.join("ports/1").join(attribute)).unwrap_or_default();
        Some(NicReading {
            name,
            address,
            place,
            link_layer: port("link_layer").trim().to_owned(),
            rate_gbps: parse_rate_gbps(&port("rate")),
            active: parse_port_active(&port("state")),
        })
    }
}

fn read_attribute(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_ATTRIBUTE_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// `numa_node`: -1 means that neither firmware nor hypervisor says, and is never node 0.
#[must_use]
pub fn parse_numa(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

/// `rate`, e.g. `400 Gb/sec (4X NDR)` or `2.5 Gb/sec (1X SDR)`.
#[must_use]
pub fn parse_rate_gbps(text: &str) -> Option<u32> {
    let (number, unit) = text.trim().split_once(' ')?;
    let whole = number.split_once('.').map_or(number, |(whole, _)| whole);
    if unit.trim_start().starts_with("Gb/sec") { whole.parse().ok().filter(|rate| *rate > 0) } else { None }
}

/// `state`, e.g. `4: ACTIVE`.
#[must_use]
pub fn parse_port_active(text: &str) -> bool {
    text.split_once(':').is_some_and(|(_, state)| state.trim() == "ACTIVE")
}

/// Compares names as people count: digits by their value.
fn natural_key(name: &str) -> Vec<(u128, String)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text_end = rest.find(|letter: char| letter.is_ascii_digit()).unwrap_or(rest.len());
        let (text, after) = rest.split_at(text_end);
        let number_end = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
        key.push((after[..number_end].parse().unwrap_or(0), text.to_owned()));
        rest = &after[number_end..];
    }
    // Text stands before its number, so it decides first.
    key.into_iter().flat_map(|(number, text)| [(0, text), (number, String::new())]).collect()
}

/// How far two PCI devices are from each other, from their places in the tree:
/// nothing in common = NODE within one known NUMA node, else SYS; only the host bridge in common =
/// PHB; deeper = PIX where both need at most one downstream port more, else PXB.
#[must_use]
pub fn relation(first: &PciPlace, second: &PciPlace) -> PcieLevel {
    match common_parts(first, second) {
        0 if first.numa.is_some() && first.numa == second.numa => PcieLevel::Node,
        0 => PcieLevel::Sys,
        1 => PcieLevel::Phb,
        common if first.parts.len().max(second.parts.len()) - common <= 2 => PcieLevel::Pix,
        _ => PcieLevel::Pxb,
    }
}

/// How many directories two places share, from the host bridge on.
#[must_use]
pub fn common_parts(first: &PciPlace, second: &PciPlace) -> usize {
    first.parts.iter().zip(&second.parts).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, numa: Option<u32>) -> PciPlace {
        PciPlace { parts: path.split('/').map(str::to_owned).collect(), numa }
    }

    #[test]
    fn relation_follows_the_tree() {
        let gpu = place("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", Some(0));
        let cases = [
            ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:1b:00.0", Some(0), PcieLevel::Pix),
            (
                "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:1b:00.0/0000:1c:00.0",
                Some(0),
                PcieLevel::Pxb,
            ),
            ("pci0000:15/0000:15:02.0/0000:19:00.0", Some(0), PcieLevel::Phb),
            ("pci0000:27/0000:27:01.0/0000:28:00.0", Some(0), PcieLevel::Node),
            ("pci0000:27/0000:27:01.0/0000:28:00.0", Some(1), PcieLevel::Sys),
            ("pci0000:27/0000:27:01.0/0000:28:00.0", None, PcieLevel::Sys),
        ];
        for (path, numa, level) in cases {
            assert_eq!(relation(&gpu, &place(path, numa)), level, "{path}");
            assert_eq!(relation(&place(path, numa), &gpu), level, "{path}");
        }
        let unknown = |path| place(path, None);
        assert_eq!(
            relation(&unknown("pci0000:00/0000:00:01.0"), &unknown("pci0000:80/0000:80:01.0")),
            PcieLevel::Sys
        );
        let functions =
            ["0", "1"].map(|function| place(&format!("pci0000:e0/0000:e0:01.0/0000:e1:00.{function}"), None));
        assert_eq!(relation(&functions[0], &functions[1]), PcieLevel::Pix);
    }

    #[test]
    fn attributes_are_trimmed_and_nonsense_is_unknown() {
        assert_eq!([" 3\n", "-1\n", "", "x"].map(parse_numa), [Some(3), None, None, None]);
        assert_eq!(
            ["400 Gb/sec (4X NDR)\n", "2.5 Gb/sec (1X SDR)", "200 Gb/sec (2X NDR)", "", "fast", "0 Gb/sec"]
                .map(parse_rate_gbps),
            [Some(400), Some(2), Some(200), None, None, None]
        );
        assert_eq!(
            ["4: ACTIVE\n", "1: DOWN", "2: INIT", "ACTIVE", ""].map(parse_port_active),
            [true, false, false, false, false]
        );
    }

    #[test]
    fn names_are_ordered_as_people_count() {
        let mut names = ["mlx5_10", "mlx5_2", "mlx5_bond_0", "mlx5_0", "ibp3s0"];
        names.sort_by_cached_key(|name| natural_key(name));
        assert_eq!(names, ["ibp3s0", "mlx5_0", "mlx5_2", "mlx5_10", "mlx5_bond_0"]);
    }

    #[test]
    fn a_tree_that_is_not_there_gives_nothing() {
        let sysfs = Sysfs::new(Path::new("/nonexistent"));
        assert!(sysfs.nics().is_empty());
        assert_eq!(sysfs.place("0000:01:00.0".parse().unwrap()), None);
    }
}
