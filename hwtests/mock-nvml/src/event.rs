//! Events: sets can be made and freed, and never report anything.
//!
//! `nvml-wrapper` frees an event set when it is dropped and panics where the function is missing.

use std::ffi::{c_uint, c_ulonglong};
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};

use crate::code::{self, nvmlReturn_t};
use crate::state::{put, with_gpu, with_machine};

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> nvmlReturn_t {
    // SAFETY: the caller gives null or a place to write to. The handle is never dereferenced.
    with_machine(|_| unsafe { put(set, std::ptr::without_provenance_mut(1)) })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(_set: nvmlEventSet_t) -> nvmlReturn_t {
    code::SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: nvmlDevice_t,
    types: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: the caller gives null or a place to write to.
    with_gpu(device, |_, _| unsafe { put(types, 0) })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    types: c_ulonglong,
    _set: nvmlEventSet_t,
) -> nvmlReturn_t {
    with_gpu(device, |_, _| if types == 0 { code::SUCCESS } else { code::NOT_SUPPORTED })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(
    _set: nvmlEventSet_t,
    _data: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    with_machine(|_| {
        std::thread::sleep(Duration::from_millis(timeout_ms.into()));
        code::TIMEOUT
    })
}
