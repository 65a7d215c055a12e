//! libFuzzer's way into `phalanx_fuzz::wire_decoder`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    phalanx_fuzz::wire_decoder(data);
});
