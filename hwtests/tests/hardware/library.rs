//! The stand-in library through the wrapper's own calls: answers and return codes of real drivers.

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::NvmlError;

use crate::support::{Machine, observed_profiles, own_profile};

fn open(machine: &Machine) -> Nvml {
    Nvml::builder().lib_path(machine.library.as_os_str()).init().unwrap()
}

/// Code of the raw call for the kind of device at the other end, and its answer.
fn remote_type(nvml: &Nvml, gpu: u32, link: u32) -> (u32, u32) {
    let device = nvml.device_by_index(gpu).unwrap();
    let call = nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref().unwrap();
    let mut kind = u32::MAX;
    // SAFETY: the handle comes from this library, and `kind` may be written.
    let code = unsafe { call(device.handle(), link, &mut kind) };
    (code, kind)
}

#[test]
fn a_gpu_says_who_it_is() {
    let machine = Machine::new(&own_profile("dgx-a100-40gb.toml"), "node-1");
    let nvml = open(&machine);
    assert_eq!(nvml.sys_driver_version().unwrap(), "570.172.08");
    let device = nvml.device_by_index(2).unwrap();
    assert_eq!(device.name().unwrap(), "NVIDIA A100-SXM4-40GB");
    let pci = device.pci_info().unwrap();
    assert_eq!((pci.bus_id.as_str(), pci.pci_device_id), ("00000000:47:00.0", 0x20b0_10de));
    assert_eq!(pci.pci_sub_system_id, Some(0x134f_10de));
    assert_eq!(device.memory_info().unwrap().total, 40_960 << 20);
    assert_eq!(device.minor_number().unwrap(), 2);
    assert_eq!(device.running_compute_processes().unwrap(), []);
    assert_eq!(device.mig_mode().unwrap().current, 0);
    let uuid = device.uuid().unwrap();
    assert_eq!(nvml.device_by_uuid(uuid).unwrap().index().unwrap(), 2);
    assert_eq!(nvml.device_by_pci_bus_id("0000:47:00.0").unwrap().index().unwrap(), 2);
}

#[test]
fn what_is_not_there_has_the_code_of_real_drivers() {
    let machine = Machine::new(&own_profile("dgx-a100-40gb.toml"), "node-1");
    let nvml = open(&machine);
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(nvml.device_by_index(8), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-0"), Err(NvmlError::NotFound)));
    assert!(
        matches!(device.link_wrapper_for(12).is_active(), Err(NvmlError::InvalidArg)),
        "past the last link"
    );
    assert!(matches!(device.numa_node_id(), Err(NvmlError::NotSupported)));
    machine.set_faults("lost 5");
    assert!(matches!(nvml.device_by_index(5), Err(NvmlError::GpuLost)));
    assert!(
        matches!(nvml.device_by_pci_bus_id("0000:07:00.0"), Err(NvmlError::GpuLost)),
        "when any GPU is lost"
    );
    assert_eq!(nvml.device_count().unwrap(), 8, "a lost GPU is still counted");
    let l40s = Machine::new(&own_profile("l40s-4gpu.toml"), "node-1");
    let nvml = open(&l40s);
    let device = nvml.device_by_index(0).unwrap();
    assert!(
        matches!(device.link_wrapper_for(0).is_active(), Err(NvmlError::NotSupported)),
        "no NVLink at all"
    );
    assert!(matches!(device.mig_mode(), Err(NvmlError::NotSupported)));
}

#[test]
fn links_end_at_a_switch_a_hidden_switch_or_a_peer() {
    let shown = Machine::new(&own_profile("dgx-a100-40gb.toml"), "node-1");
    let nvml = open(&shown);
    let end =
        |link| nvml.device_by_index(0).unwrap().link_wrapper_for(link).remote_pci_info().unwrap().bus_id;
    assert_eq!([end(0), end(1), end(2)], ["00000000:C4:00.0", "00000000:C4:00.0", "00000000:C5:00.0"]);
    assert_eq!(remote_type(&nvml, 0, 0), (0, 2), "a switch");
    let hidden = Machine::new(&own_profile("hgx-h100.toml"), "node-1");
    let nvml = open(&hidden);
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.link_wrapper_for(17).remote_pci_info().unwrap().bus_id, "fffffff:ff:ff.0");
    assert_eq!(remote_type(&nvml, 0, 17), (0, 2));
    let Some(directory) = observed_profiles("links_end_at_a_switch_a_hidden_switch_or_a_peer") else {
        return;
    };
    let direct = Machine::new(&directory.join("a100-pcie-4gpu-nvlink-pairs.json"), "node-1");
    let nvml = open(&direct);
    let device = nvml.device_by_index(0).unwrap();
    let peer = nvml.device_by_index(1).unwrap();
    let bus_id = peer.pci_info().unwrap().bus_id;
    assert_eq!(device.link_wrapper_for(0).remote_pci_info().unwrap().bus_id, bus_id);
    assert_eq!(remote_type(&nvml, 0, 0), (0, 0), "a GPU");
}

#[test]
fn distances_are_those_of_the_observed_matrix() {
    let Some(directory) = observed_profiles("distances_are_those_of_the_observed_matrix") else { return };
    let machine = Machine::new(&directory.join("dgx-a100-40gb.json"), "node-1");
    let nvml = open(&machine);
    let level = |first, second| -> TopologyLevel {
        let (first, second) = (nvml.device_by_index(first).unwrap(), nvml.device_by_index(second).unwrap());
        first.topology_common_ancestor(second).unwrap()
    };
    assert_eq!((level(0, 1), level(0, 2)), (TopologyLevel::Multiple, TopologyLevel::System));
}
