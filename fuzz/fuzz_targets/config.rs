//! The config parser and the migrations, fed by libFuzzer; `checks/config.rs` says what must hold.

#![no_main]

#[path = "../checks/config.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::check(&test_catalog::CATALOG, bytes));
