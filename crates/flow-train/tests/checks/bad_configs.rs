//! Each config of `tests/bad-configs` is refused in the words that were read and found good.

use crate::support::{bad_configs, flow_train, text};
use insta::{assert_snapshot, with_settings};
use serde_json::Value;

/// Names of the configs, sorted.
fn names() -> Vec<String> {
    let entries = std::fs::read_dir(bad_configs()).expect("the folder is there");
    let files = entries.map(|entry| entry.expect("a file").file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = files.filter(|name| name.ends_with(".toml")).collect();
    names.sort();
    names
}

/// Arguments of `check` for a config: those of its first line, if that is `# check …`.
fn arguments(name: &str) -> Vec<String> {
    let config = std::fs::read_to_string(bad_configs().join(name)).expect("a config");
    let first = config
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("# check "));
    let further = first.unwrap_or_default().split_whitespace().map(str::to_owned);
    ["check".to_owned(), name.to_owned()]
        .into_iter()
        .chain(further)
        .collect()
}

/// What is said in other words in a build for NVIDIA GPUs: parts of it, on a machine that has none.
const WITH_CUDA: [(&str, &[&str]); 3] = [
    (
        "42-backends-of-attention.toml",
        &[
            "acceleration::refused",
            "there is no attention backend `flash`",
            "mma",
        ],
    ),
    (
        "46-a-device-that-is-not-there.toml",
        &[
            "device::unavailable",
            "no NVIDIA driver answers",
            "device::slow-kernels",
        ],
    ),
    (
        "48-runtime-options-that-nothing-reads.toml",
        &[
            "runtime::wrong-device",
            "runtime::wrong-type",
            "runtime::never-read",
        ],
    ),
];

/// Whether this build has other words for a config than the snapshot. Then these are looked for.
fn is_in_other_words(name: &str, said: &str) -> bool {
    let other = WITH_CUDA.iter().find(|(other, _)| *other == name);
    let Some((_, parts)) = other.filter(|_| cfg!(feature = "cuda")) else {
        return false;
    };
    if flow_core::device::visible_gpus() > 0 {
        test_support::skipped(format!("{name}: there is a GPU"));
        return true;
    }
    // Lines are broken where they are full.
    let one_line = said.replace("\n  │ ", " ");
    for part in *parts {
        assert!(one_line.contains(part), "{name}: {part:?} is not in:\n{said}");
    }
    true
}

/// A folder that a message names is another one in each checkout, and long enough to be broken over lines.
fn without_folder(said: &str) -> String {
    const BEFORE: &str = "starts from the config's folder,";
    let Some((before, after)) = said.split_once(BEFORE) else {
        return said.to_owned();
    };
    let mut quoted = after.splitn(3, '`');
    let (Some(_), Some(folder), Some(rest)) = (quoted.next(), quoted.next(), quoted.next()) else {
        return said.to_owned();
    };
    let letters: String = folder.split_whitespace().collect();
    assert!(letters.ends_with("tests/bad-configs"), "{letters}");
    format!("{before}{BEFORE} `FOLDER`{rest}")
}

#[test]
fn every_bad_config_is_refused_and_says_how_to_mend_it() {
    let names = names();
    assert!(names.len() >= 25, "{}", names.len());
    for name in names {
        let arguments = arguments(&name);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = flow_train(&arguments);
        assert_eq!(output.status.code(), Some(2), "{name}: {output:?}");
        assert_eq!(text(&output.stdout), "", "{name}: errors go to standard error");
        let said = without_folder(&text(&output.stderr));
        assert!(
            said.contains("help:"),
            "{name} is not told how to mend it:\n{said}"
        );
        assert!(!said.contains('\u{1b}'), "{name}: colours in a file");
        if is_in_other_words(&name, &said) {
            continue;
        }
        with_settings!({
            snapshot_path => bad_configs(),
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, {
            assert_snapshot!(name.trim_end_matches(".toml"), said);
        });
    }
}

#[test]
fn the_same_is_said_as_json_with_places_that_a_program_can_use() {
    for name in names() {
        let mut arguments = arguments(&name);
        arguments.extend(["--format", "json"].map(str::to_owned));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = flow_train(&arguments);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert_eq!(
            text(&output.stderr),
            "",
            "{name}: all of it is on standard output"
        );
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            (&report["format"], &report["ok"]),
            (&1.into(), &false.into()),
            "{name}"
        );
        let all = report["diagnostics"].as_array().expect("a list");
        let count = |severity: &str| all.iter().filter(|one| one["severity"] == severity).count();
        assert_eq!(report["errors"], count("error"), "{name}");
        assert_eq!(report["warnings"], count("warning"), "{name}");
        assert!(count("error") > 0, "{name}");
        let config = std::fs::read(bad_configs().join(&name)).expect("a config");
        for one in all {
            let (code, message) = (one["code"].as_str(), one["message"].as_str().unwrap_or_default());
            assert!(
                flow_validate::explain(code.unwrap_or_default()).is_some(),
                "{name}: {one}"
            );
            assert!(!message.is_empty() && !message.ends_with('.'), "{name}: {one}");
            let mends = one["help"].is_string() || !one["allowed"].as_array().expect("a list").is_empty();
            assert!(mends, "{name}: neither help nor what is allowed: {one}");
            if one["layer"] == "file" {
                let (start, line) = (one["span"]["start"].as_u64(), one["line"].as_u64());
                let before = &config[..start.expect("a place") as usize];
                let newlines = before.iter().filter(|byte| **byte == b'\n').count() as u64;
                assert_eq!(Some(newlines + 1), line, "{name}: {one}");
                assert_eq!(one["file"], name.as_str());
            }
        }
    }
}

#[test]
fn a_right_config_is_ok_in_both_formats() {
    let config = "../../configs/digits-grpo.toml";
    let output = flow_train(&["check", config]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("digits-grpo.toml: ok"));
    let output = flow_train(&["check", config, "--format", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!((&report["ok"], &report["errors"]), (&true.into(), &0.into()));
    assert_eq!(report["diagnostics"], Value::Array(Vec::new()));
}
