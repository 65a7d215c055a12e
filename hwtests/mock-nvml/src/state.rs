//! The machine that this copy of the library serves.

use std::env;
use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use phalanx_profile::Profile;

use crate::code;
use crate::faults::Faults;

/// What to serve.
#[derive(Clone)]
struct Setting {
    profile: PathBuf,
    node: Option<String>,
    faults: Option<PathBuf>,
}

/// What is served since `nvmlInit_v2`.
pub(crate) struct Machine {
    pub(crate) profile: Profile,
    /// Seed of the GPU UUIDs.
    pub(crate) node: String,
    faults: Option<PathBuf>,
}

struct State {
    setting: Option<Setting>,
    machine: Option<Arc<Machine>>,
    references: u32,
}

static STATE: RwLock<State> = RwLock::new(State { setting: None, machine: None, references: 0 });

/// Sets what this copy of the library serves from its next `nvmlInit_v2` on. Strings are UTF-8 and may
/// be null: `node` then is the profile's name, and there are no `faults`.
#[unsafe(no_mangle)]
unsafe extern "C" fn phalanx_mock_configure(
    profile: *const c_char,
    node: *const c_char,
    faults: *const c_char,
) -> code::nvmlReturn_t {
    // SAFETY: the caller passes null or NUL-terminated strings.
    let (profile, node, faults) = unsafe { (text(profile), text(node), text(faults)) };
    let Some(profile) = profile else { return code::INVALID_ARGUMENT };
    let setting = Setting { profile: profile.into(), node, faults: faults.map(PathBuf::from) };
    STATE.write().unwrap_or_else(PoisonError::into_inner).setting = Some(setting);
    code::SUCCESS
}

/// A C string as text; `None` for null and for other encodings.
///
/// # Safety
/// `pointer` is null or points at a NUL-terminated string.
pub(crate) unsafe fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not null, and NUL-terminated by this function's contract.
    unsafe { CStr::from_ptr(pointer) }.to_str().ok().map(str::to_owned)
}

fn setting_of_environment() -> Option<Setting> {
    Some(Setting {
        profile: env::var_os("PHALANX_MOCK_PROFILE")?.into(),
        node: env::var("PHALANX_MOCK_NODE").ok(),
        faults: env::var_os("PHALANX_MOCK_FAULTS").map(PathBuf::from),
    })
}

/// `nvmlInit_v2`: reads the profile.
pub(crate) fn initialise() -> code::nvmlReturn_t {
    let mut state = STATE.write().unwrap_or_else(PoisonError::into_inner);
    let Some(setting) = state.setting.clone().or_else(setting_of_environment) else {
        eprintln!("mock-nvml: no profile: call phalanx_mock_configure or set PHALANX_MOCK_PROFILE to a file");
        return code::UNKNOWN;
    };
    if let Some(code) = Faults::read(setting.faults.as_deref()).init_code {
        return code;
    }
    if state.references == 0 {
        match Profile::load(&setting.profile) {
            Ok(profile) => {
                let node = setting.node.unwrap_or_else(|| profile.name.clone());
                state.machine = Some(Arc::new(Machine { profile, node, faults: setting.faults }));
            }
            Err(error) => {
                eprintln!("mock-nvml: {error}");
                return code::UNKNOWN;
            }
        }
    }
    state.references += 1;
    code::SUCCESS
}

/// `nvmlShutdown`: calls are counted, the last one forgets the machine.
pub(crate) fn shut_down() -> code::nvmlReturn_t {
    let mut state = STATE.write().unwrap_or_else(PoisonError::into_inner);
    if state.references == 0 {
        return code::UNINITIALIZED;
    }
    state.references -= 1;
    if state.references == 0 {
        state.machine = None;
    }
    code::SUCCESS
}

/// Runs a call that needs an initialised library.
pub(crate) fn with_machine(call: impl FnOnce(&Machine) -> code::nvmlReturn_t) -> code::nvmlReturn_t {
    let machine = STATE.read().unwrap_or_else(PoisonError::into_inner).machine.clone();
    machine.map_or(code::UNINITIALIZED, |machine| call(&machine))
}

/// Runs a call on a GPU, unless a fault speaks for it.
pub(crate) fn with_gpu(
    device: nvmlDevice_t,
    call: impl FnOnce(&Machine, usize) -> code::nvmlReturn_t,
) -> code::nvmlReturn_t {
    with_machine(|machine| match machine.index_of(device) {
        None => code::INVALID_ARGUMENT,
        Some(index) => match machine.fault_of(index) {
            Some(code) => code,
            None => call(machine, index),
        },
    })
}

impl Machine {
    /// The handle of a GPU: its index plus one, so that no handle is null. Never dereferenced.
    pub(crate) fn handle_of(index: usize) -> nvmlDevice_t {
        std::ptr::without_provenance_mut(index + 1)
    }

    pub(crate) fn index_of(&self, device: nvmlDevice_t) -> Option<usize> {
        device.addr().checked_sub(1).filter(|index| *index < self.profile.gpus.len())
    }

    pub(crate) fn fault_of(&self, index: usize) -> Option<code::nvmlReturn_t> {
        let faults = Faults::read(self.faults.as_deref());
        if faults.lost.contains(&index) {
            Some(code::GPU_IS_LOST)
        } else if faults.unsupported {
            Some(code::NOT_SUPPORTED)
        } else {
            None
        }
    }

    pub(crate) fn link_state_by_field(&self) -> bool {
        Faults::read(self.faults.as_deref()).link_state_by_field
    }

    pub(crate) fn is_lost(&self, index: usize) -> bool {
        Faults::read(self.faults.as_deref()).lost.contains(&index)
    }
}

/// Writes a result.
///
/// # Safety
/// `target` is null or may be written.
pub(crate) unsafe fn put<T>(target: *mut T, value: T) -> code::nvmlReturn_t {
    if target.is_null() {
        return code::INVALID_ARGUMENT;
    }
    // SAFETY: not null, and writable by this function's contract.
    unsafe { target.write(value) };
    code::SUCCESS
}

/// Writes a NUL-terminated text into a buffer of `length` bytes.
///
/// # Safety
/// `target` is null or has room for `length` bytes.
pub(crate) unsafe fn put_text(target: *mut c_char, length: u32, value: &str) -> code::nvmlReturn_t {
    if target.is_null() {
        return code::INVALID_ARGUMENT;
    }
    if value.len() >= length as usize {
        return code::INSUFFICIENT_SIZE;
    }
    // SAFETY: the text and its NUL fit into the buffer, and the two do not overlap.
    unsafe {
        target.copy_from_nonoverlapping(value.as_ptr().cast(), value.len());
        target.add(value.len()).write(0);
    }
    code::SUCCESS
}

/// A text as a fixed array of C characters, cut to what fits with its NUL.
pub(crate) fn characters<const LENGTH: usize>(value: &str) -> [c_char; LENGTH] {
    let mut array = [0; LENGTH];
    for (slot, byte) in array.iter_mut().zip(value.bytes()).take(LENGTH.saturating_sub(1)) {
        *slot = byte as c_char;
    }
    array
}
