//! Every code is explained, its example is true, and the page of the book has it.

use crate::support::{flow_train, text, workspace};
use std::collections::BTreeSet;
use std::path::Path;

/// Code-like texts in the sources of the crates.
fn written_codes() -> BTreeSet<String> {
    fn walk(folder: &Path, out: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let source = std::fs::read_to_string(&path).expect("a source");
                out.extend(source.split('"').filter(|text| is_code(text)).map(str::to_owned));
            }
        }
    }
    let mut out = BTreeSet::new();
    for crate_folder in std::fs::read_dir(workspace().join("crates")).expect("the crates") {
        let sources = crate_folder.expect("a crate").path().join("src");
        if sources.is_dir() {
            walk(&sources, &mut out);
        }
    }
    out
}

/// `family::words-with-dashes`.
fn is_code(text: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    text.split_once("::")
        .is_some_and(|(family, rest)| plain(family) && plain(rest))
}

#[test]
fn every_code_that_stands_in_a_source_is_explained() {
    let written = written_codes();
    assert!(written.len() > 50, "{written:?}");
    for code in &written {
        assert!(flow_validate::explain(code).is_some(), "{code} is not explained");
    }
    for known in flow_validate::all_codes() {
        let single = !known.code.contains("::");
        assert!(
            single || written.contains(known.code),
            "{} is explained and never used",
            known.code
        );
    }
}

#[test]
fn explain_prints_rule_rationale_and_example_of_every_code() {
    let mut seen = BTreeSet::new();
    for known in flow_validate::all_codes() {
        assert!(seen.insert(known.code), "{} stands twice", known.code);
        assert!(known.rule.len() > 15 && known.rule.ends_with('.'), "{known}");
        assert!(known.why.len() > 15 && known.why.ends_with('.'), "{known}");
        assert!(!known.wrong.is_empty() && !known.right.is_empty(), "{known}");
    }
    let output = flow_train(&["explain", "acceleration::nothing-outside-window"]);
    for part in [
        "two steps in a row",
        "for example:",
        "instead:",
        "[[acceleration.rollout]]",
    ] {
        assert!(text(&output.stdout).contains(part), "{part}");
    }
    let output = flow_train(&["explain", "acceleration::lossy-rolout"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("did you mean `acceleration::lossy-rollout`?"));
}

/// Codes whose examples need what no config of this build has: an accelerator or trainer of somebody else's, a feature,
/// another machine, files.
const ELSEWHERE: [&str; 13] = [
    "acceleration::unknown-slot",
    "acceleration::ratio-not-exact",
    "acceleration::no-paradigm",
    "acceleration::bad-parameters",
    "acceleration::conflict",
    "acceleration::unusable",
    "checkpointing::ignored",
    "checkpointing::unavailable",
    "device::no-bf16",
    "distributed::refused",
    "files::bad-weights",
    "files::other-model",
    "setup::refused",
];

#[test]
fn the_examples_of_what_is_found_beyond_the_config_itself_are_true() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("a.toml");
    // Enough for training, unless the example has it; the weights are a small model's.
    let found = |example: &str| -> BTreeSet<String> {
        let mut whole = format!("config_version = 1\n{example}\n");
        if !example.contains("[model]") {
            whole.push_str("\n[model]\nweights = \"none.safetensors\"\n");
        }
        if !example.contains("[[rewards]]") {
            whole.push_str("\n[[rewards]]\nkind = \"jpeg-compressibility\"\n");
        }
        std::fs::write(&config, whole).expect("written");
        let path = config.to_string_lossy().into_owned();
        let output = flow_train(&["check", &path, "--format", "json"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let all = report["diagnostics"].as_array().cloned().unwrap_or_default();
        all.iter()
            .map(|one| one["code"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    let of_config: BTreeSet<&str> = flow_config::codes::ALL.iter().map(|known| known.code).collect();
    for known in flow_validate::all_codes() {
        let code = known.code;
        if of_config.contains(code) || ELSEWHERE.contains(&code) || code.starts_with("runtime::") {
            continue;
        }
        // Files are looked for once all else is right, and the other parts need weights that are there.
        if ["files::no-weights", "rewards::refused"].contains(&code) {
            continue;
        }
        assert!(
            found(known.wrong).contains(code),
            "{code} is not found in\n{}",
            known.wrong
        );
        assert!(
            !found(known.right).contains(code),
            "{code} is found in\n{}",
            known.right
        );
    }
}

#[test]
fn the_page_of_codes_in_the_book_is_up_to_date() {
    let page = std::fs::read_to_string(workspace().join("docs/src/codes.md")).expect("docs/src/codes.md");
    assert!(
        page == flow_validate::markdown(),
        "docs/src/codes.md is out of date: cargo run --release -p flow-validate --example code_table > docs/src/codes.md"
    );
}
