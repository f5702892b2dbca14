//! The last word is flow-config's: what it refuses, or says that it would not read, becomes a comment with its message.

use flow_config::{Diagnostic, Severity};

use crate::draft::{Draft, Entry};
use crate::emit::emit;

/// Writes the TOML, and takes out of it what flow-config does not accept, until it accepts the rest.
pub(crate) fn finish(draft: &mut Draft<'_>) -> String {
    loop {
        let toml = emit(draft);
        let diagnostics = match flow_config::parse_named(draft.catalog, "config.toml", &toml, &[]) {
            Ok(resolved) => resolved.report.diagnostics,
            Err(report) => report.diagnostics,
        };
        let demotable = |diagnostic: &&Diagnostic| {
            diagnostic.severity == Severity::Error || diagnostic.code == flow_config::codes::RULE_UNUSED
        };
        // What the verdict says that flow-train does not have is refused, and stays.
        let asked = |diagnostic: &&Diagnostic| {
            draft
                .entries
                .iter()
                .any(|entry| entry.asked && entry.to == diagnostic.path)
        };
        let diagnostics: Vec<Diagnostic> = diagnostics
            .into_iter()
            .filter(|diagnostic| !asked(&diagnostic))
            .collect();
        let found = diagnostics
            .iter()
            .filter(demotable)
            .find_map(|diagnostic| Some((culprit(&draft.entries, &diagnostic.path)?, diagnostic)));
        let Some((index, diagnostic)) = found else {
            for diagnostic in &diagnostics {
                let text = format!("flow-train warns: {}", sentence(diagnostic));
                draft.remark(&diagnostic.path, text);
            }
            return if diagnostics.is_empty() { toml } else { emit(draft) };
        };
        demote(draft, index, diagnostic);
    }
}

fn sentence(diagnostic: &Diagnostic) -> String {
    match &diagnostic.help {
        Some(help) => format!("{}; {help}", diagnostic.message),
        None => diagnostic.message.clone(),
    }
}

/// The entry that a diagnostic speaks of: the one at its path, or the one above it.
fn culprit(entries: &[Entry], path: &str) -> Option<usize> {
    let covers = |entry: &Entry, index: usize| {
        let place = if entry.in_list {
            let before = entries.iter().take(index).filter(|other| other.to == entry.to);
            format!("{}.{}", entry.to, before.count())
        } else {
            entry.to.clone()
        };
        path == place
            || path
                .strip_prefix(&place)
                .is_some_and(|rest| rest.starts_with('.'))
    };
    let exact = (0..entries.len()).find(|index| covers(&entries[*index], *index));
    // A diagnostic on a whole table, such as a list of rewards, is about the last thing in it.
    exact.or_else(|| {
        entries.iter().rposition(|entry| {
            entry.to == path
                || entry
                    .to
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.starts_with('.'))
        })
    })
}

fn demote(draft: &mut Draft<'_>, index: usize, diagnostic: &Diagnostic) {
    let entry = draft.entries.remove(index);
    let written = entry.value.to_string();
    let reason = format!(
        "to `{} = {}` flow-train says: {}",
        entry.to,
        written.trim(),
        sentence(diagnostic)
    );
    let section = entry.to.split('.').next().unwrap_or("").to_owned();
    if entry.to == "rewards" {
        draft.need("a reward in the place of one that flow-train refuses");
    }
    if entry.origins.is_empty() {
        let text = format!("Flow-Factory's default ({}) is left out: {reason}", entry.text);
        draft.remark(&entry.to, text);
    }
    for origin in &entry.origins {
        draft.keep(&section, origin, reason.clone());
    }
}
