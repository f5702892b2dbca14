//! Rules on the text of files.

#[cfg(test)]
mod tests;

use super::Problems;
use crate::workspace::Workspace;
use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest Rust file, in lines.
const MOST_LINES: usize = 600;

/// Work that is not done. Written in two parts so that this file does not name itself.
const UNFINISHED: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("dbg", "!("),
    concat!("#[ig", "nore"),
];

/// The one reason for which a test may be left out of others' runs: a step of CI runs it.
const RUN_BY_CI: &str = concat!(
    "#[ig",
    "nore = \"needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it\"]"
);

/// Folders of one machine, which mean nothing on another.
const MACHINE_FOLDERS: &[&str] = &[
    concat!("/tm", "p/"),
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
];

/// A folder of the reader's, in examples.
const FOLDER_OF_EXAMPLES: &str = concat!("/ho", "me/me/");

/// State that a reader of a function does not see.
const HIDDEN_STATE: &[&str] = &[
    concat!("thread_lo", "cal!"),
    concat!("static ", "mut "),
    concat!("env::", "var"),
    concat!("env::", "set_var"),
];

/// Where hidden state may stand, with the reason.
const HIDDEN_STATE_ALLOWED: &[(&str, &str, &str)] = &[
    (
        "crates/flow-report/src/environment.rs",
        concat!("env::", "var"),
        "the manifest records the variables of the process",
    ),
    (
        "crates/flow-train/src/commands/doctor/nvidia.rs",
        concat!("env::", "var"),
        "`doctor` says where the loader and CubeCL look for NVIDIA's libraries",
    ),
    (
        "crates/flow-train/src/commands/fetch.rs",
        concat!("env::", "var"),
        "the token and the mirror of the hub, by the hub's own names",
    ),
    (
        "crates/flow-rewards-remote/src/http/headers.rs",
        concat!("env::", "var"),
        "the tokens of reward servers, in variables that the config names; `RemoteReward::new` gets the lookup as an argument",
    ),
    (
        "crates/flow-rewards-ocr/tests/paddle.rs",
        concat!("env::", "var"),
        "where somebody's files of PP-OCR are; without them the tests say that they are skipped",
    ),
    (
        "crates/flow-train/tests/cli/folders/ocr.rs",
        concat!("env::", "var"),
        "where somebody's files of PP-OCR are; without them the test says that it is skipped",
    ),
    (
        "crates/flow-rendezvous/src/launch.rs",
        concat!("env::", "var"),
        "what a launcher says of its process stands in variables; `Launch::from_variables` gets them as an argument",
    ),
    (
        "crates/flow-rendezvous/src/membership.rs",
        concat!("env::", "var"),
        "the name of this machine, where `/proc` has none",
    ),
    (
        "crates/flow-rendezvous/examples/who_am_i.rs",
        concat!("env::", "var"),
        "an example of a program that passes the variables on",
    ),
    (
        "crates/flow-trust/examples/trusted.rs",
        concat!("env::", "var"),
        "an example of a program that passes the variables on",
    ),
    (
        "crates/flow-import/tests/examples.rs",
        concat!("env::", "var"),
        "where somebody's checkout of Flow-Factory is; without it the test says that it is skipped",
    ),
    (
        "crates/flow-attention-cube/tests/ptx.rs",
        concat!("env::", "var"),
        "where CUDA is, by NVIDIA's own name; `cargo xtask ptx` says it to the test",
    ),
    (
        "crates/flow-kernels-cube/tests/ptx.rs",
        concat!("env::", "var"),
        "where CUDA is, by NVIDIA's own name; `cargo xtask ptx` says it to the test",
    ),
    (
        "crates/flow-matmul-cube/tests/ptx.rs",
        concat!("env::", "var"),
        "where CUDA is, by NVIDIA's own name; `cargo xtask ptx` says it to the test",
    ),
];

/// Files whose bytes are not ours or have no lines.
const NOT_TEXT: &[&str] = &[
    "safetensors",
    "pkl",
    "gz",
    "png",
    "npz",
    "npy",
    "bin",
    "lock",
    "ckpt",
    "xz",
    "onnx",
    "ttf",
    "pth",
    "pt",
];

/// Checks every file.
pub fn check(workspace: &Workspace, files: &[PathBuf], problems: &mut Problems) -> Result<()> {
    for path in files {
        let ending = path
            .extension()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if NOT_TEXT.contains(&&*ending) {
            continue;
        }
        let relative = workspace.relative(path);
        match String::from_utf8(fs::read(path)?) {
            Ok(text) => check_text(relative, &ending, &text, problems),
            Err(_) => problems.file(
                relative,
                "is not UTF-8; if it is data, add its ending to `NOT_TEXT`",
            ),
        }
    }
    Ok(())
}

fn check_text(path: &Path, ending: &str, text: &str, problems: &mut Problems) {
    if !text.is_empty() && !text.ends_with('\n') && ending != "json" {
        problems.file(path, "does not end with a newline");
    }
    for (number, line) in (1..).zip(text.lines()) {
        if line.ends_with([' ', '\t']) {
            problems.line(path, number, "white space at the end of the line");
        }
        for folder in MACHINE_FOLDERS.iter().filter(|folder| names_folder(line, folder)) {
            problems.line(path, number, format!("`{folder}` is a folder of one machine"));
        }
        let is_unfinished = |word: &&&str| line.contains(**word) && line.trim() != RUN_BY_CI;
        for word in UNFINISHED.iter().filter(is_unfinished) {
            problems.line(path, number, format!("`{word}`: finish it, or write an issue"));
        }
    }
    if ending == "rs" {
        check_rust(path, text, problems);
    }
}

/// Whether a path in `line` starts with `folder`; `docs/work/` does not.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let example = line[at..].starts_with(FOLDER_OF_EXAMPLES);
        !example
            && !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}' | '~' | '/'))
    })
}

fn check_rust(path: &Path, text: &str, problems: &mut Problems) {
    let opens_with_docs = text.starts_with("//!") || text.starts_with("#![doc = include_str!(");
    if !opens_with_docs {
        problems.file(path, "does not open with `//!`, which says what the file is for");
    }
    let lines = text.lines().count();
    if lines > MOST_LINES {
        problems.file(
            path,
            format!("has {lines} lines, more than {MOST_LINES}; split it"),
        );
    }
    if !path.starts_with("crates") {
        return;
    }
    for (number, line) in (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
    {
        for state in HIDDEN_STATE.iter().filter(|state| line.contains(**state)) {
            let allowed = HIDDEN_STATE_ALLOWED
                .iter()
                .any(|(file, what, _)| path == Path::new(file) && what == state);
            if !allowed {
                problems.line(path, number, format!("`{state}`: pass it as an argument"));
            }
        }
    }
}
