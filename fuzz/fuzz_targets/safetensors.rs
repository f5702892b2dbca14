//! The safetensors reader, fed by libFuzzer; `checks/safetensors.rs` says what must hold.

#![no_main]

#[path = "../checks/safetensors.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::check(bytes));
