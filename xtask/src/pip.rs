//! Programs that are fetched from PyPI, by version and hash, into the target folder.

use crate::process::run as run_command;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder `name` of the target folder with the packages that `list` names, a file of requirements with hashes. Fetched if it
/// is not there; another version wants another `name`.
pub fn fetched(workspace: &Workspace, python: &str, list: &str, name: &str) -> Result<PathBuf> {
    let release = workspace.release_folder()?;
    let target = release.parent().unwrap_or(&release).to_path_buf();
    let place = target.join(name);
    if place.is_dir() {
        return Ok(place);
    }
    // Under another name until it is whole.
    let unfinished = target.join(format!("{name}.unfinished"));
    remove(&unfinished)?;
    let mut pip = Command::new(python);
    pip.current_dir(workspace.root());
    pip.args([
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--require-hashes",
    ]);
    pip.args(["--requirement", list, "--target"]).arg(&unfinished);
    run_command(&mut pip)?;
    fs::rename(&unfinished, &place).with_context(|| format!("cannot make {}", place.display()))?;
    Ok(place)
}

fn remove(folder: &Path) -> Result<()> {
    match folder.exists() {
        true => fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display())),
        false => Ok(()),
    }
}
