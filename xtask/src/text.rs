//! Markdown as far as the tasks read it: links and headings, code left out.

#[cfg(test)]
mod tests;

/// A link with the line it is on, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Line.
    pub line: usize,
    /// What it points to.
    pub target: String,
}

/// Lines outside fenced code, counted from 1, with inline code blanked.
fn prose(markdown: &str) -> impl Iterator<Item = (usize, String)> {
    let mut fenced = false;
    markdown.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then(|| (index + 1, without_code(line)))
    })
}

fn without_code(line: &str) -> String {
    line.split('`')
        .enumerate()
        .map(|(index, part)| if index % 2 == 0 { part } else { "" })
        .collect()
}

/// Every inline link and image.
pub fn links(markdown: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (line, text) in prose(markdown) {
        let mut rest = text.as_str();
        while let Some(start) = rest.find("](") {
            rest = &rest[start + 2..];
            let Some(end) = rest.find(')') else { break };
            found.push(Link {
                line,
                target: rest[..end].trim().to_owned(),
            });
            rest = &rest[end..];
        }
    }
    found
}

/// The lines, counted from 1, of every `{{#include …}}` of mdBook.
pub fn includes(markdown: &str) -> Vec<usize> {
    let lines = (1..).zip(markdown.lines());
    lines
        .filter(|(_, line)| line.trim_start().starts_with("{{#include "))
        .map(|(number, _)| number)
        .collect()
}

/// The anchors of the headings, as GitHub and mdBook make them.
pub fn anchors(markdown: &str) -> Vec<String> {
    let mut fenced = false;
    let mut found = Vec::new();
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading
            .trim()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        found.push(
            kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() })
                .collect(),
        );
    }
    found
}
