//! Tables after RFC 4180, with the line of everything that is wrong: a quote that is not closed, and a comma in a prompt without
//! quotes, would otherwise make prompts of something else without a word.

use super::error::{LineProblem, Wrong};
use super::read::{Row, prompt, without};
use serde_json::{Map, Value};

/// What may part columns, likeliest first.
const DELIMITERS: [char; 3] = [',', '\t', ';'];

/// A row of a table.
struct Record {
    fields: Vec<String>,
    line: usize,
}

/// The rows of a table whose first row names the columns.
pub(super) fn table(text: &str, key: &str) -> Result<Vec<Row>, Wrong> {
    let (records, column) = split(text, key)?;
    let mut records = records.into_iter();
    let Some(header) = records.next() else {
        return Ok(Vec::new());
    };
    let mut rows = Vec::new();
    let mut problems = Vec::new();
    for record in records {
        let line = record.line;
        match row(record, &header.fields, column) {
            Ok(row) => rows.push(row),
            Err(problem) => problems.push(LineProblem { line, problem }),
        }
    }
    if problems.is_empty() {
        return Ok(rows);
    }
    Err(Wrong::Lines(problems))
}

/// The records, and the column of the prompts, by the delimiter under which there is one.
fn split(text: &str, key: &str) -> Result<(Vec<Record>, usize), Wrong> {
    let mut first = None;
    for delimiter in DELIMITERS {
        // A quote that is not closed is one whatever parts the columns, but only the right delimiter finds the right one.
        let records = match records(text, delimiter) {
            Ok(records) => records,
            Err(problem) => {
                first.get_or_insert(Wrong::Lines(vec![problem]));
                continue;
            }
        };
        let Some(header) = records.first() else {
            return Ok((records, 0));
        };
        let exact = header.fields.iter().position(|name| name == key);
        let alike = || {
            header
                .fields
                .iter()
                .position(|name| name.trim().eq_ignore_ascii_case(key))
        };
        if let Some(column) = exact.or_else(alike) {
            return Ok((records, column));
        }
        let names = header.fields.iter().map(String::as_str);
        first.get_or_insert_with(|| {
            Wrong::Lines(vec![LineProblem {
                line: header.line,
                problem: format!(
                    "{}; the first row of a table names its columns",
                    without(key, names)
                ),
            }])
        });
    }
    Err(first.unwrap_or_else(|| Wrong::File("it is no table".into())))
}

fn row(record: Record, names: &[String], column: usize) -> Result<Row, String> {
    let (found, wanted) = (record.fields.len(), names.len());
    if found != wanted {
        return Err(format!(
            "{found} column(s), and the first row names {wanted}; a prompt with a comma or a line break in it stands in double quotes"
        ));
    }
    let line = record.line;
    let mut metadata = Map::new();
    let mut text = String::new();
    for (index, field) in record.fields.into_iter().enumerate() {
        if index == column {
            text = field;
        } else {
            metadata.insert(names[index].trim().to_owned(), Value::String(field));
        }
    }
    Ok(Row {
        text: prompt(text)?,
        metadata,
        line,
    })
}

/// Parts `text` into records; lines without anything are left out.
fn records(text: &str, delimiter: char) -> Result<Vec<Record>, LineProblem> {
    let mut records = Vec::new();
    let mut letters = text.chars().peekable();
    let mut line = 1;
    while letters.peek().is_some() {
        let begins = line;
        let mut fields = vec![String::new()];
        let mut quoted = false;
        loop {
            let field = fields.last_mut().expect("a record has a field");
            if letters.peek() == Some(&'"') && field.is_empty() && !quoted {
                letters.next();
                quoted = true;
                line = inside_quotes(&mut letters, field, line)?;
                match letters.peek() {
                    None | Some('\n') => {}
                    Some(next) if *next == delimiter => {}
                    Some(next) => {
                        return Err(LineProblem {
                            line,
                            problem: format!(
                                "behind a closing quote stands `{next}`; within quotes a quote is written twice (\"\")"
                            ),
                        });
                    }
                }
                continue;
            }
            match letters.next() {
                None => break,
                Some('\n') => {
                    line += 1;
                    break;
                }
                Some(letter) if letter == delimiter => {
                    fields.push(String::new());
                    quoted = false;
                }
                Some(letter) => field.push(letter),
            }
        }
        let nothing = fields.len() == 1 && fields[0].trim().is_empty() && !quoted;
        if !nothing {
            records.push(Record { fields, line: begins });
        }
    }
    Ok(records)
}

/// Reads up to the closing quote and gives the line it is on.
fn inside_quotes(
    letters: &mut std::iter::Peekable<std::str::Chars<'_>>,
    field: &mut String,
    begins: usize,
) -> Result<usize, LineProblem> {
    let mut line = begins;
    loop {
        match letters.next() {
            Some('"') if letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            Some('"') => return Ok(line),
            Some(letter) => {
                line += usize::from(letter == '\n');
                field.push(letter);
            }
            None => {
                return Err(LineProblem {
                    line: begins,
                    problem: "a quote begins here and is never closed; within quotes a quote is written twice (\"\")".into(),
                });
            }
        }
    }
}
