//! The Python environment of the peer that speed is compared with.

use crate::process::{output, run as run_command};
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is installed, from the Python package index.
const PACKAGES: &[&str] = &["torch", "numpy", "safetensors"];

/// A Python that can import PyTorch; made on first use, in the user's cache folder.
pub fn python() -> Result<PathBuf> {
    let folder = cache_folder()?.join("flow-train").join("bench-venv");
    let python = folder.join("bin").join("python");
    if imports(&python) {
        return Ok(python);
    }
    say!(
        "making a Python environment with PyTorch in {} (about 6 GB)",
        folder.display()
    );
    run_command(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .context("Python 3 with its `venv` module is needed (Debian: `apt install python3-venv`)")?;
    run_command(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet"])
            .args(PACKAGES),
    )?;
    if !imports(&python) {
        bail!(
            "{} cannot import torch; remove {} and try again",
            python.display(),
            folder.display()
        );
    }
    Ok(python)
}

/// The Python that was asked for, or the one of [`python`]; `None` if no peer was asked for, by the word `none`.
pub fn unless_none(asked: Option<&Path>) -> Result<Option<PathBuf>> {
    match asked {
        Some(none) if none == Path::new("none") => Ok(None),
        Some(asked) => Ok(Some(asked.to_owned())),
        None => python().map(Some),
    }
}

/// Versions and threading of the installed PyTorch, for the record.
pub fn version(python: &Path) -> Result<String> {
    let program = "import torch; print(torch.__version__)";
    Ok(output(Command::new(python).args(["-c", program]))?
        .trim()
        .to_owned())
}

fn imports(python: &Path) -> bool {
    let mut command = Command::new(python);
    command
        .args(["-c", "import torch, numpy, safetensors"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The folder of caches, the user's.
pub fn cache_folder() -> Result<PathBuf> {
    let given = env::var_os("XDG_CACHE_HOME")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from);
    let home = || {
        env::var_os("HOME")
            .filter(|value| !value.is_empty())
            .map(|home| PathBuf::from(home).join(".cache"))
    };
    given
        .or_else(home)
        .context("neither XDG_CACHE_HOME nor HOME is set, so there is no place for the environment")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_no_peer_and_any_other_word_is_a_python() {
        assert_eq!(unless_none(Some(Path::new("none"))).unwrap(), None);
        let python = Path::new("venv/bin/python");
        assert_eq!(unless_none(Some(python)).unwrap().as_deref(), Some(python));
    }
}
