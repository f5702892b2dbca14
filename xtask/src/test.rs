//! `cargo xtask test`: the README's test command.

use crate::process::{cargo, run_tests};
use crate::skips::Skips;
use crate::workspace::Workspace;
use anyhow::Result;

/// The arguments of the README's test command.
pub const ARGUMENTS: [&str; 3] = ["test", "--release", "--workspace"];

/// Runs every test of the workspace, and says at the end what was left out.
pub fn run(workspace: &Workspace) -> Result<()> {
    let mut skips = Skips::default();
    run_tests(&mut cargo(workspace, &ARGUMENTS), &mut skips)?;
    skips.print();
    Ok(())
}
