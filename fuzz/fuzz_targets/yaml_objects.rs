//! libFuzzer's way into `phalanx_fuzz::yaml_objects`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    phalanx_fuzz::yaml_objects(data);
});
