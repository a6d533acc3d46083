//! See `inputs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| inputs::check("listings", input));
