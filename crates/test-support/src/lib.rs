//! What tests of several crates share. A dev-dependency: no program links it.
#![deny(missing_docs)]

pub mod hub_server;

use std::fmt::Display;
use std::io::Write;
use std::panic::Location;
use std::path::{Path, PathBuf};

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

/// The small pipelines of random weights, by name.
pub const PIPELINES: [&str; 4] = ["sd3", "flux-dev", "qwen-image", "wan"];

/// The whole folder of one of [`PIPELINES`], in a place of its own: transformer, tokenizers and scheduler are in
/// `tests/pipelines`, text encoders and autoencoder are those that the tests of their crates have.
///
/// # Panics
/// If there is no such pipeline, or no room for it.
pub fn pipeline_folder(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("there is a place for temporary files");
    write_pipeline_folder(name, folder.path());
    folder
}

/// The same in `folder`, which is made.
///
/// # Panics
/// As [`pipeline_folder`].
pub fn write_pipeline_folder(name: &str, folder: &Path) {
    assert!(PIPELINES.contains(&name), "`{name}`: there are {PIPELINES:?}");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sources = [
        workspace.join("tests/pipelines"),
        workspace.join("crates/flow-text-encoder/tests/fixtures/pipelines"),
        workspace.join("crates/flow-autoencoder/tests/fixtures/pipelines"),
    ];
    for source in sources.map(|source| source.join(name)) {
        copy(&source, folder);
    }
}

fn entries(folder: &Path) -> Option<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).ok()?;
    Some(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

/// Sentencepiece's table of that name, for which `@nmt_nfkc@` stands in tokenizers: it is larger than all the rest of them.
fn nmt_nfkc() -> String {
    let file = "../flow-tokenizer/tests/fixtures/nmt_nfkc.base64";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(path).expect("the tests of the tokenizers have it")
}

fn copy(from: &Path, to: &Path) {
    if !from.exists() {
        return;
    }
    match entries(from) {
        Some(inner) => {
            std::fs::create_dir_all(to).expect("a folder can be made");
            for path in inner {
                copy(&path, &to.join(path.file_name().unwrap_or_default()));
            }
        }
        None if from.file_name().is_some_and(|name| name == "tokenizer.json") => {
            let text = std::fs::read_to_string(from).expect("a tokenizer is text");
            let whole = text.replace("@nmt_nfkc@", nmt_nfkc().trim_end());
            std::fs::write(to, whole).expect("a file can be written");
        }
        None => {
            std::fs::copy(from, to).expect("a file can be copied");
        }
    }
}
