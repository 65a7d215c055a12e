//! Library, driver, and finding GPUs.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use phalanx_profile::PciAddress;

use crate::code::{self, nvmlReturn_t};
use crate::state::{Machine, initialise, put, put_text, shut_down, text, with_machine};

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    initialise()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    initialise()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    shut_down()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    let text = match result {
        code::SUCCESS => c"Success",
        code::UNINITIALIZED => c"Uninitialized",
        code::INVALID_ARGUMENT => c"Invalid Argument",
        code::NOT_SUPPORTED => c"Not Supported",
        code::NOT_FOUND => c"Not Found",
        code::INSUFFICIENT_SIZE => c"Insufficient Size",
        code::GPU_IS_LOST => c"GPU is lost",
        18 => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> nvmlReturn_t {
    // SAFETY: the caller gives a buffer of `length` bytes.
    with_machine(|machine| unsafe { put_text(version, length, &machine.profile.driver) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> nvmlReturn_t {
    // SAFETY: the caller gives a buffer of `length` bytes.
    with_machine(|machine| unsafe { put_text(version, length, &format!("12.{}", machine.profile.driver)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> nvmlReturn_t {
    // SAFETY: the caller gives null or a place to write to.
    with_machine(|_| unsafe { put(version, 12_080) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    // A lost GPU is still counted, as real drivers do.
    // SAFETY: the caller gives null or a place to write to.
    with_machine(|machine| unsafe { put(count, machine.profile.gpus.len() as c_uint) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    with_machine(|machine| {
        let index = index as usize;
        if index >= machine.profile.gpus.len() {
            return code::INVALID_ARGUMENT;
        }
        if machine.is_lost(index) {
            return code::GPU_IS_LOST;
        }
        // SAFETY: the caller gives null or a place to write to.
        unsafe { put(device, Machine::handle_of(index)) }
    })
}

/// A look-up by something else than the index: GPU_IS_LOST when any GPU is lost (nvml.h).
fn find(machine: &Machine, device: *mut nvmlDevice_t, position: Option<usize>) -> nvmlReturn_t {
    if (0..machine.profile.gpus.len()).any(|index| machine.is_lost(index)) {
        return code::GPU_IS_LOST;
    }
    // SAFETY: the caller of the exported function gives null or a place to write to.
    position.map_or(code::NOT_FOUND, |index| unsafe { put(device, Machine::handle_of(index)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    with_machine(|machine| {
        // SAFETY: the caller gives null or a C string.
        let Some(wanted) = (unsafe { text(uuid) }) else { return code::INVALID_ARGUMENT };
        let gpus = &machine.profile.gpus;
        find(machine, device, gpus.iter().position(|gpu| gpu.uuid(&machine.node).to_string() == wanted))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    bus_id: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    with_machine(|machine| {
        // SAFETY: the caller gives null or a C string.
        let Some(wanted) = (unsafe { text(bus_id) }).and_then(|text| text.parse::<PciAddress>().ok()) else {
            return code::INVALID_ARGUMENT;
        };
        find(machine, device, machine.profile.gpus.iter().position(|gpu| gpu.pci.address == wanted))
    })
}
