//! Rules on what a crate brings along.

use super::Problems;
use crate::workspace::{Member, Workspace};
use anyhow::Result;
use std::fs;
use std::path::Path;

/// Members without users, which need neither README nor example. `cubecl-llvm` stands in for a published crate;
/// `test-catalog` and `test-support` are for tests alone.
const INTERNAL: &[&str] = &[
    "cubecl-llvm",
    "test-catalog",
    "test-support",
    "workspace-hack",
    "xtask",
];

/// Fewest lines of a README that says what the crate owns and shows an example.
const README_LINES: usize = 5;

/// Checks README, example, lints and description of every crate, and that the README of the whole lists it.
pub fn check(workspace: &Workspace, members: &[Member], problems: &mut Problems) -> Result<()> {
    let overview = fs::read_to_string(workspace.path("README.md")).unwrap_or_default();
    for member in members {
        let folder = workspace.relative(&member.path);
        let manifest = fs::read_to_string(member.path.join("Cargo.toml"))?;
        let manifest: toml::Table = manifest.parse()?;
        if manifest
            .get("lints")
            .and_then(|lints| lints.get("workspace"))
            .is_none()
        {
            problems.file(&folder.join("Cargo.toml"), "has no `[lints] workspace = true`");
        }
        if manifest["package"].get("description").is_none() {
            problems.file(&folder.join("Cargo.toml"), "has no description");
        }
        if INTERNAL.contains(&&*member.name) {
            continue;
        }
        let readme = fs::read_to_string(member.path.join("README.md")).unwrap_or_default();
        if readme.lines().count() < README_LINES {
            problems.file(
                &folder.join("README.md"),
                "is missing, or too short to say what the crate owns",
            );
        }
        if !has_example(&member.path.join("examples")) {
            problems.file(
                &folder.join("examples"),
                "holds no `.rs` file; every crate has an example to run",
            );
        }
        if !overview.contains(&format!("`{}`", member.name)) {
            problems.file(
                Path::new("README.md"),
                format!("does not list the crate `{}`", member.name),
            );
        }
    }
    Ok(())
}

fn has_example(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .into_iter()
        .any(|entry| entry.path().extension().is_some_and(|end| end == "rs"))
}
