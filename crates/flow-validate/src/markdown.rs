//! The page of the book that lists all codes.

use crate::all_codes;
use std::fmt::Write;

/// Every code with its rule, rationale and example, as Markdown. `docs/src/codes.md` is this text; a test compares them,
/// and `cargo run --release -p flow-validate --example code_table` prints it.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Codes\n\nEvery error and warning about a config has a stable code. `flow-train explain CODE` prints what stands \
         here.\nThis page is generated: `cargo run --release -p flow-validate --example code_table > docs/src/codes.md`.\n",
    );
    let mut family = "";
    for known in all_codes() {
        let of = known.code.split_once("::").map_or("", |(family, _)| family);
        if of != family || family.is_empty() && !page.contains("\n## ") {
            family = of;
            let _ = write!(page, "\n## {}\n", title(of));
        }
        let _ = write!(
            page,
            "\n### `{}`\n\n{}\n{}\n\n```toml\n{}\n```\n\nInstead:\n\n```toml\n{}\n```\n",
            known.code, known.rule, known.why, known.wrong, known.right
        );
    }
    page
}

fn title(family: &str) -> &str {
    match family {
        "" => "One key",
        "rule" => "Several keys",
        "acceleration" => "`[acceleration]`",
        "checkpointing" => "`[checkpointing]`",
        "memory" => "Memory",
        "device" => "`[device]`",
        "distributed" => "Several processes",
        "files" => "Files",
        "model" => "The model",
        "rewards" => "`[[rewards]]`",
        "setup" => "Parts of a run",
        "runtime" => "`[runtime.options]`",
        other => other,
    }
}
