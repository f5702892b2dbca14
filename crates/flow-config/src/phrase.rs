//! How types, ranges, sections and values are called in messages.

use serde_json::Value as Json;

use crate::schema::{allowed_texts, resolve, tag_of};
use crate::tree::{Node, Segment, Value, dotted, quoted_key};

pub(crate) fn elsewhere_help(key: &str, sections: &[&str]) -> String {
    let places = sections.iter().map(|section| match *section {
        "" => "the top of the file".to_owned(),
        "rewards" | "eval_rewards" => format!("`[[{section}]]`"),
        section => format!("`[{section}]`"),
    });
    format!("`{}` is a key of {}", quoted_key(key), join(places))
}

pub(crate) fn section_phrase(section: &[Segment]) -> String {
    match section {
        [] => "the top of the file".into(),
        [Segment::Key(key), Segment::Index(index)] => format!("`[[{}]]` (entry {index})", quoted_key(key)),
        section => format!("`[{}]`", dotted(section)),
    }
}

/// "a", "a or b", "a, b or c".
pub(crate) fn join(items: impl IntoIterator<Item = String>) -> String {
    let mut items: Vec<String> = items.into_iter().collect();
    match items.pop() {
        None => String::new(),
        Some(last) if items.is_empty() => last,
        Some(last) => format!("{} or {last}", items.join(", ")),
    }
}

/// What a schema wants, in words.
pub(crate) fn type_phrase(root: &Json, schema: &Json) -> String {
    if let Some(texts) = allowed_texts(schema) {
        return format!(
            "a text, one of {}",
            join(texts.iter().map(|text| format!("\"{text}\"")))
        );
    }
    if tag_of(schema).is_some() {
        return "a table".into();
    }
    if let Some(alternatives) = schema["anyOf"].as_array() {
        return join(
            alternatives
                .iter()
                .map(|one| type_phrase(root, resolve(root, one))),
        );
    }
    match schema["type"].as_str() {
        Some("object") => "a table".into(),
        Some("array") => {
            let items = resolve(root, &schema["items"]);
            match (
                items["type"].as_str(),
                schema["minItems"].as_u64(),
                schema["maxItems"].as_u64(),
            ) {
                (Some("number"), Some(least), Some(most)) if least == most => {
                    format!("a list of {least} numbers")
                }
                (Some("number"), ..) => "a list of numbers".into(),
                (Some("integer"), ..) => "a list of integers".into(),
                (Some("string"), ..) => "a list of texts".into(),
                _ => "a list of tables".into(),
            }
        }
        Some("string") => "a text".into(),
        Some("integer") => "an integer".into(),
        Some("number") => "a number".into(),
        Some("boolean") => "true or false".into(),
        _ => "any value".into(),
    }
}

/// The range of a number, in words; empty if there is none.
pub(crate) fn range_phrase(schema: &Json) -> String {
    let number = |key: &str| schema.get(key).map(plain_number);
    match (number("minimum"), number("exclusiveMinimum"), number("maximum")) {
        (Some(least), _, Some(most)) if least == most => format!("exactly {least}"),
        (Some(least), _, Some(most)) => format!("{least} to {most}"),
        (Some(least), _, None) => format!("at least {least}"),
        (None, Some(bound), Some(most)) => format!("above {bound} and at most {most}"),
        (None, Some(bound), None) => format!("above {bound}"),
        (None, None, Some(most)) => format!("at most {most}"),
        (None, None, None) => String::new(),
    }
}

/// `10.0` reads better as `10`.
pub(crate) fn plain_number(json: &Json) -> String {
    match json.as_f64() {
        Some(float) if json.is_f64() => format!("{float}"),
        _ => json.to_string(),
    }
}

/// A value as it was read, shortened.
pub(crate) fn brief(node: &Node) -> String {
    let text = match &node.value {
        Value::String(text) => text.clone(),
        Value::Integer(integer) => integer.to_string(),
        Value::Float(float) => format!("{float:?}"),
        Value::Bool(bool) => bool.to_string(),
        Value::Datetime(text) => text.clone(),
        Value::Table(_) => "{…}".into(),
        Value::Array(_) => "[…]".into(),
    };
    shortened(&text)
}

/// A text, or its first 59 characters.
pub(crate) fn shortened(text: &str) -> String {
    if text.chars().count() <= 60 {
        text.to_owned()
    } else {
        text.chars().take(59).chain(['…']).collect()
    }
}
