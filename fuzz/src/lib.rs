//! What is done with each input: it is read as the programs read it, and what must hold for every input is asserted.
//! True where all or part of it was taken for what it should be, so that a test can see that a corpus is of use.
//! The fuzzer calls these functions, and so does a bounded random test of the workspace, which includes this file.

use std::cell::RefCell;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use phalanx_agent::ledger_file::LedgerFile;
use phalanx_common::gang::PodPhase;
use phalanx_common::units::Time;
use phalanx_common::wire::codec::{self, HEADER_BYTES, Message};
use phalanx_common::wire::{FromAgent, OLDEST_VERSION, ToAgent};
use phalanx_coordinator::api::{Kind, Object};
use phalanx_coordinator::convert::Reading;
use phalanx_coordinator::manifest::names::GROUP_NAME;
use phalanx_coordinator::recorder::Record;
use phalanx_coordinator::{convert, jobs, manifest};
use phalanx_profile::Profile;
use phalanx_transport::frames::FrameReader;

/// Most bytes of text that an input may be answered with, whatever its size.
const MAX_TEXT_BYTES: usize = 8 << 20;

/// Frames of both directions. What decodes is encoded to something that decodes to the same.
pub fn wire_decoder(data: &[u8]) -> bool {
    let bodies = [decode::<ToAgent>(data), decode::<FromAgent>(data)];
    let frames = [read_frames::<ToAgent>(data), read_frames::<FromAgent>(data)];
    [bodies, frames].concat().contains(&true)
}

fn decode<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> bool {
    let Ok(message) = codec::decode::<M>(bytes) else { return false };
    let version = message.since().max(OLDEST_VERSION);
    let frame = codec::encode(&message, version).expect("what was read can be sent on");
    let again = codec::decode::<M>(&frame[HEADER_BYTES - 2..]).expect("what was written can be read");
    assert_eq!(message, again);
    true
}

fn read_frames<M: Message>(bytes: &[u8]) -> bool {
    let mut reader = FrameReader::new(bytes);
    // A slice is always ready, so that no runtime is needed.
    let mut next = || match pin!(reader.next::<M>()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => matches!(result, Ok(Some(_))),
        Poll::Pending => panic!("a slice never waits"),
    };
    let some = next();
    while some && next() {}
    some
}

/// A manifest. What is taken can be read by those who use it, and statuses stand any previous value.
pub fn yaml_objects(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let parsed = manifest::parse(text, "fuzz.yaml");
    assert_eq!(parsed.objects.len(), parsed.lines.len());
    let lines = text.lines().count().max(1);
    let mut told = 0;
    for diagnostic in &parsed.diagnostics {
        assert!((1..=lines).contains(&diagnostic.line), "{diagnostic} of {lines} lines");
        assert!(!diagnostic.message.is_empty() && !diagnostic.message.contains('\n'), "{diagnostic:?}");
        told += diagnostic.to_string().len();
    }
    assert!(told <= MAX_TEXT_BYTES, "{told} bytes of diagnostics");
    let some = !parsed.objects.is_empty();
    parsed.objects.into_iter().for_each(stored);
    some
}

fn stored(mut object: Object) {
    object.metadata.uid = "00000000-0000-4000-8000-000000000000".to_owned();
    if object.metadata.name.is_empty() {
        object.metadata.name = format!("{}00000", object.metadata.generate_name);
    }
    let text = serde_json::to_string(&object).expect("an object can be stored");
    let read: Object = serde_json::from_str(&text).expect("a stored object can be read");
    assert_eq!(object, read);
    // The store's status may be anything.
    object.status = object.spec.clone();
    let now = Time(1_700_000_000_000);
    let converted = convert::event_of_object(&Reading::default(), &object);
    assert_eq!(converted.warnings, Vec::<String>::new(), "what was taken is left out later: {text}");
    match object.kind {
        Kind::Pod => {
            object.metadata.annotations.insert(GROUP_NAME.to_owned(), "group".to_owned());
            assert!(
                convert::event_of_object(&Reading::default(), &object).event.is_some(),
                "a pod of ours is known: {text}"
            );
            let _ = convert::status::pod_status(&object.status, PodPhase::Running, now);
        }
        Kind::Job => {
            object.status = serde_json::Value::Null;
            let writes = jobs::reconcile(&[Arc::new(object)], now);
            assert_eq!(writes.warnings, Vec::<String>::new(), "a job that was taken: {text}");
            assert!(!writes.mutations.is_empty(), "a job that was taken makes something: {text}");
        }
        _ => {}
    }
}

