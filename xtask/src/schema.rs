//! `cargo xtask schema`: the JSON schema of the config, as editors read it.

use crate::process;
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs;

const FILE: &str = "configs/schema.json";

/// What to do with the schema.
#[derive(Debug, Args)]
pub struct Options {
    /// Compare the file with the code, and write nothing.
    #[arg(long)]
    check: bool,
}

/// Writes or checks.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.check {
        check(workspace)
    } else {
        write(workspace)
    }
}

/// Fails if the file is not what the code says.
pub fn check(workspace: &Workspace) -> Result<()> {
    let path = workspace.path(FILE);
    let found =
        fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}; run `cargo xtask schema`"))?;
    let wanted = generated(workspace)?;
    let Some((number, (found, wanted))) = differing_line(&found, &wanted) else {
        say!("{FILE} is up to date");
        return Ok(());
    };
    bail!(
        "{FILE} differs from the code at line {number}: it has `{found}`, not `{wanted}`; run `cargo xtask schema`"
    )
}

/// The schema of the program, which knows the registries.
fn generated(workspace: &Workspace) -> Result<String> {
    let arguments = ["run", "--release", "--quiet", "-p", "flow-train", "--", "schema"];
    process::output(&mut process::cargo(workspace, &arguments))
}

fn write(workspace: &Workspace) -> Result<()> {
    let path = workspace.path(FILE);
    fs::write(&path, generated(workspace)?).with_context(|| format!("cannot write {FILE}"))?;
    say!("wrote {FILE}");
    Ok(())
}

fn differing_line<'a>(a: &'a str, b: &'a str) -> Option<(usize, (&'a str, &'a str))> {
    if a == b {
        return None;
    }
    let mut lines = (a.split('\n'), b.split('\n'));
    let mut number = 0;
    loop {
        number += 1;
        match (lines.0.next(), lines.1.next()) {
            (None, None) => return Some((number, ("", ""))),
            (a, b) if a != b => return Some((number, (a.unwrap_or("(end)"), b.unwrap_or("(end)")))),
            _ => {}
        }
    }
}
