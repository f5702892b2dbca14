//! Files about the whole project say the version and the toolchain that `Cargo.toml` says.

#[cfg(test)]
mod tests;

use super::Problems;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use toml::Table;

const TOOLCHAIN: &str = "rust-toolchain.toml";
const CITATION: &str = "CITATION.cff";
const CHANGELOG: &str = "CHANGELOG.md";

/// Compares toolchain, citation and changelog with the manifest of the workspace.
pub fn check(workspace: &Workspace, problems: &mut Problems) -> Result<()> {
    let read =
        |name: &str| fs::read_to_string(workspace.path(name)).with_context(|| format!("cannot read {name}"));
    let manifest: Table = read("Cargo.toml")?.parse()?;
    let package = &manifest["workspace"]["package"];
    let text = |key: &str| {
        let value = package.get(key).and_then(toml::Value::as_str);
        value.with_context(|| format!("the workspace has no `{key}`"))
    };
    let (version, rust_version) = (text("version")?, text("rust-version")?);
    let found = [
        (TOOLCHAIN, toolchain(&read(TOOLCHAIN)?, rust_version)),
        (CITATION, citation(&read(CITATION)?, version)),
        (CHANGELOG, changelog(&read(CHANGELOG)?, version)),
    ];
    for (file, problem) in found {
        if let Some(problem) = problem {
            problems.file(Path::new(file), problem);
        }
    }
    Ok(())
}

/// The channel is a release of the workspace's `rust-version`, written out, so that rustup takes no other.
fn toolchain(text: &str, rust_version: &str) -> Option<String> {
    let channel = text
        .lines()
        .find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'));
    let is_release = |channel: &str| {
        let patch = channel
            .strip_prefix(rust_version)
            .and_then(|rest| rest.strip_prefix('.'));
        patch.is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit()))
    };
    (!channel.is_some_and(is_release)).then(|| {
        format!(
            "has no line `channel = \"{rust_version}.PATCH\"`, a release of the `rust-version` in Cargo.toml; `.ci/run` reads it"
        )
    })
}

/// The version of the citation is the workspace's.
fn citation(text: &str, version: &str) -> Option<String> {
    (!text.lines().any(|line| line == format!("version: {version}")))
        .then(|| format!("has no line `version: {version}`, the version in Cargo.toml"))
}

/// The changelog has a heading for the workspace's version.
fn changelog(text: &str, version: &str) -> Option<String> {
    let is_heading = |line: &str| {
        let name = line.strip_prefix("## ").unwrap_or_default();
        name.split([',', ' ']).next() == Some(version)
    };
    (!text.lines().any(is_heading))
        .then(|| format!("has no heading `## {version}`, the version in Cargo.toml"))
}
