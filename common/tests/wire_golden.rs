//! The bytes of the wire. A golden value that changes breaks peers of the same version: add a new variant at the end
//! of its enum, with a new version, instead.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use phalanx_common::gang::{ContainerKind, ContainerRequest, PodRequest};
use phalanx_common::ids::{ClusterId, GangName, GpuId, LeaseId, NodeName, PodUid, Term};
use phalanx_common::resources::{CPU, NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::topology::{
    Gpu, GpuHealth, GpuLink, Inventory, MAX_GPUS_PER_NODE, Nic, PcieLevel, ProbeState,
};
use phalanx_common::units::Millis;
use phalanx_common::wire::codec::{self, CodecError, HEADER_BYTES, MAX_FRAME_BYTES, Message};
use phalanx_common::wire::{
    BearerToken, ContainerDevices, Exactness, FromAgent, Hello, LeaseReport, LeaseRequest, LeaseState,
    MAX_LEASES, MAX_TOKEN_BYTES, RefusalCause, ToAgent, VERSION,
};
use proptest::prelude::*;

const TERM: Term = Term { counter: 3, incarnation: 0x1122_3344_5566_7788 };
const LEASE: LeaseId = LeaseId { term: 3, serial: 300 };

fn request() -> LeaseRequest {
    let main: Arc<str> = Arc::from("main");
    let requests =
        Resources::new().with(ResourceName::known(CPU), 2000).with(ResourceName::known(NVIDIA_GPU), 1);
    LeaseRequest {
        pod: PodUid::from("u-1"),
        pod_name: GangName::new("team", "pod-0"),
        gang: GangName::new("team", "gang"),
        request: PodRequest {
            containers: vec![
                ContainerRequest {
                    name: Arc::from("init"),
                    kind: ContainerKind::Init,
                    requests: Resources::new(),
                },
                ContainerRequest { name: main.clone(), kind: ContainerKind::App, requests },
            ],
            overhead: Resources::new().with(ResourceName::known(CPU), 250),
        },
        devices: vec![ContainerDevices {
            container: main,
            gpus: vec![GpuId(7)],
            nics: vec![Arc::from("mlx5_0")],
        }],
        exactness: Exactness::Exact,
        run_for: Some(Millis(5000)),
    }
}

fn inventory() -> Inventory {
    Inventory {
        state: ProbeState::Ready,
        driver: "570.172.08".to_owned(),
        cpu_milli: 128_000,
        memory_bytes: 1 << 40,
        gpus: vec![Gpu {
            id: GpuId(0x0bad_cafe_0001_0203_0405_0607_0809_0a0b),
            index: 0,
            model: "NVIDIA L40S".to_owned(),
            memory_mib: Some(46_068),
            pci_bus_id: "0000:21:00.0".to_owned(),
            numa: None,
            health: GpuHealth::Failed("code 999".to_owned()),
        }],
        links: vec![vec![GpuLink { nvlinks: 0, pcie: PcieLevel::Pix }]],
        nics: vec![Nic {
            name: "mlx5_0".to_owned(),
            pci_bus_id: "0000:e1:00.0".to_owned(),
            numa: Some(1),
            link_layer: "Ethernet".to_owned(),
            rate_gbps: Some(25),
            active: true,
            relation_to_gpus: vec![PcieLevel::Sys],
        }],
    }
}

/// One value of every message to an agent, with its bytes in hex.
fn to_agent() -> Vec<(ToAgent, &'static str)> {
    let (term, lease) = (TERM, LEASE);
    let request = Box::new(request());
    vec![
        (
            ToAgent::Welcome { version: 2, cluster: ClusterId::from("c-1"), term },
            "000203632d3103fd8877665544332211",
        ),
        (ToAgent::Rejected { message: "no".to_owned() }, "01026e6f"),
        (
            ToAgent::Reserve { term, lease, request, expires_in_ms: Millis(10_000) },
            "0203fd887766554433221103fb2c0103752d31047465616d05706f642d30047465616d0467616e670204696e69740000046d61696e020203637075fbd0070e6e76696469612e636f6d2f677075010103637075fa01046d61696e010701066d6c78355f300001fb8813fb1027",
        ),
        (ToAgent::Arm { term, lease }, "0303fd887766554433221103fb2c01"),
        (ToAgent::Bound { term, lease }, "0403fd887766554433221103fb2c01"),
        (ToAgent::GangBound { term, lease }, "0503fd887766554433221103fb2c01"),
        (ToAgent::Release { term, lease }, "0603fd887766554433221103fb2c01"),
        (
            ToAgent::Standby { version: 3, cluster: ClusterId::from("c-1"), term },
            "070303632d3103fd8877665544332211",
        ),
        (ToAgent::SayHello, "08"),
    ]
}

/// One value of every message of an agent, with its bytes in hex.
fn from_agent() -> Vec<(FromAgent, &'static str)> {
    let (term, lease) = (TERM, LEASE);
    let hello = Hello {
        oldest_version: 1,
        newest_version: 2,
        node: NodeName::from("n1"),
        cluster: Some(ClusterId::from("c-1")),
        highest_term: term,
        inventory: inventory(),
        leases: vec![LeaseReport { lease, state: LeaseState::Bound, request: request() }],
    };
    let pod = PodUid::from("u-1");
    let refused = |cause| FromAgent::Refused {
        term,
        lease,
        cause,
        inventory: Box::new(Inventory::empty(1, 2)),
        leases: Vec::new(),
    };
    let state = LeaseState::Armed;
    let health = vec![(GpuId(7), GpuHealth::Lost), (GpuId(8), GpuHealth::Healthy)];
    vec![
        (
            FromAgent::Hello(hello),
            "000102026e310103632d3103fd8877665544332211000a3537302e3137322e3038fc00f40100fd000000000001000001fe0b0a09080706050403020100fecaad0b000b4e5649444941204c34305301fbf4b30c303030303a32313a30302e30000208636f6465203939390101000001066d6c78355f300c303030303a65313a30302e3001010845746865726e657401190101040103fb2c010203752d31047465616d05706f642d30047465616d0467616e670204696e69740000046d61696e020203637075fbd0070e6e76696469612e636f6d2f677075010103637075fa01046d61696e010701066d6c78355f300001fb8813",
        ),
        (
            FromAgent::Inventory(inventory()),
            "01000a3537302e3137322e3038fc00f40100fd000000000001000001fe0b0a09080706050403020100fecaad0b000b4e5649444941204c34305301fbf4b30c303030303a32313a30302e30000208636f6465203939390101000001066d6c78355f300c303030303a65313a30302e3001010845746865726e65740119010104",
        ),
        (FromAgent::Heartbeat, "02"),
        (FromAgent::Reserved { term, lease }, "0303fd887766554433221103fb2c01"),
        (
            refused(RefusalCause::StaleTerm(term)),
            "0403fd887766554433221103fb2c010003fd88776655443322110000010200000000",
        ),
        (refused(RefusalCause::Released), "0403fd887766554433221103fb2c01010000010200000000"),
        (refused(RefusalCause::UnknownLease), "0403fd887766554433221103fb2c01020000010200000000"),
        (refused(RefusalCause::UnknownGpu(GpuId(7))), "0403fd887766554433221103fb2c0103070000010200000000"),
        (
            refused(RefusalCause::Unhealthy(GpuId(7), GpuHealth::Lost)),
            "0403fd887766554433221103fb2c010407010000010200000000",
        ),
        (
            refused(RefusalCause::Held(GpuId(7), lease)),
            "0403fd887766554433221103fb2c01050703fb2c010000010200000000",
        ),
        (
            refused(RefusalCause::PodHasLease(lease)),
            "0403fd887766554433221103fb2c010603fb2c010000010200000000",
        ),
        (
            refused(RefusalCause::Short(Arc::from(CPU), 1, 2)),
            "0403fd887766554433221103fb2c01070363707501020000010200000000",
        ),
        (
            refused(RefusalCause::Malformed(Arc::from("m"))),
            "0403fd887766554433221103fb2c0108016d0000010200000000",
        ),
        (refused(RefusalCause::Disk(Arc::from("d"))), "0403fd887766554433221103fb2c010901640000010200000000"),
        (FromAgent::LeaseIs { term, lease, state }, "0503fd887766554433221103fb2c0101"),
        (FromAgent::PodStarted { pod: pod.clone() }, "0603752d31"),
        (FromAgent::PodEnded { pod: pod.clone(), succeeded: true }, "0703752d3101"),
        (FromAgent::PodStopped { pod }, "0803752d31"),
        (FromAgent::HealthChanged { gpus: health }, "090207010800"),
        (FromAgent::Token(BearerToken::new("a.b.c").unwrap()), "0a05612e622e63"),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check_golden<M: Message + PartialEq + std::fmt::Debug>(values: Vec<(M, &str)>) {
    let mut wrong = Vec::new();
    for (message, golden) in values {
        let frame = codec::encode(&message, VERSION).unwrap();
        let length = codec::body_bytes(*frame.first_chunk().unwrap()).unwrap();
        assert_eq!(length, frame.len() - 4);
        assert_eq!(codec::decode::<M>(&frame[4..]).unwrap(), message);
        let body = hex(&frame[HEADER_BYTES..]);
        if body != golden {
            wrong.push(format!("{golden} -> {body}"));
        }
    }
    assert!(wrong.is_empty(), "bytes have changed (golden -> now):\n{}", wrong.join("\n"));
}

#[test]
fn messages_to_an_agent_keep_their_bytes() {
    check_golden(to_agent());
}

#[test]
fn messages_of_an_agent_keep_their_bytes() {
    check_golden(from_agent());
}

#[test]
fn every_variant_has_a_golden_value() {
    // A variant that is added makes these matches incomplete: give it a golden value above and a line here.
    let to = |message: &ToAgent| match message {
        ToAgent::Welcome { .. } => 0,
        ToAgent::Rejected { .. } => 1,
        ToAgent::Reserve { .. } => 2,
        ToAgent::Arm { .. } => 3,
        ToAgent::Bound { .. } => 4,
        ToAgent::GangBound { .. } => 5,
        ToAgent::Release { .. } => 6,
        ToAgent::Standby { .. } => 7,
        ToAgent::SayHello => 8,
    };
    let from = |message: &FromAgent| match message {
        FromAgent::Hello(_) => 0,
        FromAgent::Inventory(_) => 1,
        FromAgent::Heartbeat => 2,
        FromAgent::Reserved { .. } => 3,
        FromAgent::Refused { .. } => 4,
        FromAgent::LeaseIs { .. } => 5,
        FromAgent::PodStarted { .. } => 6,
        FromAgent::PodEnded { .. } => 7,
        FromAgent::PodStopped { .. } => 8,
        FromAgent::HealthChanged { .. } => 9,
        FromAgent::Token(_) => 10,
    };
    let mut seen: Vec<u32> = to_agent().iter().map(|(message, _)| to(message)).collect();
    assert_eq!(seen, (0..9).collect::<Vec<_>>());
    seen = from_agent().iter().map(|(message, _)| from(message)).collect();
    seen.dedup();
    assert_eq!(seen, (0..11).collect::<Vec<_>>());
}

/// A frame of version 2 with this body.
fn body(bytes: &[u8]) -> Vec<u8> {
    [&2_u16.to_le_bytes(), bytes].concat()
}

#[test]
fn a_length_outside_the_limits_is_refused_before_anything_is_read() {
    for length in [0_u32, 1, MAX_FRAME_BYTES as u32 - 3, 1 << 30, u32::MAX] {
        let error = codec::body_bytes(length.to_le_bytes()).unwrap_err();
        assert!(matches!(error, CodecError::FrameSize(size) if size == length as usize), "{error}");
    }
    for length in [2_u32, MAX_FRAME_BYTES as u32 - 4] {
        assert_eq!(codec::body_bytes(length.to_le_bytes()).unwrap(), length as usize);
    }
}

#[test]
fn a_text_of_a_terabyte_is_refused_before_memory_is_taken() {
    // Rejected: variant 1, then a text whose length says 1 TB.
    let terabyte = [&[1_u8, 253][..], &(1_u64 << 40).to_le_bytes()].concat();
    assert!(matches!(codec::decode::<ToAgent>(&body(&terabyte)), Err(CodecError::Body(_))));
}

#[test]
fn counts_over_the_limit_are_refused_before_memory_is_taken() {
    // HealthChanged: variant 9, then a count.
    let count = |number: u64| [&[9_u8, 253][..], &number.to_le_bytes()].concat();
    for number in [MAX_GPUS_PER_NODE as u64 + 1, 1 << 40, u64::MAX] {
        let error = codec::decode::<FromAgent>(&body(&count(number))).unwrap_err().to_string();
        assert!(error.contains("decode"), "{error}");
    }
    let message = |gpus: usize| FromAgent::HealthChanged { gpus: vec![(GpuId(1), GpuHealth::Lost); gpus] };
    let most = codec::encode(&message(MAX_GPUS_PER_NODE), VERSION).unwrap();
    assert!(codec::decode::<FromAgent>(&most[4..]).is_ok());
    let more = codec::encode(&message(MAX_GPUS_PER_NODE + 1), VERSION).unwrap();
    let error = codec::decode::<FromAgent>(&more[4..]).unwrap_err().to_string();
    assert!(error.contains("at most 64 elements"), "{error}");
}

#[test]
fn a_token_is_bounded_and_never_shown() {
    assert_eq!(BearerToken::new(&"a".repeat(MAX_TOKEN_BYTES + 1)), None);
    let longest = FromAgent::Token(BearerToken::new(&"a".repeat(MAX_TOKEN_BYTES)).unwrap());
    assert_eq!(format!("{longest:?}"), "Token(BearerToken(16384 bytes))");
    let frame = codec::encode(&longest, VERSION).unwrap();
    assert_eq!(codec::decode::<FromAgent>(&frame[4..]).unwrap(), longest);
    // Token: variant 10, then a text that is one byte longer than allowed.
    let length = (MAX_TOKEN_BYTES + 1) as u16;
    let longer = [&[10_u8, 251][..], &length.to_le_bytes(), &vec![b'a'; length as usize]].concat();
    let frame = [&3_u16.to_le_bytes()[..], &longer].concat();
    let error = codec::decode::<FromAgent>(&frame).unwrap_err().to_string();
    assert!(error.contains("at most 16384 are allowed"), "{error}");
}

#[test]
fn a_node_with_all_it_may_have_fits_into_a_frame() {
    let mut inventory = inventory();
    let gpu = Gpu { id: GpuId(u128::MAX), ..inventory.gpus[0].clone() };
    inventory.gpus = vec![gpu; MAX_GPUS_PER_NODE];
    inventory.links = vec![vec![inventory.links[0][0]; MAX_GPUS_PER_NODE]; MAX_GPUS_PER_NODE];
    let mut nic = inventory.nics[0].clone();
    nic.relation_to_gpus = vec![PcieLevel::Sys; MAX_GPUS_PER_NODE];
    inventory.nics = vec![nic; phalanx_common::topology::MAX_NICS_PER_NODE];
    let report = LeaseReport { lease: LEASE, state: LeaseState::Bound, request: request() };
    let hello = |leases: usize| {
        FromAgent::Hello(Hello {
            oldest_version: 1,
            newest_version: 2,
            node: NodeName::from("n1"),
            cluster: None,
            highest_term: TERM,
            inventory: inventory.clone(),
            leases: vec![report.clone(); leases],
        })
    };
    let frame = codec::encode(&hello(MAX_LEASES), VERSION).unwrap();
    assert!(frame.len() < MAX_FRAME_BYTES, "{} bytes", frame.len());
}

#[test]
fn bytes_behind_a_message_are_refused() {
    for (message, _) in from_agent() {
        let mut frame = codec::encode(&message, VERSION).unwrap();
        frame.push(0);
        assert!(matches!(codec::decode::<FromAgent>(&frame[4..]), Err(CodecError::Trailing(1))));
    }
}

#[test]
fn a_message_that_is_cut_short_is_refused() {
    for (message, _) in from_agent() {
        let frame = codec::encode(&message, VERSION).unwrap();
        for end in 4..frame.len() {
            assert!(codec::decode::<FromAgent>(&frame[4..end]).is_err(), "{message:?} cut at {end}");
        }
    }
}

#[test]
fn versions_that_are_not_served_are_refused() {
    let mut frame = codec::encode(&FromAgent::Heartbeat, VERSION).unwrap();
    for version in [0, VERSION + 1, u16::MAX] {
        frame[4..6].copy_from_slice(&version.to_le_bytes());
        let error = codec::decode::<FromAgent>(&frame[4..]).unwrap_err();
        assert!(matches!(error, CodecError::Version(found) if found == version), "{error}");
    }
}

#[test]
fn a_message_newer_than_agreed_is_neither_sent_nor_taken() {
    let newer = FromAgent::HealthChanged { gpus: Vec::new() };
    assert!(matches!(codec::encode(&newer, 1), Err(CodecError::TooNew { since: 2, agreed: 1 })));
    let mut frame = codec::encode(&newer, 2).unwrap();
    frame[4..6].copy_from_slice(&1_u16.to_le_bytes());
    let error = codec::decode::<FromAgent>(&frame[4..]).unwrap_err();
    assert!(matches!(error, CodecError::TooNew { since: 2, agreed: 1 }), "{error}");
}

#[test]
fn messages_of_version_one_are_the_same_in_version_two() {
    for (message, _) in from_agent().into_iter().filter(|(message, _)| message.since() == 1) {
        let (old, new) = (codec::encode(&message, 1).unwrap(), codec::encode(&message, 2).unwrap());
        assert_eq!(old[HEADER_BYTES..], new[HEADER_BYTES..]);
        assert_eq!(codec::decode::<FromAgent>(&old[4..]).unwrap(), message);
    }
}

#[test]
fn two_peers_agree_on_the_newest_version_both_speak() {
    assert_eq!(codec::agree(1, 1), Some(1));
    assert_eq!(codec::agree(1, 2), Some(2));
    assert_eq!(codec::agree(2, 9), Some(VERSION));
    assert_eq!(codec::agree(VERSION + 1, 9), None);
    assert_eq!(codec::agree(0, 0), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_no_crash(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = codec::decode::<ToAgent>(&bytes);
        let _ = codec::decode::<FromAgent>(&body(&bytes));
    }

    #[test]
    fn flipped_bits_are_no_crash(which in 0_usize..19, at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mut frame = codec::encode(&from_agent()[which].0, VERSION).unwrap();
        let at = at.index(frame.len() - 4) + 4;
        frame[at] ^= 1 << bit;
        if let Ok(message) = codec::decode::<FromAgent>(&frame[4..]) {
            // What decodes is a message like any other: it can be sent on.
            let agreed = message.since().max(1);
            prop_assert!(codec::encode(&message, agreed).is_ok());
        }
    }
}
