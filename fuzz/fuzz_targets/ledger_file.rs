//! libFuzzer's way into `phalanx_fuzz::ledger_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    phalanx_fuzz::ledger_file(data);
});
