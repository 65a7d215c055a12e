//! Profiles are read, or refused with an error that names file, field and what is allowed.

#![allow(clippy::unwrap_used)]

use std::fs;

use phalanx_profile::{LinkEnd, MAX_PROFILE_BYTES, NvLinkLayout, Profile, ProfileError, sysfs};
use serde_json::{Value, json};

/// Two GPUs with three of four links between them, and one NIC.
fn observed() -> Value {
    json!({
        "schema": "gpu-node-topology/1",
        "name": "pair",
        "sources": [{"ref": "https://example.org/pair"}, {"ref": "a private note"}],
        "cpu": {"numa_nodes": [{"id": 0, "cpus": "0-7"}]},
        "gpus": [
            {"index": 0, "model": "Test", "memory_mib": 1024, "pci_bus_id": "0000:02:00.0", "pci_device": "10de:2330",
             "pci_subsystem": null, "pci_class": "0x030200", "numa": 0},
            {"index": 1, "model": "Test", "memory_mib": null, "pci_bus_id": "0000:03:00.0", "pci_device": "10de:2330",
             "pci_class": "0x030200", "numa": 0}
        ],
        "nvlink": {"layout": "direct", "links_per_gpu": 4, "generation": "NVLink3", "gpu_gpu_links": [[0, 3], [3, 0]]},
        "pcie": {
            "gpu_gpu": [["X", "PHB"], ["PHB", "X"]],
            "paths": {
                "gpu0": "/sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0",
                "gpu1": "/sys/devices/pci0000:00/0000:00:02.0/0000:03:00.0",
                "nic0": "/sys/devices/pci0000:00/0000:00:03.0/0000:04:00.0"
            }
        },
        "nics": [{"name": "mlx5_0", "pci_bus_id": "0000:04:00.0", "pci_device": "15b3:1021", "link_layer": "InfiniBand",
                  "rate_gbps": 400, "numa": null, "relation_to_gpus": ["PHB", "PHB"]}],
        "provenance": [{"path": "*", "status": "inferred"}]
    })
}

const COMPACT: &str = r#"
schema = "phalanx-node/1"
name = "pair"
gpus = [
  { path = "pci0000:00/0000:00:01.0/0000:02:00.0", numa = 0 },
  { path = "pci0000:00/0000:00:02.0/0000:03:00.0", numa = 0, memory_mib = 2048 },
]
[host]
memory = "64Gi"
[[numa]]
id = 0
cpus = "0-7"
[gpu]
model = "Test"
memory_mib = 1024
pci = "10de:2330"
[nvlink]
layout = "direct"
generation = 3
links_per_gpu = 4
pairs = [[0, 1, 3]]
"#;

fn error(text: &str) -> String {
    Profile::parse(text, "some/file").map_or_else(|error| error.to_string(), |_| format!("accepted: {text}"))
}

#[test]
fn an_observed_machine_is_read() {
    let profile = Profile::parse(&observed().to_string(), "file").unwrap();
    assert_eq!((profile.host.cpus, profile.host.memory_bytes), (128, 1 << 40), "defaults");
    assert_eq!(profile.sources, ["https://example.org/pair"]);
    assert_eq!(profile.nvlink.layout, NvLinkLayout::Direct);
    let one = LinkEnd::Gpu(1);
    assert_eq!(profile.link_ends(0), [one, one, one, LinkEnd::Inactive]);
    assert_eq!((profile.gpus[0].memory_mib, profile.gpus[1].memory_mib), (Some(1024), None));
    assert_eq!(profile.nics[0].pci.numa, None);
}

#[test]
fn host_facts_are_taken_from_the_profile() {
    let mut value = observed();
    value["host"] = json!({"cpus": 4, "memory": "2Gi"});
    let host = Profile::parse(&value.to_string(), "file").unwrap().host;
    assert_eq!((host.cpus, host.memory_bytes), (4, 2 << 30));
    value["host"] = json!({"memory": 4096});
    assert_eq!(Profile::parse(&value.to_string(), "file").unwrap().host.memory_bytes, 4096);
    for bad in [json!("lots"), json!(0), json!(-1), json!("1Tb")] {
        value["host"] = json!({"memory": bad});
        let text = error(&value.to_string());
        assert!(text.contains("some/file") && text.contains("host.memory"), "{text}");
    }
}

