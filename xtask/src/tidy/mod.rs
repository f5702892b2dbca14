//! `cargo xtask tidy`: the rules of this repository that no compiler knows.

mod graph;
mod layout;
mod project;
mod publish;
mod sources;

use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Result, bail};
use std::path::Path;

/// What breaks a rule, and where.
#[derive(Debug, Default)]
pub struct Problems {
    found: Vec<String>,
}

impl Problems {
    /// Notes a problem of a whole file.
    pub fn file(&mut self, path: &Path, problem: impl std::fmt::Display) {
        self.found.push(format!("{}: {problem}", path.display()));
    }

    /// Notes a problem of a line, counted from 1.
    pub fn line(&mut self, path: &Path, line: usize, problem: impl std::fmt::Display) {
        self.found.push(format!("{}:{line}: {problem}", path.display()));
    }
}

/// Checks everything; reports everything at once.
pub fn run(workspace: &Workspace) -> Result<()> {
    let mut problems = Problems::default();
    let files = workspace.files()?;
    sources::check(workspace, &files, &mut problems)?;
    let members = workspace.members()?;
    layout::check(workspace, &members, &mut problems)?;
    graph::check(workspace, &members, &mut problems)?;
    publish::check(workspace, &members, &mut problems)?;
    project::check(workspace, &mut problems)?;
    let found = problems.found;
    if !found.is_empty() {
        bail!("{} rules are broken:\n  {}", found.len(), found.join("\n  "));
    }
    say!("{} files, {} crates: tidy", files.len(), members.len());
    Ok(())
}
