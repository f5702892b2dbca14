//! `cargo xtask docs`: the book's chapters exist, links lead somewhere, and mdBook builds it where installed.

use crate::process;
use crate::terminal::say;
use crate::text::{anchors, includes, links};
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SUMMARY: &str = "docs/src/SUMMARY.md";

/// Checks, then builds.
pub fn run(workspace: &Workspace) -> Result<()> {
    check(workspace)?;
    if process::exists("mdbook") {
        process::run(Command::new("mdbook").arg("build").arg(workspace.path("docs")))?;
        say!("the book is in docs/book");
    } else {
        say!(
            "mdbook is not installed, so the book was checked and not built; `cargo install mdbook` brings it"
        );
    }
    Ok(())
}

/// Fails if a chapter is missing, is not in the summary, or a link leads nowhere.
pub fn check(workspace: &Workspace) -> Result<()> {
    let mut problems = Vec::new();
    let pages: Vec<PathBuf> = workspace
        .files()?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect();
    let mut seen = 0;
    for page in &pages {
        let text = fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
        for include in includes(&text) {
            if let Some(problem) = missing_include(page, &include.target) {
                let page = workspace.relative(page).display();
                problems.push(format!("{page}:{}: {problem}", include.line));
            }
        }
        for link in links(&text) {
            seen += 1;
            if let Some(problem) = problem(page, &text, &link.target)? {
                let page = workspace.relative(page).display();
                problems.push(format!("{page}:{}: {problem}", link.line));
            }
        }
    }
    let summary =
        fs::read_to_string(workspace.path(SUMMARY)).with_context(|| format!("cannot read {SUMMARY}"))?;
    let folder = workspace.path("docs/src");
    let chapters: Vec<PathBuf> = links(&summary)
        .iter()
        .map(|link| folder.join(&link.target))
        .collect();
    for page in pages
        .iter()
        .filter(|page| page.starts_with(&folder) && !page.ends_with("SUMMARY.md"))
    {
        if !chapters.contains(page) {
            problems.push(format!(
                "{}: not in {SUMMARY}",
                workspace.relative(page).display()
            ));
        }
    }
    if !problems.is_empty() {
        bail!(
            "the documentation has {} problems:\n  {}",
            problems.len(),
            problems.join("\n  ")
        );
    }
    say!("{} pages, {} chapters, {seen} links", pages.len(), chapters.len());
    Ok(())
}

/// What is wrong with an include of `page`, if anything: a file, or a part of one between `ANCHOR: name` and
/// `ANCHOR_END: name`. mdBook would leave the place empty.
fn missing_include(page: &Path, target: &str) -> Option<String> {
    let (file, anchor) = match target.split_once(':') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (target, None),
    };
    let path = page.parent().unwrap_or(Path::new(".")).join(file);
    let Ok(text) = fs::read_to_string(path) else {
        return Some(format!("includes {file}, which cannot be read"));
    };
    let has = |mark: &str, name: &str| {
        let mark = format!("{mark}: {name}");
        text.lines().any(|line| line.trim_end().ends_with(&mark))
    };
    let name = anchor?;
    (!has("ANCHOR", name) || !has("ANCHOR_END", name))
        .then(|| format!("includes `{name}` of {file}, which has no such part"))
}

/// What is wrong with a link of `page`, if anything. Addresses elsewhere are not followed.
fn problem(page: &Path, text: &str, target: &str) -> Result<Option<String>> {
    if target.contains("://") || target.starts_with("mailto:") || target.starts_with('<') {
        return Ok(None);
    }
    if target.is_empty() {
        return Ok(Some("a link to nothing".into()));
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let wanted = if file.is_empty() {
        page.to_owned()
    } else {
        page.parent().unwrap_or(page).join(file)
    };
    if !wanted.exists() {
        return Ok(Some(format!("`{target}` does not exist")));
    }
    if anchor.is_empty() || wanted.extension().is_none_or(|end| end != "md") {
        return Ok(None);
    }
    let there = if file.is_empty() {
        text.to_owned()
    } else {
        fs::read_to_string(&wanted)?
    };
    Ok((!anchors(&there).iter().any(|known| known == anchor))
        .then(|| format!("`{}` has no heading `#{anchor}`", wanted.display())))
}
