//! What a single GPU says about itself, and about its distance to another one.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuFabricInfo_t, nvmlGpuTopologyLevel_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t,
    nvmlProcessInfo_t,
};
use phalanx_common::topology::PcieLevel;
use phalanx_profile::PciAddress;

use crate::code::{self, nvmlReturn_t};
use crate::state::{Machine, characters, put, put_text, with_gpu};

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    name: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: the caller gives a buffer of `length` bytes.
    with_gpu(device, |machine, index| unsafe { put_text(name, length, &machine.profile.gpus[index].model) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    uuid: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    with_gpu(device, |machine, index| {
        let text = machine.profile.gpus[index].uuid(&machine.node).to_string();
        // SAFETY: the caller gives a buffer of `length` bytes.
        unsafe { put_text(uuid, length, &text) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetIndex(device: nvmlDevice_t, result: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: the caller gives null or a place to write to.
    with_gpu(device, |_, index| unsafe { put(result, index as c_uint) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: the caller gives null or a place to write to.
    with_gpu(device, |machine, index| unsafe { put(minor, machine.profile.gpus[index].minor) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetModuleId(device: nvmlDevice_t, module: *mut c_uint) -> nvmlReturn_t {
    with_gpu(device, |machine, index| match machine.profile.gpus[index].module_id {
        // SAFETY: the caller gives null or a place to write to.
        Some(id) => unsafe { put(module, id) },
        None => code::NOT_SUPPORTED,
    })
}

/// An address as NVML describes a PCI device.
pub(crate) fn pci_info(address: PciAddress, ids: (u16, u16), subsystem: Option<(u16, u16)>) -> nvmlPciInfo_t {
    // NVML packs device id above vendor id.
    let pack = |(vendor, device): (u16, u16)| (u32::from(device) << 16) | u32::from(vendor);
    nvmlPciInfo_t {
        busIdLegacy: characters(&address.nvml_legacy()),
        domain: address.domain,
        bus: address.bus.into(),
        device: address.device.into(),
        pciDeviceId: pack(ids),
        pciSubSystemId: subsystem.map_or(0, pack),
        busId: characters(&address.nvml()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: *mut nvmlPciInfo_t) -> nvmlReturn_t {
    with_gpu(device, |machine, index| {
        let own = &machine.profile.gpus[index].pci;
        // SAFETY: the caller gives null or a place to write to.
        unsafe { put(pci, pci_info(own.address, (own.vendor, own.device), own.subsystem)) }
    })
}

fn memory_bytes(machine: &Machine, index: usize) -> Option<u64> {
    machine.profile.gpus[index].memory_mib.map(|mib| mib << 20)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    with_gpu(device, |machine, index| match memory_bytes(machine, index) {
        // SAFETY: the caller gives null or a place to write to.
        Some(total) => unsafe { put(memory, nvmlMemory_t { total, free: total, used: 0 }) },
        None => code::NOT_SUPPORTED,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    with_gpu(device, |machine, index| {
        let Some(total) = memory_bytes(machine, index) else { return code::NOT_SUPPORTED };
        if memory.is_null() {
            return code::INVALID_ARGUMENT;
        }
        // SAFETY: not null; the caller sets the version before the call.
        let version = unsafe { (*memory).version };
        if version != (size_of::<nvmlMemory_v2_t>() as u32 | (2 << 24)) {
            return code::VERSION_MISMATCH;
        }
        // SAFETY: not null.
        unsafe { put(memory, nvmlMemory_v2_t { version, total, reserved: 0, free: total, used: 0 }) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNumaNodeId(device: nvmlDevice_t, _node: *mut c_uint) -> nvmlReturn_t {
    // Only GPU memory that is a NUMA node has one; placement uses sysfs.
    with_gpu(device, |_, _| code::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    first: nvmlDevice_t,
    second: nvmlDevice_t,
    level: *mut nvmlGpuTopologyLevel_t,
) -> nvmlReturn_t {
    with_gpu(first, |machine, first| {
        with_gpu(second, |_, second| {
            let stated = machine.profile.expected.gpu_gpu.as_ref();
            let value = match stated.map(|matrix| matrix[first][second]) {
                // A compact profile states no levels: the caller has to derive them.
                None => return code::NOT_SUPPORTED,
                Some(None) => 0,
                Some(Some(PcieLevel::Pix)) => 10,
                Some(Some(PcieLevel::Pxb)) => 20,
                Some(Some(PcieLevel::Phb)) => 30,
                Some(Some(PcieLevel::Node)) => 40,
                Some(Some(PcieLevel::Sys)) => 50,
            };
            // SAFETY: the caller gives null or a place to write to.
            unsafe { put(level, value) }
        })
    })
}

/// No process ever runs here. A real driver writes the count even for an empty list.
fn no_processes(device: nvmlDevice_t, count: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: the caller of the exported function gives null or a place to write to.
    with_gpu(device, |_, _| unsafe { put(count, 0) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    _infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    no_processes(device, count)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    _infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    no_processes(device, count)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    with_gpu(device, |machine, _| {
        if !machine.profile.mig_capable {
            return code::NOT_SUPPORTED;
        }
        // SAFETY: the caller gives null or places to write to.
        match unsafe { put(current, 0) } {
            code::SUCCESS => unsafe { put(pending, 0) },
            error => error,
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuFabricInfo(
    device: nvmlDevice_t,
    info: *mut nvmlGpuFabricInfo_t,
) -> nvmlReturn_t {
    with_gpu(device, |machine, _| {
        let fabric = machine.profile.fabric;
        if fabric.code != code::SUCCESS {
            return fabric.code;
        }
        let answer = nvmlGpuFabricInfo_t {
            clusterUuid: fabric.cluster_uuid,
            status: fabric.status,
            cliqueId: fabric.clique_id,
            state: fabric.state,
        };
        // SAFETY: the caller gives null or a place to write to.
        unsafe { put(info, answer) }
    })
}
