//! Every code of this crate is explained, and its examples are true.

use std::collections::BTreeSet;

use flow_config::Inspection;
use flow_config::codes::{ALL, CONFIG_VERSION, Explanation, UNREADABLE, explain_code};
use test_catalog::inspect_named;

/// The codes that are found in an example, those of training included.
fn found(example: &str) -> BTreeSet<&'static str> {
    let (text, overrides) = match example.strip_prefix("--set ") {
        Some(set) => (String::new(), vec![set.to_owned()]),
        None => (example.to_owned(), Vec::new()),
    };
    let text = if text.contains("config_version") {
        text
    } else {
        format!("config_version = 1\n{text}")
    };
    let Inspection { report, partial } = inspect_named("a.toml", &text, &overrides);
    let training = partial.map(|partial| partial.check_training().diagnostics);
    report
        .diagnostics
        .iter()
        .chain(training.iter().flatten())
        .map(|diagnostic| diagnostic.code)
        .collect()
}

#[test]
fn every_code_has_a_rule_a_reason_and_an_example() {
    let codes: BTreeSet<&str> = ALL.iter().map(|known| known.code).collect();
    assert_eq!(codes.len(), ALL.len(), "codes are unique");
    for known in ALL {
        let Explanation { code, rule, why, .. } = known;
        assert!(rule.len() > 15 && rule.ends_with('.'), "{code}: {rule}");
        assert!(why.len() > 30 && why.ends_with('.'), "{code}: {why}");
        assert_eq!(explain_code(code), Some(known));
        for part in [rule, why, &known.wrong.lines().next().unwrap_or("none")] {
            assert!(known.to_string().contains(*part), "{known}");
        }
    }
    assert_eq!(explain_code("none"), None);
}

#[test]
fn each_example_is_found_as_it_stands_and_not_once_it_is_mended() {
    for Explanation {
        code, wrong, right, ..
    } in ALL.iter().filter(|known| known.code != UNREADABLE)
    {
        assert!(found(wrong).contains(code), "{code} is not found in\n{wrong}");
        let left = found(right);
        let training = ["rule::no-reward", "rule::no-weights"];
        let left: Vec<_> = left
            .iter()
            .filter(|left| !training.contains(left) || *left == code)
            .collect();
        assert!(left.is_empty(), "{code}: {left:?} in\n{right}");
    }
    assert!(found("config_version = 7").contains(CONFIG_VERSION));
}
