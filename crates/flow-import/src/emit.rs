//! The TOML as people read it: sections in flow-train's order, comments where something needs attention, and what was
//! not converted beside where it would belong.

use std::collections::BTreeMap;

use toml_edit::Value;

use crate::draft::{Draft, Entry, Kept};
use crate::note::{Outcome, Rank};
use crate::verdict::Verdict;

/// Width of a line of comment.
const WIDTH: usize = 110;

/// Sections in the order of flow-train's config.
const SECTIONS: [&str; 22] = [
    "run",
    "device",
    "model",
    "lora",
    "data",
    "pretrain",
    "rewards",
    "eval_rewards",
    "scheduler",
    "sampling",
    "algorithm",
    "advantage",
    "optimizer",
    "ema",
    "evaluation",
    "checkpoints",
    "logging",
    "audit",
    "watch",
    "acceleration",
    "checkpointing",
    "runtime",
];

/// Writes the draft as TOML.
pub(crate) fn emit(draft: &Draft<'_>) -> String {
    let mut text = head(draft);
    for section in SECTIONS {
        let mut tables: BTreeMap<_, Vec<&Entry>> = BTreeMap::new();
        for entry in draft.entries.iter().filter(|entry| top(&entry.to) == section) {
            let table = if entry.in_list {
                entry.to.as_str()
            } else {
                parent(&entry.to)
            };
            // What is in force in both stages stands before what is in force in rollouts only.
            let place = (table.matches('.').count(), table == "acceleration.rollout", table);
            tables.entry(place).or_default().push(entry);
        }
        for ((.., table), mut entries) in tables {
            entries.sort_by_key(|entry| draft.rank(&entry.to));
            write_table(&mut text, table, &entries);
        }
        write_kept(
            &mut text,
            draft.kept.iter().filter(|kept| kept.section == section),
            "",
        );
    }
    let homeless = draft
        .kept
        .iter()
        .filter(|kept| !SECTIONS.contains(&kept.section.as_str()));
    write_kept(&mut text, homeless, "# Without a counterpart in flow-train:\n");
    text
}

fn head(draft: &Draft<'_>) -> String {
    let mut text = String::from("# Converted from a config of Flow-Factory.\n");
    let verdict = Verdict::of(&draft.because, &draft.needs);
    comment(&mut text, &format!("Verdict: {verdict}."));
    let remarks: Vec<_> = draft
        .notes
        .iter()
        .filter(|note| note.outcome == Outcome::Remark)
        .collect();
    let attention = draft.entries.iter().filter(|entry| is_marked(entry)).count() + remarks.len();
    let kept = draft.kept.len();
    if kept + attention > 0 {
        let line = format!(
            "Marked \"Attention\", to look at: {attention}. Marked \"Not converted\", kept as comments: {kept}."
        );
        comment(&mut text, &line);
    }
    for note in remarks {
        comment(&mut text, &format!("Attention: {}.", note.text));
    }
    text.push_str("config_version = 1\n");
    text
}

fn is_marked(entry: &Entry) -> bool {
    entry.rank != Rank::Detail
}

/// The text above an entry, if it has one.
fn explanation(text: &mut String, entry: &Entry) {
    let mark = match entry.rank {
        _ if entry.asked => "Not in flow-train: ",
        Rank::Detail => "",
        Rank::Verdict | Rank::Result => "Attention: ",
    };
    if entry.explained {
        let mut words = entry.text.chars();
        let first = words.next().map(|first| match mark {
            "" => first.to_uppercase().to_string(),
            _ => first.to_string(),
        });
        comment(
            text,
            &format!("{mark}{}{}.", first.unwrap_or_default(), words.as_str()),
        );
    }
}

fn top(path: &str) -> &str {
    path.split('.').next().unwrap_or(path)
}

fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}

fn write_table(text: &mut String, table: &str, entries: &[&Entry]) {
    let (in_list, single): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(|entry| entry.in_list);
    if !single.is_empty() {
        text.push_str(&format!("\n[{table}]\n"));
    }
    for entry in single {
        explanation(text, entry);
        let key = entry.to.rsplit('.').next().unwrap_or(&entry.to);
        let value = &entry.value;
        let behind = if entry.origins.is_empty() {
            " # Flow-Factory's default"
        } else {
            ""
        };
        text.push_str(&format!("{key} = {}{behind}\n", trimmed(value)));
    }
    for entry in in_list {
        text.push('\n');
        explanation(text, entry);
        text.push_str(&format!("[[{table}]]\n"));
        for (key, value) in entry
            .value
            .as_inline_table()
            .into_iter()
            .flat_map(|table| table.iter())
        {
            text.push_str(&format!("{key} = {}\n", trimmed(value)));
        }
    }
}

fn trimmed(value: &Value) -> String {
    value.to_string().trim().to_owned()
}

fn write_kept<'k>(text: &mut String, kept: impl Iterator<Item = &'k Kept>, title: &str) {
    for (index, Kept { origin, reason, .. }) in kept.enumerate() {
        if index == 0 {
            text.push('\n');
            text.push_str(title);
        }
        let line = format!(
            "Not converted: {}: {} (line {})",
            origin.from, origin.value, origin.place.line
        );
        text.push_str(&format!("# {line}\n"));
        let mut wrapped = String::new();
        comment(&mut wrapped, &format!("{reason}."));
        for line in wrapped.lines() {
            text.push_str(&format!("#   {}\n", line.strip_prefix("# ").unwrap_or(line)));
        }
    }
}

/// A comment, wrapped between words. Texts may hold words of the user, so no control character gets through.
fn comment(text: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH && line != "#" {
            text.push_str(&line);
            text.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.extend(word.chars().filter(|c| !c.is_control()));
    }
    text.push_str(&line);
    text.push('\n');
}
