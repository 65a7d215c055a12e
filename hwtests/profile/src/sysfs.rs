//! Writes the part of a sysfs tree that the agent's probe reads, with the text forms of the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::error::ProfileError;
use crate::{PciDevice, Profile, ProfileNic};

/// Marks a directory that this module made and may therefore remove.
const MARKER: &str = ".phalanx-generated-sysfs";

/// A PCI-to-PCI bridge.
const BRIDGE_CLASS: u32 = 0x06_0400;
const BRIDGE_VENDOR: u16 = 0x8086;
const BRIDGE_DEVICE: u16 = 0x2030;

/// Writes the tree of a profile under `root`, which stands for `/sys`. A tree that was generated
/// before is replaced.
///
/// # Errors
/// `root` holds something else, or a file cannot be written.
pub fn generate(profile: &Profile, root: &Path) -> Result<(), ProfileError> {
    prepare(root)?;
    for name in ["devices", "bus/pci/devices", "class/infiniband", "devices/system/node"] {
        make_directory(&root.join(name))?;
    }
    for node in &profile.numa_nodes {
        let directory = root.join(format!("devices/system/node/node{}", node.id));
        make_directory(&directory)?;
        write_line(&directory.join("cpulist"), node.cpus.as_deref().unwrap_or_default())?;
    }
    let mut bridges = BTreeSet::new();
    let nics = profile.nics.iter().map(|nic| &nic.pci);
    for device in profile.gpus.iter().map(|gpu| &gpu.pci).chain(nics) {
        write_device(profile, root, device, &mut bridges)?;
    }
    for nic in &profile.nics {
        write_infiniband(root, nic)?;
    }
    Ok(())
}

/// Empties a directory of ours, or makes a new one.
fn prepare(root: &Path) -> Result<(), ProfileError> {
    let write = |source| ProfileError::Write { path: root.to_owned(), source };
    let marker = root.join(MARKER);
    if marker.exists() {
        fs::remove_dir_all(root).map_err(write)?;
    }
    make_directory(root)?;
    if fs::read_dir(root).map_err(write)?.next().is_some() {
        return Err(ProfileError::ForeignDirectory(root.to_owned()));
    }
    write_line(&marker, "made from a node profile; is replaced as a whole")
}

fn write_device(
    profile: &Profile,
    root: &Path,
    device: &PciDevice,
    bridges: &mut BTreeSet<String>,
) -> Result<(), ProfileError> {
    let mut place = PathBuf::from(&device.path[0]);
    make_directory(&root.join("devices").join(&place))?;
    for (at, part) in device.path.iter().enumerate().skip(1) {
        place.push(part);
        let directory = root.join("devices").join(&place);
        let is_bridge = at + 1 < device.path.len();
        if is_bridge && !bridges.insert(part.clone()) {
            continue;
        }
        make_directory(&directory)?;
        let (class, vendor, id) = if is_bridge {
            (BRIDGE_CLASS, BRIDGE_VENDOR, BRIDGE_DEVICE)
        } else {
            (device.class, device.vendor, device.device)
        };
        let write = |name: &str, text: &str| write_line(&directory.join(name), text);
        write("class", &format!("0x{class:06x}"))?;
        write("vendor", &format!("0x{vendor:04x}"))?;
        write("device", &format!("0x{id:04x}"))?;
        if let (false, Some((vendor, id))) = (is_bridge, device.subsystem) {
            write("subsystem_vendor", &format!("0x{vendor:04x}"))?;
            write("subsystem_device", &format!("0x{id:04x}"))?;
        }
        write("numa_node", &device.numa.map_or_else(|| "-1".to_owned(), |node| node.to_string()))?;
        let all_cpus = || format!("0-{}", profile.host.cpus.saturating_sub(1));
        write("local_cpulist", &profile.cpus_of(device.numa).map_or_else(all_cpus, str::to_owned))?;
        let target = Path::new("../../../devices").join(&place);
        link(&target, &root.join("bus/pci/devices").join(part))?;
    }
    Ok(())
}

fn write_infiniband(root: &Path, nic: &ProfileNic) -> Result<(), ProfileError> {
    let place: PathBuf = nic.pci.path.iter().collect::<PathBuf>().join("infiniband").join(&nic.name);
    let directory = root.join("devices").join(&place);
    let port = directory.join("ports/1");
    make_directory(&port)?;
    link(&Path::new("../../../").join(nic.pci.address.to_string()), &directory.join("device"))?;
    write_line(&port.join("state"), "4: ACTIVE")?;
    write_line(&port.join("phys_state"), "5: LinkUp")?;
    write_line(&port.join("link_layer"), &nic.link_layer)?;
    if let Some(rate_gbps) = nic.rate_gbps {
        write_line(&port.join("rate"), &rate_text(rate_gbps))?;
    }
    link(&Path::new("../../devices").join(&place), &root.join("class/infiniband").join(&nic.name))
}

/// The kernel's text for a rate, with the lanes and generation that usually give it.
fn rate_text(rate_gbps: u32) -> String {
    let lanes = match rate_gbps {
        800 => "4X XDR",
        400 => "4X NDR",
        200 => "4X HDR",
        100 => "4X EDR",
        56 => "4X FDR",
        40 => "4X QDR",
        25 => "1X EDR",
        _ => "4X",
    };
    format!("{rate_gbps} Gb/sec ({lanes})")
}

fn make_directory(path: &Path) -> Result<(), ProfileError> {
    fs::create_dir_all(path).map_err(|source| ProfileError::Write { path: path.to_owned(), source })
}

fn write_line(path: &Path, text: &str) -> Result<(), ProfileError> {
    fs::write(path, format!("{text}\n"))
        .map_err(|source| ProfileError::Write { path: path.to_owned(), source })
}

fn link(target: &Path, at: &Path) -> Result<(), ProfileError> {
    symlink(target, at).map_err(|source| ProfileError::Write { path: at.to_owned(), source })
}
