//! A machine from a node profile: a private copy of the stand-in NVML library, and a sysfs tree.
//!
//! The library's state is one per loaded file, and the loader knows files by their inode. A copy per
//! node lets several nodes live in one process.

use std::env;
use std::ffi::{CString, OsStr, c_char};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nvml_wrapper_sys::bindings::NvmlLib;
use phalanx_profile::{Profile, sysfs};

use crate::probe::host::HostFacts;
use crate::probe::{ProbeError, ProbeOptions};

/// File name of the stand-in library.
pub(super) const LIBRARY_NAME: &str = "libmock_nvml.so";

/// Names the stand-in library where no option does.
const LIBRARY_VARIABLE: &str = "PHALANX_NVML_LIBRARY";

/// Names the file of faults; without it, `faults` in the node's own directory is read if it appears.
const FAULTS_VARIABLE: &str = "PHALANX_MOCK_FAULTS";

/// `phalanx_mock_configure(profile, node, faults)` of the stand-in library.
type Configure = unsafe extern "C" fn(*const c_char, *const c_char, *const c_char) -> u32;

/// What a profile has been turned into.
pub(super) struct Machine {
    pub(super) library: PathBuf,
    pub(super) sysfs_root: PathBuf,
    pub(super) host: HostFacts,
}

pub(super) fn prepare(options: &ProbeOptions, profile_file: &Path) -> Result<Machine, ProbeError> {
    let profile = Profile::load(profile_file)?;
    let directory = options.state_directory.join("simulated");
    let write = |path: &Path| {
        let path = path.to_owned();
        move |source| ProbeError::Write { path, source }
    };
    fs::create_dir_all(&directory).map_err(write(&directory))?;
    let sysfs_root = directory.join("sysfs");
    sysfs::generate(&profile, &sysfs_root)?;
    let source = find_library(options.nvml_library.as_deref())?;
    let library = directory.join(LIBRARY_NAME);
    // A new file replaces the old one as a whole: writing into a loaded library would crash its user.
    let copy = directory.join(format!("{LIBRARY_NAME}.new"));
    fs::copy(&source, &copy)
        .map_err(|error| ProbeError::NotAStandIn { library: source, reason: error.to_string() })?;
    fs::rename(&copy, &library).map_err(write(&library))?;
    let faults = env::var_os(FAULTS_VARIABLE).map_or_else(|| directory.join("faults"), PathBuf::from);
    // The library reads the profile later, maybe from another working directory.
    let profile_file = fs::canonicalize(profile_file).map_err(write(profile_file))?;
    configure(&library, &profile_file, &options.node_name, &faults)?;
    Ok(Machine { library, sysfs_root, host: profile.host.into() })
}

/// The library of an option or the environment, or else the newest one near the running program:
/// cargo leaves it beside the program or in `deps`, and only one of the two need be fresh.
fn find_library(option: Option<&Path>) -> Result<PathBuf, ProbeError> {
    if let Some(named) =
        option.map(Path::to_owned).or_else(|| env::var_os(LIBRARY_VARIABLE).map(PathBuf::from))
    {
        return Ok(named);
    }
    let program = env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("."));
    let above = beside.parent().unwrap_or(beside);
    let candidates: Vec<PathBuf> =
        [beside.to_owned(), beside.join("deps"), above.to_owned(), above.join("deps")]
            .map(|at| at.join(LIBRARY_NAME))
            .into();
    let modified = |path: &PathBuf| {
        fs::metadata(path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let newest = candidates.iter().filter(|path| path.is_file()).max_by_key(|path| modified(path));
    newest.cloned().ok_or_else(|| {
        let names: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        ProbeError::NoStandIn { searched: names.join(", ") }
    })
}

fn configure(library: &Path, profile: &Path, node: &str, faults: &Path) -> Result<(), ProbeError> {
    let wrong = |reason: String| ProbeError::NotAStandIn { library: library.to_owned(), reason };
    let string = |text: &OsStr| CString::new(text.as_bytes()).map_err(|error| wrong(error.to_string()));
    let (profile, node, faults) =
        (string(profile.as_os_str())?, string(OsStr::new(node))?, string(faults.as_os_str())?);
    // SAFETY: loading runs the library's initialisers; the user chose this file as a library.
    let loaded = unsafe { NvmlLib::new(library) }.map_err(|error| wrong(error.to_string()))?;
    // SAFETY: a library that exports this name has this signature.
    let configure = unsafe { loaded.__library.get::<Configure>(b"phalanx_mock_configure\0") };
    let configure = *configure.map_err(|error| wrong(error.to_string()))?;
    // SAFETY: the three strings end with NUL and live beyond the call.
    let code = unsafe { configure(profile.as_ptr(), node.as_ptr(), faults.as_ptr()) };
    // Never unloaded: what was configured lives as long as the library stays loaded.
    std::mem::forget(loaded);
    if code == 0 { Ok(()) } else { Err(wrong(format!("phalanx_mock_configure gives code {code}"))) }
}
