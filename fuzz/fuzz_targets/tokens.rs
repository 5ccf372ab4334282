//! libFuzzer's way into the body of the same name; what is asserted is said there.

#![no_main]

#[path = "../bodies/tokens.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
