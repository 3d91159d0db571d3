#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| aster_fuzz::run("url", data));
