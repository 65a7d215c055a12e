//! Hardware and driver trouble: a clear state each, and nothing hides the GPUs that are well.

use std::fs;
use std::path::Path;

use phalanx_agent::probe::{NodeProbe, Probe, ProbeError, ProbeOptions};
use phalanx_common::topology::{GpuHealth, ProbeState};

use crate::support::{Machine, own_profile};

fn reason(state: &ProbeState) -> &str {
    match state {
        ProbeState::Ready => "",
        ProbeState::NoLibrary(text) | ProbeState::DriverError(text) => text,
    }
}

#[test]
fn a_gpu_that_falls_off_the_bus_stays_under_its_name() {
    let mut machine = Machine::new(&own_profile("dgx-a100-40gb.toml"), "node-1");
    let before = machine.read();
    machine.set_faults("lost 3\n");
    let during = machine.read();
    assert_eq!(during.state, ProbeState::Ready);
    assert_eq!(during.gpus.len(), 8);
    for (at, gpu) in during.gpus.iter().enumerate() {
        let expected = if at == 3 { GpuHealth::Lost } else { GpuHealth::Healthy };
        assert_eq!((&gpu.id, &gpu.health), (&before.gpus[at].id, &expected));
    }
    assert_eq!(
        (during.links[3][0].nvlinks, during.links[0][3].nvlinks, during.links[0][1].nvlinks),
        (0, 0, 12)
    );
    machine.set_faults("");
    assert_eq!(machine.read(), before, "back after a reset");
}

#[test]
fn a_gpu_that_was_never_seen_does_not_hide_the_others() {
    let mut machine = Machine::new(&own_profile("l40s-4gpu.toml"), "node-1");
    machine.set_faults("lost 0");
    let inventory = machine.read();
    assert_eq!(inventory.state, ProbeState::Ready);
    assert_eq!(inventory.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [1, 2, 3]);
    machine.set_faults("");
    assert_eq!(machine.read().gpus.len(), 4);
}

#[test]
fn link_states_are_read_from_field_values_where_the_call_is_not_supported() {
    let mut machine = Machine::new(&own_profile("hgx-h100.toml"), "node-1");
    machine.set_faults("link-state-by-field");
    let inventory = machine.read();
    assert_eq!((inventory.links[0][1].nvlinks, inventory.links[7][0].nvlinks), (18, 18));
}

#[test]
fn a_missing_library_is_a_state() {
    let options = ProbeOptions {
        nvml_library: Some("/nonexistent/libnvidia-ml.so.1".into()),
        ..ProbeOptions::of_machine("node")
    };
    let inventory = NodeProbe::new(&options).unwrap().read();
    assert!(matches!(inventory.state, ProbeState::NoLibrary(_)), "{:?}", inventory.state);
    let text = reason(&inventory.state);
    assert!(text.contains("/nonexistent/libnvidia-ml.so.1") && text.contains("--nvml-library"), "{text}");
    assert!(inventory.gpus.is_empty() && inventory.cpu_milli > 0, "the rest of the node is still there");
}

#[test]
fn a_library_that_is_not_nvml_is_a_state() {
    let options = ProbeOptions { nvml_library: Some("libc.so.6".into()), ..ProbeOptions::of_machine("node") };
    let inventory = NodeProbe::new(&options).unwrap().read();
    assert!(reason(&inventory.state).contains("no NVML library"), "{:?}", inventory.state);
}

#[test]
fn a_version_mismatch_names_the_fix_and_ends_with_it() {
    let mut machine = Machine::new(&own_profile("l40s-4gpu.toml"), "node-1");
    machine.set_faults("init 18");
    let inventory = machine.read();
    let text = reason(&inventory.state);
    assert!(matches!(inventory.state, ProbeState::DriverError(_)), "{:?}", inventory.state);
    assert!(text.contains("code 18") && text.contains("reboot or reload the nvidia kernel module"), "{text}");
    assert_eq!(inventory.cpu_milli, 384_000);
    machine.set_faults("");
    assert_eq!(machine.read().gpus.len(), 4);
}

#[test]
fn an_unknown_error_at_init_is_a_state() {
    let mut machine = Machine::new(&own_profile("l40s-4gpu.toml"), "node-1");
    machine.set_faults("init 999");
    assert!(reason(&machine.read().state).contains("code 999"));
}

#[test]
fn unsupported_calls_are_a_state_of_the_driver_or_of_each_gpu() {
    let mut machine = Machine::new(&own_profile("l40s-4gpu.toml"), "node-1");
    machine.set_faults("unsupported");
    let first = machine.read();
    let text = reason(&first.state);
    assert!(
        matches!(first.state, ProbeState::DriverError(_)) && text.contains("code 3"),
        "{:?}",
        first.state
    );
    machine.set_faults("");
    let well = machine.read();
    machine.set_faults("unsupported");
    let then = machine.read();
    assert_eq!(then.gpus.len(), 4, "GPUs that were seen stay");
    for (gpu, before) in then.gpus.iter().zip(&well.gpus) {
        assert_eq!(gpu.id, before.id);
        assert!(
            matches!(&gpu.health, GpuHealth::Failed(text) if text.contains("code 3")),
            "{:?}",
            gpu.health
        );
    }
}

#[test]
fn a_profile_that_breaks_later_is_a_state_of_the_driver() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("machine.toml");
    fs::copy(own_profile("l40s-4gpu.toml"), &file).unwrap();
    let mut machine = Machine::new(&file, "node-1");
    fs::write(&file, "schema = \"phalanx-node/1\"\n").unwrap();
    assert!(reason(&machine.read().state).contains("code 999"));
}

#[test]
fn a_wrong_profile_or_library_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let make = |options: &ProbeOptions| NodeProbe::new(options).err().map(|error| error.to_string()).unwrap();
    let missing = make(&ProbeOptions::of_profile("/nonexistent.json", "node", directory.path()));
    assert!(missing.contains("/nonexistent.json"), "{missing}");
    let real_library = ProbeOptions {
        nvml_library: Some(an_ordinary_library()),
        ..ProbeOptions::of_profile(own_profile("l40s-4gpu.toml"), "node", directory.path())
    };
    assert!(matches!(NodeProbe::new(&real_library), Err(ProbeError::NotAStandIn { .. })));
}

/// Some library that is not the stand-in.
fn an_ordinary_library() -> std::path::PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    paths.map(Path::new).find(|path| path.to_string_lossy().contains("libc.so")).unwrap().to_owned()
}
