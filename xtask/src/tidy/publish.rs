//! Every crate that users may ask crates.io for is ready to be packed.

#[cfg(test)]
mod tests;

use super::Problems;
use crate::workspace::{Member, Workspace};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Component, Path, PathBuf};
use toml::{Table, Value};

/// Members that are not for crates.io, with the reason.
const KEPT_HERE: &[(&str, &str)] = &[
    ("cubecl-llvm", "stands in for a published crate"),
    ("flow-example-accelerator", "the code of the guide"),
    ("flow-example-plugins", "the code of the guides"),
    ("test-catalog", "for tests alone"),
    ("test-support", "for tests alone"),
    (
        "workspace-hack",
        "crates.io has an empty crate of this name, for users",
    ),
    ("xtask", "development tasks"),
];

/// Files that each package has a copy of, since a package holds nothing from outside its folder.
const COPIED: &[&str] = &["LICENSE-MIT", "LICENSE-APACHE"];

/// Limits of crates.io.
const MOST_KEYWORDS: usize = 5;
const LONGEST_KEYWORD: usize = 20;

/// Checks metadata, licences, dependencies and included files.
pub fn check(workspace: &Workspace, members: &[Member], problems: &mut Problems) -> Result<()> {
    let root: Table = fs::read_to_string(workspace.path("Cargo.toml"))?.parse()?;
    let known = Known {
        version: root["workspace"]["package"]["version"]
            .as_str()
            .context("the workspace has no version")?,
        dependencies: root["workspace"]["dependencies"]
            .as_table()
            .context("the workspace has no dependencies")?,
        members: members.iter().map(|member| &*member.name).collect(),
    };
    for problem in known.problems_of_workspace() {
        problems.file(Path::new("Cargo.toml"), problem);
    }
    for member in members {
        let manifest: Table = fs::read_to_string(member.path.join("Cargo.toml"))?.parse()?;
        let file = workspace.relative(&member.path).join("Cargo.toml");
        let is_kept = KEPT_HERE.iter().any(|(name, _)| *name == member.name);
        for problem in known.problems(&manifest, is_kept) {
            problems.file(&file, problem);
        }
        if is_kept {
            continue;
        }
        for name in COPIED {
            let copy = fs::read(member.path.join(name)).ok();
            if copy != Some(fs::read(workspace.path(name))?) {
                let copy = workspace.relative(&member.path).join(name);
                problems.file(&copy, format!("is not a copy of the {name} at the top; copy it"));
            }
        }
        for source in rust_files(&member.path.join("src"))? {
            let text = fs::read_to_string(&source)?;
            for target in included(&text) {
                let from = source.strip_prefix(&member.path).unwrap_or(&source);
                if leaves(from, &target) {
                    problems.file(
                        workspace.relative(&source),
                        format!("includes `{target}`, which no package of the crate holds"),
                    );
                }
            }
        }
    }
    Ok(())
}

/// What the manifest of the workspace says of all members.
struct Known<'a> {
    version: &'a str,
    dependencies: &'a Table,
    members: Vec<&'a str>,
}

impl Known<'_> {
    fn is_kept(name: &str) -> bool {
        KEPT_HERE.iter().any(|(kept, _)| *kept == name)
    }

    /// A dependency on a member needs a version, which is what is left of it in a package.
    fn problems_of_workspace(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, value) in self.dependencies {
            let is_ours = self.members.contains(&&**name) && !Self::is_kept(name);
            if is_ours && value.get("version").and_then(Value::as_str) != Some(self.version) {
                problems.push(format!(
                    "the dependency `{name}` has not the version {} of the workspace beside its path",
                    self.version
                ));
            }
        }
        problems
    }

    fn problems(&self, manifest: &Table, is_kept: bool) -> Vec<String> {
        let package = &manifest["package"];
        let mut problems = Vec::new();
        if is_kept {
            if package.get("publish") != Some(&Value::Boolean(false)) {
                problems.push("is not for crates.io and has no `publish = false`".to_owned());
            }
            return problems;
        }
        for key in [
            "version",
            "rust-version",
            "license",
            "repository",
            "documentation",
            "readme",
        ] {
            if package.get(key).is_none() {
                problems.push(format!("has no `{key}`"));
            }
        }
        let texts = |key: &str| -> Vec<&str> {
            let list = package.get(key).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(Value::as_str).collect()
        };
        let keywords = texts("keywords");
        if keywords.is_empty() || MOST_KEYWORDS < keywords.len() {
            problems.push(format!("needs 1 to {MOST_KEYWORDS} `keywords`"));
        }
        for keyword in keywords {
            let letters = |c: char| c.is_ascii_alphanumeric() || "-_+".contains(c);
            if LONGEST_KEYWORD < keyword.len() || !keyword.chars().all(letters) {
                problems.push(format!(
                    "the keyword `{keyword}` is not of at most {LONGEST_KEYWORD} ASCII letters, digits, `-`, `_`, `+`"
                ));
            }
        }
        if texts("categories").is_empty() {
            problems.push("has no `categories`".to_owned());
        }
        if package
            .get("metadata")
            .and_then(|metadata| metadata.get("docs"))
            .is_none()
        {
            problems.push("has no `[package.metadata.docs.rs]`".to_owned());
        }
        for table in ["dependencies", "build-dependencies"] {
            for name in self.ours(manifest.get(table)) {
                let value = &manifest[table][name];
                if value.get("workspace").is_none() {
                    problems.push(format!(
                        "the dependency `{name}` is not the workspace's: `workspace = true`"
                    ));
                }
                // `workspace-hack` is the one of crates.io there.
                if Self::is_kept(name) && name != "workspace-hack" {
                    problems.push(format!("depends on `{name}`, which is not for crates.io"));
                }
            }
        }
        for name in self.ours(manifest.get("dev-dependencies")) {
            // Of those that are kept here the workspace says no version either.
            if Self::is_kept(name) {
                continue;
            }
            let value = &manifest["dev-dependencies"][name];
            // Of those that are kept here the workspace says no version either.
            if Self::is_kept(name) {
                continue;
            }
            if value.get("path").is_none() || value.get("version").is_some() {
                problems.push(format!(
                    "the dev-dependency `{name}` has a version, so that crates wait for each other; write \
                     `{{ path = \"…\" }}` alone, which a package leaves out"
                ));
            }
        }
        problems
    }

    /// The members among the dependencies of a table.
    fn ours<'t>(&self, table: Option<&'t Value>) -> Vec<&'t str> {
        let names = table.and_then(Value::as_table).into_iter().flat_map(Table::keys);
        names
            .map(String::as_str)
            .filter(|name| self.members.contains(name))
            .collect()
    }
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

/// What `include_str!` and `include_bytes!` name, if it is written as a text.
fn included(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for start in ["include_str!(", "include_bytes!("] {
        for rest in source.split(start).skip(1) {
            let rest = rest
                .trim_start()
                .strip_prefix("concat!(")
                .unwrap_or(rest)
                .trim_start();
            if let Some((target, _)) = rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// Whether `target`, as the file `from` of a crate names it, is outside the crate.
fn leaves(from: &Path, target: &str) -> bool {
    let folder = from.parent().unwrap_or(Path::new(""));
    let mut depth = 0i32;
    for part in folder.join(target).components() {
        match part {
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            _ => {}
        }
        if depth < 0 {
            return true;
        }
    }
    false
}
