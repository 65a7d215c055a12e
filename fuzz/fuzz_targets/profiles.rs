//! libFuzzer's way into `phalanx_fuzz::profiles`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    phalanx_fuzz::profiles(data);
});
