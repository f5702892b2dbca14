//! What tests of several crates share. A dev-dependency: no program links it.
#![deny(missing_docs)]

use std::fmt::Display;
use std::io::Write;
use std::panic::Location;

/// Says that the test that calls this leaves something out, and why:
///
/// ```text
/// skipped: a_linear_layer_has_the_gradients_of_f64 (crates/flow-kernels/tests/bf16.rs:135): this processor has no AVX512_BF16
/// ```
///
/// The line goes past the test harness, which keeps what a passing test prints to itself; `cargo xtask ci` and
/// `cargo xtask test` count such lines and print them again at their end.
///
/// # Panics
/// If standard error cannot be written to: a test that leaves something out unheard would be a silent one.
#[track_caller]
pub fn skipped(reason: impl Display) {
    let place = Location::caller();
    let thread = std::thread::current();
    // Tests have a thread with their name, unless they run one after the other on the main thread.
    let test = thread.name().filter(|name| *name != "main").unwrap_or("a test");
    let line = format!("skipped: {test} ({}:{}): {reason}\n", place.file(), place.line());
    // In one piece, so that lines of tests that run beside one another do not mix.
    let written = std::io::stderr().write_all(line.as_bytes());
    written.expect("a skipped test is told on standard error");
}
