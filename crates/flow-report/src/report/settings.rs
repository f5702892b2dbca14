//! The configuration: what differs from the defaults first, the rest folded.

use std::fmt::Write as _;

use serde_json::Value;

use super::words;
use crate::escape::escape;
use crate::manifest::{Manifest, flatten};

/// A setting: the key of its table, its own name, its value, and where it comes from.
struct Setting<'a> {
    table: String,
    name: String,
    value: Value,
    default: Option<&'a Value>,
    source: Option<&'a str>,
}

impl Setting<'_> {
    fn differs(&self) -> bool {
        // What is not there and has no source was left out by everybody.
        let is_set = self.source.is_some_and(|source| !is_default(source))
            || self.source.is_none() && !self.value.is_null();
        is_set && self.default.is_none_or(|default| !same(default, &self.value))
    }
}

/// Whether two values are the same setting: 1 and 1.0 are.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Whether a source says that nobody set the value.
pub(super) fn is_default(source: &str) -> bool {
    source.starts_with("default")
}

pub(super) fn write_settings(out: &mut String, manifest: &Manifest) -> std::fmt::Result {
    let leaves = flatten(&manifest.config)
        .into_iter()
        .filter(|(key, _)| !key.is_empty());
    let settings = leaves.map(|(key, value)| {
        let source = manifest.source_of(&key);
        let (table, name) = key.rsplit_once('.').unwrap_or(("", &key));
        Setting {
            table: table.to_owned(),
            name: name.to_owned(),
            value,
            default: manifest.config_defaults.get(&key),
            source,
        }
    });
    let (differing, defaults): (Vec<Setting<'_>>, Vec<Setting<'_>>) = settings.partition(Setting::differs);
    writeln!(out, "<section id=\"config\">\n<h2>Configuration</h2>")?;
    if differing.is_empty() {
        writeln!(out, "<p class=\"faint\">Every setting has its default.</p>")?;
    } else {
        writeln!(
            out,
            "<div class=\"scroll\"><table class=\"config\"><thead><tr><th>Differs from the default</th><th>Value</th>\
             <th>Default</th><th>Source</th></tr></thead>\n<tbody>"
        )?;
        for setting in &differing {
            let default = setting.default.map_or(String::new(), words::value);
            let table = if setting.table.is_empty() {
                String::new()
            } else {
                format!("{}.", setting.table)
            };
            let texts = [&table, &setting.name, &words::value(&setting.value), &default];
            let [table, name, value, default] = texts.map(|text| escape(text));
            let source = escape(setting.source.unwrap_or("not recorded"));
            writeln!(
                out,
                "<tr><td><span class=\"faint\">{table}</span>{name}</td><td><code>{value}</code></td>\
                 <td>{default}</td><td>{source}</td></tr>"
            )?;
        }
        writeln!(out, "</tbody></table></div>")?;
    }
    write_defaults(out, &defaults)?;
    writeln!(out, "</section>")
}

/// Defaults, a fold for each table: those of an architecture that the run does not have are not in the way.
fn write_defaults(out: &mut String, defaults: &[Setting<'_>]) -> std::fmt::Result {
    if defaults.is_empty() {
        return Ok(());
    }
    let count = words::counted(defaults.len(), "setting");
    writeln!(
        out,
        "<details><summary>Defaults <span class=\"faint\">{count}</span></summary>"
    )?;
    for table in defaults.chunk_by(|a, b| a.table == b.table) {
        let name = match table[0].table.as_str() {
            "" => "top level",
            name => name,
        };
        writeln!(
            out,
            "<details><summary>{} <span class=\"faint\">{}</span></summary>\n<div class=\"scroll\"><table class=\"config\"><tbody>",
            escape(name),
            words::counted(table.len(), "setting")
        )?;
        for setting in table {
            let value = words::value(&setting.value);
            writeln!(
                out,
                "<tr><td>{}</td><td><code>{}</code></td></tr>",
                escape(&setting.name),
                escape(&value)
            )?;
        }
        writeln!(out, "</tbody></table></div></details>")?;
    }
    writeln!(out, "</details>")
}
