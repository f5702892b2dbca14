//! `cargo xtask test`: the README's test command.

use crate::process::{cargo, run as run_command};
use crate::workspace::Workspace;
use anyhow::Result;

/// The arguments of the README's test command.
pub const ARGUMENTS: &[&str] = &["test", "--release", "--workspace"];

/// Runs every test of the workspace.
pub fn run(workspace: &Workspace) -> Result<()> {
    run_with(workspace, &[])
}

/// Runs every test of the workspace, with further arguments to cargo.
pub fn run_with(workspace: &Workspace, further: &[&str]) -> Result<()> {
    run_command(&mut cargo(workspace, &[ARGUMENTS, further].concat()))
}
