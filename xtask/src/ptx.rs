//! `cargo xtask ptx`: the compile check of the CUDA kernels, on a machine without a GPU.

use crate::pip;
use crate::process::{cargo, output, run as run_command};
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// Packages, versions and sums of what is fetched.
const PACKAGES: &str = "xtask/cuda-13.0.txt";

/// Packages that have a compile check.
const CHECKED: [(&str, &str); 3] = [
    ("flow-attention-cube", "ptx"),
    ("flow-kernels-cube", "ptx"),
    ("flow-matmul-cube", "ptx"),
];

/// Where the compilers are.
#[derive(Debug, Args)]
pub struct Options {
    /// A CUDA 13.0 tree with `bin/ptxas`, `include` and `lib/libnvrtc.so.13`. Without it the compilers are fetched from
    /// PyPI (190 MB), once, into the target folder.
    #[arg(long)]
    cuda: Option<PathBuf>,
    /// Python with pip, which fetches them.
    #[arg(long, default_value = "python3")]
    python: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cuda: None,
            python: "python3".into(),
        }
    }
}

/// The features without which there are no such tests. With a question mark, for without one Cargo gives these crates to all members of
/// the workspace that may depend on them.
pub fn features() -> String {
    CHECKED
        .map(|(package, _)| format!("{package}?/compile-check"))
        .join(",")
}

/// Compiles every kernel that the tables choose, and checks what ptxas reports. `features` are those that the workspace is built
/// with, [`features`] among them.
pub fn run(workspace: &Workspace, options: &Options, features: &str) -> Result<()> {
    let tree = match &options.cuda {
        Some(tree) => tree.clone(),
        None => fetched(workspace, &options.python)?,
    };
    let mut arguments = vec!["test", "--release", "--workspace", "--features", features];
    for (_, test) in CHECKED {
        if !arguments.contains(&test) {
            arguments.extend(["--test", test]);
        }
    }
    arguments.extend(["--no-run", "--message-format=json-render-diagnostics"]);
    // Built without the variable and run with it: build scripts that look at it would have everything behind them compiled
    // anew, here and again in the next build without it.
    let built = output(&mut cargo(workspace, &arguments))?;
    for (program, folder) in programs(&built)? {
        let mut check = Command::new(program);
        check.current_dir(folder).arg("--include-ignored");
        run_command(check.env("CUDA_PATH", &tree))?;
    }
    Ok(())
}

/// The test programs that Cargo's messages name, each with the folder of its package.
fn programs(messages: &str) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut found = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("Cargo wrote a message that is no JSON")?;
        let text = |key: &str| message[key].as_str().map(PathBuf::from);
        if let (Some(program), Some(manifest)) = (text("executable"), text("manifest_path")) {
            let folder = manifest.parent().context("a manifest is in a folder")?;
            found.push((program, folder.to_path_buf()));
        }
    }
    if found.len() != CHECKED.len() {
        bail!(
            "Cargo built {} compile checks instead of {}",
            found.len(),
            CHECKED.len()
        );
    }
    Ok(found)
}

/// The tree in the target folder; fetched if it is not there.
fn fetched(workspace: &Workspace, python: &str) -> Result<PathBuf> {
    let place = pip::fetched(workspace, python, PACKAGES, "cuda-13.0")
        .context("cannot fetch CUDA's compilers; give a tree by `--cuda` instead")?;
    Ok(place.join("nvidia").join("cu13"))
}
