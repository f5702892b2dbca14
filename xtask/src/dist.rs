//! `cargo xtask dist`: the release binary, stripped, with what it needs, as one archive.

use crate::process::{self, cargo, run as run_command};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What goes in beside the binary: files and folders of the repository.
const CONTENTS: &[&str] = &["README.md", "LICENSE-MIT", "LICENSE-APACHE", "configs", "assets"];

/// What to pack.
#[derive(Debug, Args)]
pub struct Options {
    /// Where the archive goes.
    #[arg(long, default_value = "dist")]
    output: String,
}

/// Builds, strips, packs.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if !process::exists("tar") || !process::exists("xz") {
        bail!("`tar` and `xz` are needed; install them (Debian: `apt install tar xz-utils`)");
    }
    let stripped = [
        "build",
        "--release",
        "--package",
        "flow-train",
        "--config",
        "profile.release.strip=true",
    ];
    run_command(&mut cargo(workspace, &stripped))?;
    let output = workspace.path(&options.output);
    let name = format!("flow-train-{}-{}", env!("CARGO_PKG_VERSION"), target());
    let folder = output.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove the old {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let binary = format!("flow-train{}", std::env::consts::EXE_SUFFIX);
    let built = workspace.release_folder()?.join(&binary);
    fs::copy(&built, folder.join(&binary)).with_context(|| format!("cannot copy {}", built.display()))?;
    for item in CONTENTS {
        copy(&workspace.path(item), &folder.join(item)).with_context(|| format!("cannot copy {item}"))?;
    }
    let archive = output.join(format!("{name}.tar.xz"));
    let mut tar = Command::new("tar");
    // The order and times of the entries do not depend on the machine.
    tar.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
        "-cJf",
    ]);
    run_command(tar.arg(&archive).arg("-C").arg(&output).arg(&name))?;
    let size = fs::metadata(&archive)?.len();
    say!("{}: {:.1} MB", archive.display(), size as f64 / 1e6);
    Ok(())
}

fn target() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let path = entry?.path();
            copy(&path, &to.join(path.file_name().unwrap_or_default()))?;
        }
    } else {
        fs::copy(from, to)?;
    }
    Ok(())
}
