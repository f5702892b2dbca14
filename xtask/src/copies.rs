//! Code that pages show: a copy of a part of a source file, under a comment that says which.
//!
//! `<!-- code: FILE:PART -->` stands above a block of code. The part is what FILE has between `ANCHOR: PART` and
//! `ANCHOR_END: PART`. A page reads so in the book and on a repository's web page alike, and the copy cannot grow old.

#[cfg(test)]
mod tests;

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

const START: &str = "<!-- code: ";
const END: &str = " -->";

/// A page with every copy as its source is. The page as it stands if all are.
///
/// # Errors
/// If a comment has no block of code below it, or names what is not there.
pub fn renewed(page: &Path, text: &str) -> Result<String> {
    let mut renewed = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        renewed.push_str(line);
        renewed.push('\n');
        let Some(target) = line
            .trim()
            .strip_prefix(START)
            .and_then(|rest| rest.strip_suffix(END))
        else {
            continue;
        };
        let mut fence = lines.next().unwrap_or_default();
        // A blank line between the two is how some editors format it.
        if fence.is_empty() {
            renewed.push('\n');
            fence = lines.next().unwrap_or_default();
        }
        if !fence.starts_with("```") {
            bail!("`{target}` has no block of code below it");
        }
        if !lines.by_ref().any(|line| line.trim() == "```") {
            bail!("the block of code below `{target}` does not end");
        }
        renewed.push_str(fence);
        renewed.push('\n');
        renewed.push_str(&part(page, target)?);
        renewed.push_str("```\n");
    }
    Ok(renewed)
}

/// The part of a file that a page names, without the indentation that all of its lines have.
fn part(page: &Path, target: &str) -> Result<String> {
    let (file, name) = target
        .rsplit_once(':')
        .with_context(|| format!("`{target}` names no part: FILE:PART"))?;
    let path = page.parent().unwrap_or(Path::new(".")).join(file);
    let source = fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
    let is_mark = |line: &str, mark: &str| line.trim_end().ends_with(&format!("{mark}: {name}"));
    let mut lines = source.lines().skip_while(|line| !is_mark(line, "ANCHOR"));
    lines
        .next()
        .with_context(|| format!("{file} has no part `{name}`"))?;
    let mut part = Vec::new();
    loop {
        match lines.next() {
            Some(line) if is_mark(line, "ANCHOR_END") => break,
            // Other parts may begin and end within this one.
            Some(line) if line.contains("ANCHOR: ") || line.contains("ANCHOR_END: ") => {}
            Some(line) => part.push(line),
            None => bail!("the part `{name}` of {file} does not end"),
        }
    }
    let indentation = part
        .iter()
        .filter(|line| !line.is_empty())
        .map(|line| line.len() - line.trim_start().len())
        .min()
        .unwrap_or(0);
    let part = part
        .iter()
        .map(|line| format!("{}\n", line.get(indentation..).unwrap_or_default()));
    Ok(part.collect())
}
