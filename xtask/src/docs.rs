//! `cargo xtask docs`: the book's chapters exist, links lead somewhere, code is what its source is, and mdBook builds it
//! where installed.

use crate::copies;
use crate::process;
use crate::terminal::say;
use crate::text::{anchors, includes, links};
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SUMMARY: &str = "docs/src/SUMMARY.md";

/// Renews copies of code, checks, then builds.
pub fn run(workspace: &Workspace) -> Result<()> {
    for page in pages(workspace)? {
        let text = fs::read_to_string(&page)?;
        let name = workspace.relative(&page).display();
        let renewed = copies::renewed(&page, &text).with_context(|| name.to_string())?;
        if renewed != text {
            fs::write(&page, renewed)?;
            say!("renewed the code of {name}");
        }
    }
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
    let pages = pages(workspace)?;
    let mut seen = 0;
    for page in &pages {
        let text = fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
        let name = workspace.relative(page).display();
        for line in includes(&text) {
            problems.push(format!(
                "{name}:{line}: a web page of the repository does not follow `#include`; write `<!-- code: FILE:PART -->` \
                 above a block of code, and `cargo xtask docs` fills it"
            ));
        }
        match copies::renewed(page, &text) {
            Ok(renewed) if renewed == text => {}
            Ok(_) => problems.push(format!(
                "{name}: its code is not what the source is; run `cargo xtask docs`"
            )),
            Err(error) => problems.push(format!("{name}: {error:#}")),
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

/// Every page of the repository.
fn pages(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let files = workspace.files()?.into_iter();
    Ok(files
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect())
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
