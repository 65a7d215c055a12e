//! libFuzzer's way into `phalanx_fuzz::config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    phalanx_fuzz::config(data);
});
