//! The table of options as documentation, as a whole and of one option.

use crate::parse::{device_name, excluded};
use crate::{CONTEXT_RULES, EXCLUDED, OPTIONS, OptionSpec, find};
use std::fmt::Write;

/// The documentation of all options in markdown, as `OPTIONS.md` has it.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Runtime options\n\n\
         Options of the Burn and CubeCL runtimes for `[runtime.options]` of a config. Names are one key, in quotation \
         marks:\n\n\
         ```toml\n[runtime.options]\n\"cubecl.streaming.policy\" = \"single\"\n```\n\n\
         An option is an error if nothing in the build reads it: it needs flow-train built with the feature named here.\n\n\
         | option | values | default | read by | devices | conflicts | cost | what it does |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for spec in OPTIONS {
        row(&mut text, spec).expect("writing to a string succeeds");
    }
    text.push_str("\nAlso found, whatever the options:\n\n");
    for rule in CONTEXT_RULES {
        writeln!(text, "- {}: {}", rule.severity, rule.summary).expect("writing to a string succeeds");
    }
    text.push_str(
        "\nWhat the runtimes have and no build of flow-train reads; naming it is an error:\n\n| entry, with all below it | why not |\n|---|---|\n",
    );
    for entry in EXCLUDED {
        writeln!(text, "| `{}` | {} |", entry.path, entry.why).expect("writing to a string succeeds");
    }
    text
}

/// What is known of one option, or why an entry of the runtimes is none; nothing of a path that is neither.
pub fn explain(path: &str) -> Option<String> {
    let Some(spec) = find(path) else {
        let entry = excluded(path)?;
        return Some(format!(
            "{path}\n    No build of flow-train reads it: {}.\n",
            entry.why
        ));
    };
    Some(format!(
        "{path}\n    {}\n  values:  {}\n  default: {}\n  read by: {}, on {}\n  cost:    {}\n  write:   \"{path}\" = … in [runtime.options]\n",
        spec.doc,
        spec.kind.describe(),
        spec.default,
        readers(spec),
        devices(spec),
        spec.cost,
    ))
}

fn readers(spec: &OptionSpec) -> String {
    (spec.build()).map_or("every build".into(), |build| format!("builds with `{build}`"))
}

fn devices(spec: &OptionSpec) -> String {
    let devices: Vec<&str> = spec.devices.iter().map(|device| device_name(*device)).collect();
    devices.join(", ")
}

fn row(text: &mut String, spec: &OptionSpec) -> std::fmt::Result {
    let conflicts: Vec<&str> = spec.conflicts.iter().map(|rule| rule.summary).collect();
    writeln!(
        text,
        "| `{}` | {} | {} | {} | {} | {} | {} | {} |",
        spec.path,
        spec.kind.describe(),
        spec.default,
        readers(spec),
        devices(spec),
        conflicts.join("; "),
        spec.cost,
        spec.doc,
    )
}
