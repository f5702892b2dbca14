//! The graph of crates is the one that ARCHITECTURE.md draws.

#[cfg(test)]
mod tests;

use super::Problems;
use crate::workspace::{Member, Workspace};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const FILE: &str = "ARCHITECTURE.md";
/// The line above the drawing begins so.
const ABOVE: &str = "Arrows point";
/// Unites features and holds no code, so no drawing shows it.
const HIDDEN: &str = "workspace-hack";

/// What a crate may depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Needs {
    Everything,
    Named(BTreeSet<String>),
}

/// Compares drawing and manifests.
pub fn check(workspace: &Workspace, members: &[Member], problems: &mut Problems) -> Result<()> {
    let text = fs::read_to_string(workspace.path(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    let names: BTreeSet<&str> = members.iter().map(|member| &*member.name).collect();
    let drawn =
        read_drawing(&text, &names).with_context(|| format!("cannot read the graph of crates in {FILE}"))?;
    for member in members.iter().filter(|member| member.name != HIDDEN) {
        let needs: BTreeSet<String> = member
            .needs
            .iter()
            .filter(|need| *need != HIDDEN)
            .cloned()
            .collect();
        match drawn.get(&*member.name) {
            Some(Needs::Everything) => {}
            Some(Needs::Named(drawn)) if *drawn == needs => {}
            Some(Needs::Named(drawn)) => problems.file(
                Path::new(FILE),
                format!(
                    "draws `{}` ─> {{{}}}, its manifest has {{{}}}",
                    member.name,
                    list(drawn),
                    list(&needs)
                ),
            ),
            None => problems.file(
                Path::new(FILE),
                format!("does not draw the crate `{}`", member.name),
            ),
        }
    }
    Ok(())
}

fn list(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Reads statements such as `a, b ─> c ─> d   e ─> f, g`, parted by three spaces or the end of a line.
fn read_drawing<'n>(text: &str, names: &BTreeSet<&'n str>) -> Result<BTreeMap<&'n str, Needs>> {
    let below = text
        .split(ABOVE)
        .nth(1)
        .with_context(|| format!("no line begins with `{ABOVE}`"))?;
    let block = below.split("```").nth(1).context("no block of code follows it")?;
    let mut drawn: BTreeMap<&str, Needs> = BTreeMap::new();
    for line in block.lines().skip(1) {
        let mut line = line.to_owned();
        while line.contains(" ─>") || line.contains("─> ") {
            line = line.replace(" ─>", "─>").replace("─> ", "─>");
        }
        for statement in line.split("   ").filter(|statement| statement.contains("─>")) {
            let groups: Vec<&str> = statement.split("─>").collect();
            for pair in groups.windows(2) {
                let needs = crates(pair[1], names);
                let everything = pair[1].contains("everything");
                for from in crates(pair[0], names) {
                    let entry = drawn.entry(from).or_insert_with(|| Needs::Named(BTreeSet::new()));
                    match entry {
                        _ if everything => *entry = Needs::Everything,
                        Needs::Named(known) => known.extend(needs.iter().map(|name| (*name).to_owned())),
                        Needs::Everything => {}
                    }
                }
            }
        }
    }
    Ok(drawn)
}

/// The crates named in a piece of the drawing, remarks in parentheses and remarks such as `the x binary` left out.
fn crates<'n>(text: &str, names: &BTreeSet<&'n str>) -> Vec<&'n str> {
    let mut plain = String::new();
    let mut depth = 0usize;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let items = plain
        .split(',')
        .filter(|item| !item.trim_start().starts_with("the "));
    items
        .flat_map(|item| item.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|word| names.get(&*word).copied())
        .collect()
}
