//! NVLinks: state, what is at the other end, and whether two GPUs reach each other over them.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::field_id::{NVML_FI_DEV_NVLINK_GET_STATE, NVML_FI_DEV_NVLINK_LINK_COUNT};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEnableState_t, nvmlFieldValue_t, nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK,
    nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK, nvmlGpuP2PStatus_t,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH, nvmlIntNvLinkDeviceType_t, nvmlPciInfo_t,
    nvmlValue_t, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
};
use phalanx_profile::LinkEnd;

use crate::code::{self, nvmlReturn_t};
use crate::device::pci_info;
use crate::state::{Machine, characters, put, with_gpu};

/// PCI ids of an NVSwitch; only the address of a switch is ever compared.
const SWITCH_IDS: (u16, u16) = (0x10de, 0x1af1);

/// Runs a call on one link: NOT_SUPPORTED on a GPU without NVLink, INVALID_ARGUMENT past the last link.
fn with_link(
    device: nvmlDevice_t,
    link: c_uint,
    call: impl FnOnce(&Machine, LinkEnd) -> nvmlReturn_t,
) -> nvmlReturn_t {
    with_gpu(device, |machine, index| {
        let ends = machine.profile.link_ends(index);
        match ends.get(link as usize) {
            Some(end) => call(machine, *end),
            None if ends.is_empty() => code::NOT_SUPPORTED,
            None => code::INVALID_ARGUMENT,
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    device: nvmlDevice_t,
    link: c_uint,
    active: *mut nvmlEnableState_t,
) -> nvmlReturn_t {
    with_link(device, link, |machine, end| {
        if machine.link_state_by_field() {
            return code::NOT_SUPPORTED;
        }
        // SAFETY: the caller gives null or a place to write to.
        unsafe { put(active, u32::from(end != LinkEnd::Inactive)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkVersion(
    device: nvmlDevice_t,
    link: c_uint,
    version: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: the caller gives null or a place to write to.
    with_link(device, link, |machine, _| unsafe { put(version, machine.profile.nvlink.generation) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: nvmlDevice_t,
    link: c_uint,
    pci: *mut nvmlPciInfo_t,
) -> nvmlReturn_t {
    with_link(device, link, |machine, end| {
        let info = match end {
            LinkEnd::Inactive => return code::NOT_SUPPORTED,
            LinkEnd::Gpu(peer) => {
                let peer = &machine.profile.gpus[peer].pci;
                pci_info(peer.address, (peer.vendor, peer.device), peer.subsystem)
            }
            LinkEnd::Switch(at) => pci_info(machine.profile.nvlink.switches[at], SWITCH_IDS, None),
            // What a machine that hides its switches answers, seven digits and all.
            LinkEnd::HiddenSwitch => nvmlPciInfo_t {
                busIdLegacy: characters("ffff:ff:ff.0"),
                domain: 0x0fff_ffff,
                bus: 0xff,
                device: 0xff,
                pciDeviceId: 0,
                pciSubSystemId: 0,
                busId: characters("fffffff:ff:ff.0"),
            },
        };
        // SAFETY: the caller gives null or a place to write to.
        unsafe { put(pci, info) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: nvmlDevice_t,
    link: c_uint,
    kind: *mut nvmlIntNvLinkDeviceType_t,
) -> nvmlReturn_t {
    with_link(device, link, |_, end| {
        let answer = match end {
            LinkEnd::Inactive => return code::NOT_SUPPORTED,
            LinkEnd::Gpu(_) => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
            LinkEnd::Switch(_) | LinkEnd::HiddenSwitch => {
                nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH
            }
        };
        // SAFETY: the caller gives null or a place to write to.
        unsafe { put(kind, answer) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    first: nvmlDevice_t,
    second: nvmlDevice_t,
    capability: nvmlGpuP2PCapsIndex_t,
    status: *mut nvmlGpuP2PStatus_t,
) -> nvmlReturn_t {
    with_gpu(first, |machine, first| {
        with_gpu(second, |_, second| {
            let linked = machine.profile.nvlink.gpu_gpu_links[first][second] > 0;
            let answer = if capability != nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK || linked {
                nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK
            } else {
                nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED
            };
            // SAFETY: the caller gives null or a place to write to.
            unsafe { put(status, answer) }
        })
    })
}

/// The value of one field, or the code that stands beside it.
fn field(machine: &Machine, gpu: usize, field_id: u32, scope: u32) -> Result<u32, nvmlReturn_t> {
    let ends = machine.profile.link_ends(gpu);
    if ends.is_empty() {
        return Err(code::NOT_SUPPORTED);
    }
    match field_id {
        NVML_FI_DEV_NVLINK_LINK_COUNT => Ok(ends.len() as u32),
        NVML_FI_DEV_NVLINK_GET_STATE => {
            let end = ends.get(scope as usize).ok_or(code::INVALID_ARGUMENT)?;
            Ok(u32::from(*end != LinkEnd::Inactive))
        }
        _ => Err(code::NOT_SUPPORTED),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> nvmlReturn_t {
    with_gpu(device, |machine, index| {
        let Ok(count) = usize::try_from(count) else { return code::INVALID_ARGUMENT };
        if values.is_null() || count == 0 {
            return code::INVALID_ARGUMENT;
        }
        // SAFETY: not null, and the caller gives `count` entries.
        let entries = unsafe { std::slice::from_raw_parts_mut(values, count) };
        for entry in entries {
            match field(machine, index, entry.fieldId, entry.scopeId) {
                Ok(value) => {
                    entry.valueType = nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
                    entry.value = nvmlValue_t { uiVal: value };
                    entry.nvmlReturn = code::SUCCESS;
                }
                Err(error) => entry.nvmlReturn = error,
            }
        }
        code::SUCCESS
    })
}
