//! libFuzzer's way into `phalanx_fuzz::recording_line`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    phalanx_fuzz::recording_line(data);
});