/// A node profile. What is taken is a machine that holds together.
pub fn profiles(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let profile = match Profile::parse(text, "fuzz.toml") {
        Ok(profile) => profile,
        Err(error) => {
            let told = error.to_string();
            assert!(told.starts_with("fuzz.toml") && told.len() < 16 << 10, "{told}");
            return false;
        }
    };
    let mut uuids = std::collections::BTreeSet::new();
    for (at, gpu) in profile.gpus.iter().enumerate() {
        assert!(uuids.insert(gpu.uuid("node")), "two GPUs of one UUID");
        assert_eq!(profile.link_ends(at).len(), usize::from(profile.nvlink.links_per_gpu));
        let _ = profile.cpus_of(gpu.pci.numa);
    }
    true
}

/// The configuration of both programs.
pub fn config(data: &[u8]) -> bool {
    let file = Path::new("fuzz.toml");
    let told = |text: String| assert!(text.contains("fuzz.toml") && text.len() < 64 << 10, "{text}");
    let state_dir = Some("/state".to_owned());
    let coordinator = phalanx_coordinator::config::RunArguments { state_dir, ..Default::default() };
    let agent = phalanx_agent::config::RunArguments {
        node: Some("node".to_owned()),
        coordinator: vec!["127.0.0.1:1".to_owned()],
        state_dir: Some("/state".to_owned()),
        ..Default::default()
    };
    let coordinator = coordinator.resolve_bytes(data, file).map(|config| {
        assert!(config.settings.confirm_timeout_ms < config.settings.reservation_ms);
    });
    let agent = agent.resolve_bytes(data, file).map(|config| {
        assert_eq!(config.coordinators, ["127.0.0.1:1"]);
    });
    let taken = coordinator.is_ok() || agent.is_ok();
    [coordinator, agent].into_iter().filter_map(Result::err).for_each(|problems| told(problems.to_string()));
    taken
}

thread_local! {
    static DIRECTORY: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

/// The agent's ledger on disk, as it is and as the body of a file with the right checksum: what is read is written
/// and read again as it was, and what is not says so and stays where it is.
pub fn ledger_file(data: &[u8]) -> bool {
    let header = format!("phalanx-ledger 1 crc32={:08x} bytes={}\n", crc32fast::hash(data), data.len());
    let whole = [header.as_bytes(), data, b"\n"].concat();
    DIRECTORY.with_borrow_mut(|directory| {
        let directory = directory.get_or_insert_with(|| tempfile::tempdir().expect("a folder")).path();
        let mut taken = false;
        for bytes in [data, &whole] {
            std::fs::write(directory.join("ledger"), bytes).expect("a file");
            match LedgerFile::open(directory) {
                Ok(mut opened) => {
                    let ledger = opened.ledger.take().expect("the file is there");
                    opened.file.write(&ledger).expect("a ledger can be written");
                    drop(opened);
                    let again = LedgerFile::open(directory).expect("it can be read").ledger;
                    assert_eq!(again, Some(ledger));
                    taken = true;
                }
                Err(error) => {
                    let told = error.to_string();
                    assert!(told.contains("ledger") && told.len() < 4 << 10, "{told}");
                    assert_eq!(std::fs::read(directory.join("ledger")).expect("it is kept"), bytes);
                }
            }
        }
        taken
    })
}

/// One line of a recording. What is read can be written and read again.
pub fn recording_line(data: &[u8]) -> bool {
    let Ok(record) = serde_json::from_slice::<Record>(data) else { return false };
    let text = serde_json::to_string(&record).expect("a record can be written");
    let again: Record = serde_json::from_str(&text).expect("a written record can be read");
    assert_eq!(serde_json::to_string(&again).expect("it can be written again"), text);
    true
}