#[test]
fn a_compact_machine_is_read() {
    let profile = Profile::parse(COMPACT, "file").unwrap();
    assert_eq!(profile.nvlink.gpu_gpu_links, [[0, 3], [3, 0]]);
    assert_eq!((profile.gpus[0].memory_mib, profile.gpus[1].memory_mib), (Some(1024), Some(2048)));
    assert_eq!((profile.host.cpus, profile.host.memory_bytes), (128, 64 << 30));
    assert_eq!(profile.gpus[1].pci.address.to_string(), "0000:03:00.0");
}

#[test]
fn links_to_switches_are_counted_per_gpu() {
    let switches = r#"layout = "nvswitch"
switches = [{ address = "0000:c4:00.0", links = 3 }, { address = "0000:c5:00.0", links = 1 }]"#;
    let text = COMPACT.replace("layout = \"direct\"", switches).replace("pairs = [[0, 1, 3]]", "");
    let profile = Profile::parse(&text, "file").unwrap();
    let (first, second) = (LinkEnd::Switch(0), LinkEnd::Switch(1));
    assert_eq!(profile.link_ends(1), [first, first, first, second]);
    assert_eq!(profile.nvlink.gpu_gpu_links[0][1], 4);
    let hidden = text.replace(switches, "layout = \"nvswitch\"");
    assert_eq!(Profile::parse(&hidden, "file").unwrap().link_ends(0), [LinkEnd::HiddenSwitch; 4]);
    let text = error(&text.replace("links = 3", "links = 2"));
    assert!(text.contains("nvlink.switches") && text.contains("3 links to switches"), "{text}");
}

#[test]
fn uuids_depend_on_node_and_address() {
    let profile = Profile::parse(COMPACT, "file").unwrap();
    let uuid = |gpu: usize, node: &str| profile.gpus[gpu].uuid(node);
    assert_eq!(uuid(0, "node-1"), uuid(0, "node-1"));
    assert_ne!(uuid(0, "node-1"), uuid(0, "node-2"));
    assert_ne!(uuid(0, "node-1"), uuid(1, "node-1"));
}

#[test]
fn wrong_observed_machines_name_the_field() {
    type Change = fn(&mut Value);
    let many: Change = |value| value["gpus"] = Value::Array(vec![value["gpus"][0].clone(); 65]);
    let cases: [(Change, &str, &str); 19] = [
        (
            |value| value["schema"] = json!("gpu-node-topology/2"),
            "schema",
            "gpu-node-topology/1, phalanx-node/1",
        ),
        (|value| value["name"] = json!("../pair"), "name", "letters"),
        (|value| value["gpus"] = json!("two"), "gpus", "a list"),
        (many, "gpus", "at most 64"),
        (|value| value["gpus"][1]["index"] = json!(0), "gpus[1].index", "expected 1"),
        (|value| value["gpus"][1]["model"] = json!(7), "gpus[1].model", "a text"),
        (|value| value["gpus"][1]["pci_bus_id"] = json!("0000:02:00.0"), "pcie.paths.gpu1", "0000:02:00.0"),
        (
            |value| {
                value["gpus"][1]["pci_bus_id"] = json!("0000:02:00.0");
                value["pcie"]["paths"]["gpu1"] = value["pcie"]["paths"]["gpu0"].clone();
            },
            "gpus[1]",
            "used twice",
        ),
        (|value| value["gpus"][0]["pci_bus_id"] = json!("02:00.0"), "gpus[0].pci_bus_id", "0000:1b:00.0"),
        (|value| value["gpus"][0]["numa"] = json!(5), "gpus[0]", "NUMA node 5"),
        (|value| value["gpus"][0]["numa"] = json!(-1), "gpus[0].numa", "from 0 to"),
        (
            |value| value["pcie"]["paths"]["gpu0"] = json!("/sys/devices/../../etc/0000:02:00.0"),
            "pcie.paths.gpu0",
            "a path",
        ),
        (
            |value| value["pcie"]["gpu_gpu"][0][1] = json!("NEAR"),
            "pcie.gpu_gpu[0][1]",
            "PIX, PXB, PHB, NODE, SYS",
        ),
        (|value| value["pcie"]["gpu_gpu"][1] = json!(["PHB"]), "pcie.gpu_gpu[1]", "expected 2"),
        (|value| value["nvlink"]["gpu_gpu_links"] = json!([[0, 3]]), "nvlink.gpu_gpu_links", "expected 2"),
        (|value| value["nvlink"]["gpu_gpu_links"][0][1] = json!(2), "nvlink.gpu_gpu_links[0]", "symmetric"),
        (|value| value["nvlink"]["links_per_gpu"] = json!(200), "nvlink.links_per_gpu", "from 0 to 36"),
        (|value| value["nics"][0]["name"] = json!("../mlx5"), "nics[0].name", "device name"),
        (
            |value| value["nics"][0]["relation_to_gpus"] = json!(["PHB"]),
            "nics[0].relation_to_gpus",
            "one per GPU",
        ),
    ];
    for (change, field, allowed) in cases {
        let mut value = observed();
        change(&mut value);
        let text = error(&value.to_string());
        assert!(
            text.starts_with("some/file: ") && text.contains(&format!("field {field}:")),
            "{field}: {text}"
        );
        assert!(text.contains(allowed), "{field}: {text}");
    }
}

