//! The command, run in the folder of the bad configs.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The folder of the workspace, from the package's, where Cargo runs tests.
pub fn workspace() -> PathBuf {
    let package = std::env::current_dir().expect("the package's folder");
    package.join("../..")
}

/// Where the bad configs are.
pub fn bad_configs() -> PathBuf {
    workspace().join("tests/bad-configs")
}

/// Runs the command there.
pub fn flow_train(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flow-train"))
        .args(arguments)
        .current_dir(bad_configs())
        .stdin(Stdio::null())
        .output()
        .expect("the command starts")
}

/// A stream as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}
