//! From bytes to rows.

use super::error::{LineProblem, Wrong};
use super::{PromptEntry, PromptNote};
use flow_registry::repeated_key;
use serde_json::{Deserializer, Map, Value};
use std::collections::HashMap;

/// A prompt as it stands in a file.
pub(super) struct Row {
    pub text: String,
    pub metadata: Map<String, Value>,
    pub line: usize,
}

/// Beginnings of files that are no text, and what they are.
const OTHERS: [(&[u8], &str); 8] = [
    (
        b"version https://git-lfs.github.com/spec/",
        "it is a pointer of Git LFS, and the file itself was not fetched: run `git lfs pull` in its folder",
    ),
    (b"PAR1", "it is a Parquet file; write its prompts as `.jsonl`"),
    (b"ARROW1", "it is an Arrow file; write its prompts as `.jsonl`"),
    (b"\x1f\x8b", "it is compressed (gzip); unpack it"),
    (
        b"PK\x03\x04",
        "it is a zip archive or a spreadsheet; save the prompts as `.csv`",
    ),
    (
        b"<!",
        "it is a page of HTML, as a server answers that refuses a download; download the file itself",
    ),
    (b"\xff\xfe", "it is in UTF-16; save it in UTF-8"),
    (b"\xfe\xff", "it is in UTF-16; save it in UTF-8"),
];

/// The text of a file: without a byte order mark, and with lines that end in `\n` alone.
pub(super) fn text(bytes: &[u8]) -> Result<String, Wrong> {
    if let Some((_, what)) = OTHERS.iter().find(|(beginning, _)| bytes.starts_with(beginning)) {
        return Err(Wrong::File((*what).into()));
    }
    if bytes.contains(&0) {
        return Err(Wrong::File(
            "it has zero bytes in it, so it is no text in UTF-8 (in UTF-16 every second byte of English is zero); save it in UTF-8".into(),
        ));
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        let lines = bytes.split(|byte| *byte == b'\n').enumerate();
        let problems = lines.filter_map(|(index, line)| {
            let at = std::str::from_utf8(line).err()?.valid_up_to();
            Some(LineProblem {
                line: index + 1,
                problem: format!(
                    "byte {} (0x{:02x}) is no UTF-8, behind \"{}\"; save the file in UTF-8",
                    at + 1,
                    line[at],
                    end_of(&String::from_utf8_lossy(&line[..at]))
                ),
            })
        });
        return Err(Wrong::Lines(problems.collect()));
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    Ok(text.replace("\r\n", "\n").replace('\r', "\n"))
}

/// As [`text`], with what is wrong in words.
pub(crate) fn text_in_words(bytes: &[u8]) -> Result<String, String> {
    text(bytes).map_err(|wrong| match wrong {
        Wrong::File(problem) => problem,
        Wrong::Lines(problems) => problems.first().map(ToString::to_string).unwrap_or_default(),
    })
}

/// The last letters before a fault, by which a person finds it.
fn end_of(text: &str) -> String {
    let letters: Vec<char> = text.chars().rev().take(20).collect();
    letters.into_iter().rev().collect()
}

/// One prompt a line, without white space around it.
pub(super) fn lines(text: &str) -> Vec<Row> {
    let lines = text.split('\n').enumerate();
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| Row {
            text: line.trim().to_owned(),
            metadata: Map::new(),
            line: index + 1,
        })
        .collect()
}

/// One object a line, or one text in quotes.
pub(super) fn json_lines(text: &str, key: &str) -> Result<Vec<Row>, Wrong> {
    let mut rows = Vec::new();
    let mut problems = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        match json_line(line, key) {
            Ok((text, metadata)) => rows.push(Row {
                text,
                metadata,
                line: index + 1,
            }),
            Err(problem) => problems.push(LineProblem {
                line: index + 1,
                problem,
            }),
        }
    }
    if problems.is_empty() {
        return Ok(rows);
    }
    let begins_as_list = text.trim_start().starts_with('[') || text.trim() == "{";
    if begins_as_list && serde_json::from_str::<Value>(text).is_ok() {
        return Err(Wrong::File(
            "it is one piece of JSON over several lines; write one object a line (`jq -c '.[]'` does it)"
                .into(),
        ));
    }
    Err(Wrong::Lines(problems))
}

fn json_line(line: &str, key: &str) -> Result<(String, Map<String, Value>), String> {
    let value: Value = serde_json::from_str(line).map_err(|error| {
        // The error counts lines of the one line it got.
        let text = error.to_string();
        let text = text.split(" at line ").next().unwrap_or_default();
        format!("no JSON: {text} at column {}", error.column())
    })?;
    // Of keys that are the same, the map of `value` has the last one.
    if value.is_object()
        && let Ok(Some(key)) = repeated_key(&mut Deserializer::from_str(line))
    {
        return Err(format!("`{key}` is there twice; keep one of them"));
    }
    match value {
        Value::String(text) => prompt(text).map(|text| (text, Map::new())),
        Value::Object(mut object) => match object.shift_remove(key) {
            Some(Value::String(text)) => prompt(text).map(|text| (text, object)),
            Some(other) => Err(format!("`{key}` is {other}, and a prompt is a text")),
            None => Err(without(key, object.keys().map(String::as_str))),
        },
        other => Err(format!(
            "it is {}, and a line is an object with `{key}`, or a text in quotes",
            kind(&other)
        )),
    }
}

/// Refuses a prompt of white space alone.
pub(super) fn prompt(text: String) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("the prompt is empty; write one, or take the line out".into());
    }
    Ok(text)
}

/// The prompts' key is not among `names`.
pub(crate) fn without<'a>(key: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    let nearest = flow_registry::nearest(key, names.clone())
        .map(|near| format!(" (did you mean `{near}`?)"))
        .unwrap_or_default();
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => format!("there is no `{key}`"),
        names => format!("there is no `{key}` among {}{nearest}", names.join(", ")),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Leaves out rows that are there again with the same metadata.
pub(super) fn distinct(rows: Vec<Row>) -> (Vec<PromptEntry>, Vec<PromptNote>) {
    let mut entries: Vec<PromptEntry> = Vec::new();
    let mut of_text: HashMap<String, Vec<usize>> = HashMap::new();
    let mut repeated = Vec::new();
    for row in rows {
        let same = of_text.entry(row.text.clone()).or_default();
        if same.iter().any(|index| entries[*index].metadata == row.metadata) {
            repeated.push(row.line);
            continue;
        }
        same.push(entries.len());
        entries.push(PromptEntry {
            id: entries.len() as u32,
            text: row.text,
            metadata: row.metadata,
            line: row.line,
        });
    }
    let several = of_text.values().filter(|same| same.len() > 1).count();
    let mut notes = Vec::new();
    if !repeated.is_empty() {
        notes.push(PromptNote::Repeated(repeated));
    }
    if several > 0 {
        notes.push(PromptNote::SeveralMetadata(several));
    }
    (entries, notes)
}