#[test]
fn wrong_compact_machines_name_the_field() {
    let cases = [
        ("memory_mib = 1024", "memory = 1024", "field gpu.memory: is not a known member"),
        ("numa = 0 }", "numa = \"zero\" }", "field gpus[0].numa"),
        (
            "[[0, 1, 3]]",
            "[[0, 2, 3]]",
            "field nvlink.pairs[0][1]: 2 is not allowed: expected a whole number from 0 to 1",
        ),
        ("[[0, 1, 3]]", "[[0, 1]]", "field nvlink.pairs[0]: [0,1] is not allowed: expected three numbers"),
        (
            "\"direct\"",
            "\"ring\"",
            "field nvlink.layout: \"ring\" is not allowed: expected one of direct, nvswitch",
        ),
        ("[host]", "[hosts]", "field hosts: is not a known member; did you mean host?"),
        ("cpus = \"0-7\"", "cpus = \"all\"", "field numa[0].cpus"),
        ("model = \"Test\"", "", "field gpus[0].model"),
    ];
    for (from, to, expected) in cases {
        assert!(COMPACT.contains(from), "{from}");
        let text = error(&COMPACT.replacen(from, to, 1));
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn text_that_is_no_profile_is_refused() {
    assert!(error("{\"schema\": ").contains("not valid JSON"));
    assert!(error("schema = ").contains("not valid TOML"));
    assert!(error("").contains("field schema: is missing"));
    assert!(error("{}").contains("field schema: is missing"));
    assert!(error(&"[".repeat(100_000)).contains("not valid TOML"));
    assert!(error(&format!("{{\"schema\": {}", "[".repeat(100_000))).contains("not valid JSON"));
}

#[test]
fn files_that_are_too_large_or_missing_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("large.json");
    fs::File::create(&file).unwrap().set_len(MAX_PROFILE_BYTES + 1).unwrap();
    assert!(matches!(Profile::load(&file), Err(ProfileError::TooLarge { .. })));
    fs::write(&file, [0xff, 0xfe]).unwrap();
    assert!(matches!(Profile::load(&file), Err(ProfileError::Syntax { format: "UTF-8", .. })));
    assert!(matches!(Profile::load(&directory.path().join("none")), Err(ProfileError::Read { .. })));
    assert!(matches!(Profile::load(directory.path()), Err(ProfileError::Read { .. })));
}

#[test]
fn the_tree_has_the_text_forms_of_the_kernel() {
    let profile = Profile::parse(&observed().to_string(), "file").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("sys");
    sysfs::generate(&profile, &root).unwrap();
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(read("bus/pci/devices/0000:02:00.0/class"), "0x030200\n");
    assert_eq!(read("bus/pci/devices/0000:02:00.0/vendor"), "0x10de\n");
    assert_eq!(read("bus/pci/devices/0000:02:00.0/local_cpulist"), "0-7\n");
    assert_eq!(read("bus/pci/devices/0000:00:01.0/class"), "0x060400\n", "a bridge");
    assert_eq!(read("class/infiniband/mlx5_0/device/numa_node"), "-1\n");
    assert_eq!(read("class/infiniband/mlx5_0/ports/1/state"), "4: ACTIVE\n");
    assert_eq!(read("class/infiniband/mlx5_0/ports/1/rate"), "400 Gb/sec (4X NDR)\n");
    assert_eq!(read("devices/system/node/node0/cpulist"), "0-7\n");
    sysfs::generate(&profile, &root).unwrap();
    fs::create_dir(directory.path().join("other")).unwrap();
    fs::write(directory.path().join("other/precious"), "data").unwrap();
    let refused = sysfs::generate(&profile, &directory.path().join("other"));
    assert!(matches!(refused, Err(ProfileError::ForeignDirectory(_))));
    assert!(directory.path().join("other/precious").exists());
}
