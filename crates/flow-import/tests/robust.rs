//! Whatever the text: no panic, no key lost, and a TOML that flow-train accepts.

use std::collections::BTreeSet;

use flow_config::{Diagnostic, Severity};
use flow_import::{ImportError, Imported, Outcome, Verdict, import, rules};
use proptest::prelude::*;
use test_catalog::{CATALOG, inspect_named};

/// What must hold of every result.
fn check(Imported { verdict, toml, notes }: &Imported) {
    assert!(toml.starts_with("# Converted"), "{toml}");
    assert!(toml.lines().any(|line| line == "config_version = 1"), "{toml}");
    // What the verdict names is refused, and nothing else.
    let read = inspect_named("config.toml", toml, &[]);
    let refused = |one: &&Diagnostic| one.severity == Severity::Error;
    let errors: Vec<&Diagnostic> = read.report.diagnostics.iter().filter(refused).collect();
    let reasons = match verdict {
        Verdict::Cannot { because } => because.len(),
        Verdict::Runs | Verdict::RunsWhen { .. } => 0,
    };
    assert_eq!(errors.len(), reasons, "{verdict}\n{}\n{toml}", read.report);
    for error in errors {
        assert!(
            ["model.architecture", "algorithm.kind"].contains(&error.path.as_str()),
            "{error}\n{toml}"
        );
    }
    assert!(
        toml.lines()
            .nth(1)
            .is_some_and(|line| line.starts_with("# Verdict: ")),
        "{toml}"
    );
    for diagnostic in read.report.diagnostics.iter().filter(|one| !refused(one)) {
        let named = notes
            .iter()
            .any(|note| note.needs_attention() && note.text.contains(&diagnostic.message));
        assert!(named, "{}\n{toml}", diagnostic.message);
    }
    for note in notes {
        match note.outcome {
            Outcome::Converted | Outcome::Added => assert!(!note.to.is_empty() && !note.written.is_empty()),
            Outcome::Kept => assert!(
                toml.contains(&format!("# Not converted: {}: {}", note.from, note.value)),
                "{note}"
            ),
            Outcome::Default => assert!(!note.from.is_empty()),
            Outcome::Remark => assert!(note.needs_attention()),
        }
        assert_eq!(note.line.is_some(), !note.from.is_empty(), "{note:?}");
    }
}

/// Texts that values of a config are made of, right and wrong.
fn value() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "null",
        "true",
        "false",
        "no",
        "auto",
        "none",
        "all",
        "transformer",
        "lora",
        "full",
        "bf16",
        "fp16",
        "fp32",
        "sd3",
        "sd3-5",
        "flux1",
        "wan2_t2v",
        "wan",
        "dit",
        "default",
        "Wan-AI/Wan2.1-T2V-14B-Diffusers",
        "/models/sd3",
        "grpo",
        "grpo-guard",
        "GRPO_Guard",
        "nft",
        "awm",
        "dppo",
        "dgpo",
        "crd",
        "0-0.25-0.005-0.999",
        "Flow-SDE",
        "CPS",
        "ODE",
        "Dance-SDE",
        "v-based",
        "x-based",
        "sum",
        "gdpo",
        "uniform",
        "logit_normal",
        "discrete_wo_init",
        "power",
        "constant",
        "linear",
        "piecewise_linear",
        "cosine",
        "warmup_cosine",
        "wandb",
        "tensorboard",
        "native",
        "sage",
        "pickscore",
        "a.b/c",
        "model.safetensors",
        "''",
        "'#'",
        "\"a\\nb\\u0001\\x7f\"",
        "~",
        "'~'",
        "~/ff",
        "~/a.safetensors",
        ".inf",
        "-.nan",
        "é",
        "!!str 5",
    ]);
    let words = words.prop_map(str::to_owned);
    let numbers = prop_oneof![
        (-3_i64..70).prop_map(|number| number.to_string()),
        prop::sample::select(vec![512_i64, 1024, 65_535, 65_536, 65_537, i64::MAX, i64::MIN])
            .prop_map(|n| n.to_string()),
        (0.0_f64..2.0).prop_map(|number| number.to_string()),
        prop::sample::select(vec![
            "1e-4",
            "-1.0e-4",
            "1e400",
            "010",
            "0x1f",
            "1_000",
            "99999999999999999999",
            "+3"
        ])
        .prop_map(str::to_owned),
    ];
    let leaf = prop_oneof![2 => numbers, 1 => words];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|values| format!("[{}]", values.join(", "))),
            prop::collection::vec(inner, 0..3).prop_map(|values| {
                let pairs = values
                    .iter()
                    .enumerate()
                    .map(|(index, value)| format!("k{index}: {value}"));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
            }),
        ]
    })
}

/// Entries of `acceleration` and `rewards`, which have a shape of their own.
fn entry() -> impl Strategy<Value = String> {
    let names = prop::sample::select(vec![
        "attention_backend",
        "torch_compile",
        "diffusers_cache",
        "cache_dit",
        "mine",
        "ocr",
        "jpeg_compressibility",
    ]);
    let keys = prop::sample::select(vec![
        "backend",
        "mode",
        "policy",
        "threshold",
        "weight",
        "name",
        "order",
    ]);
    let values = prop::sample::select(vec![
        "native",
        "full",
        "first_block",
        "magcache",
        "0.1",
        "-2",
        "[1]",
        "null",
    ]);
    (names, keys, values, prop::bool::ANY).prop_map(|(name, key, value, accelerator)| {
        if accelerator {
            format!("{{name: {name}, params: {{{key}: {value}}}}}")
        } else {
            format!("{{reward_model: {name}, {key}: {value}}}")
        }
    })
}

/// A list of maps with the keys that `optimizers` has.
fn optimizers() -> impl Strategy<Value = String> {
    let keys = prop::sample::select(vec![
        "name",
        "learning_rate",
        "weight_decay",
        "betas",
        "eps",
        "max_grad_norm",
        "a.b",
    ]);
    let map = prop::collection::btree_map(keys, value(), 0..4).prop_map(|pairs| {
        let pairs = pairs.iter().map(|(key, value)| format!("'{key}': {value}"));
        format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
    });
    prop::collection::vec(map, 0..3).prop_map(|maps| format!("[{}]", maps.join(", ")))
}

/// A document of some known keys and a few unknown ones, and the paths in it.
fn document() -> impl Strategy<Value = (String, BTreeSet<String>)> {
    let known: Vec<&'static str> = rules().map(|rule| rule.from).collect();
    let key = prop_oneof![
        9 => prop::sample::select(known).prop_map(str::to_owned),
        1 => prop::sample::select(vec!["train.foo", "model.lora_rnk", "bar", "data.'a.b'", "acceleration.cache"])
            .prop_map(str::to_owned),
    ];
    let value = prop_oneof![
        4 => value(),
        1 => entry(),
        1 => optimizers(),
        1 => prop::collection::vec(entry(), 0..3).prop_map(|entries| format!("[{}]", entries.join(", "))),
    ];
    prop::collection::btree_map(key, value, 1..40).prop_map(|keys| {
        let mut text = String::new();
        let mut section = String::new();
        // Sections are contiguous, since a map may not have a key twice.
        let mut sorted: Vec<_> = keys.iter().collect();
        sorted.sort_by_key(|(key, _)| key.split_once('.').map(|(section, _)| section.to_owned()));
        for (key, value) in sorted {
            match key.split_once('.') {
                None => text.push_str(&format!("{key}: {value}\n")),
                Some((of, key)) => {
                    if of != section {
                        text.push_str(&format!("{of}:\n"));
                        of.clone_into(&mut section);
                    }
                    text.push_str(&format!("  {key}: {value}\n"));
                }
            }
        }
        (
            text,
            keys.into_keys().map(|key| key.replace('\'', "\"")).collect(),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_subset_of_keys_gives_a_valid_config_and_a_note_on_each((text, paths) in document()) {
        let imported = match import(&text, &CATALOG) {
            Ok(imported) => imported,
            // Too little of it is Flow-Factory's.
            Err(ImportError::NotFlowFactory { .. }) => return Ok(()),
            Err(error) => panic!("{error}\n{text}"),
        };
        check(&imported);
        for path in paths {
            let noted = |from: &str| from == path || from.strip_prefix(&path).is_some_and(|rest| rest.starts_with('.'));
            prop_assert!(imported.notes.iter().any(|note| noted(&note.from)), "{path}\n{text}\n{}", imported.toml);
        }
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        if let Ok(imported) = import(&text, &CATALOG) {
            check(&imported);
        }
    }

    #[test]
    fn no_text_of_yamls_own_characters_panics(text in "[-:{}\\[\\],&*!|>'\"%@`#? \n\ta-c0<~.]{0,60}") {
        if let Ok(imported) = import(&text, &CATALOG) {
            check(&imported);
        }
    }

    #[test]
    fn no_damaged_config_panics(at in 0_usize..1500, length in 0_usize..30, with in "[-:{}\\[\\],&*!|>'\"#? \n]{0,3}") {
        let yaml = include_str!("fixtures/grpo-sd3.yaml");
        let (at, end) = (at.min(yaml.len()), (at + length).min(yaml.len()));
        let text = format!("{}{with}{}", &yaml[..at], &yaml[end..]);
        if let Ok(imported) = import(&text, &CATALOG) {
            check(&imported);
        }
    }
}

#[test]
fn the_fixtures_hold_to_it_too() {
    for yaml in [
        include_str!("fixtures/grpo-sd3.yaml"),
        include_str!("fixtures/nft-cache.yaml"),
        include_str!("fixtures/guard-uneven.yaml"),
        include_str!("fixtures/dmdr-flux.yaml"),
    ] {
        check(&import(yaml, &CATALOG).expect("converts"));
    }
}

#[test]
fn a_syntax_error_has_its_line_and_column() {
    let error = import("model:\n  lora_rank: 8\n train: [1, 2\n", &CATALOG).unwrap_err();
    let ImportError::Syntax { line, column, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!((*line, *column), (3, 2), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("line 3, column 2: this is not YAML: "),
        "{error}"
    );
}

#[test]
fn what_is_missing_at_the_end_is_reported_at_the_end() {
    for text in ["train: {seed: 8", "train: {seed: 8\n", "a: 1\ntrain: [1, 2,"] {
        let Err(ImportError::Syntax { line, column, .. }) = import(text, &CATALOG) else {
            panic!("{text}")
        };
        let last = text.lines().last().expect("a line");
        assert_eq!((line, column), (text.lines().count(), last.len() + 1), "{text}");
    }
}

#[test]
fn a_top_level_that_is_not_a_map_is_named() {
    for (text, found) in [
        ("null\n", "empty"),
        ("- a\n- b\n", "a list"),
        ("word\n", "the value word"),
    ] {
        let error = import(text, &CATALOG).unwrap_err();
        assert!(matches!(error, ImportError::NotAMap { .. }), "{error:?}");
        assert!(
            error.to_string().ends_with(&format!("but this is {found}")),
            "{error}"
        );
    }
}

#[test]
fn a_repeated_key_names_both_lines() {
    let error = import("train:\n  seed: 1\n  group_size: 2\n  seed: 3\n", &CATALOG).unwrap_err();
    assert_eq!(
        error,
        ImportError::RepeatedKey {
            line: 4,
            column: 3,
            key: "seed".into(),
            first_line: 2
        }
    );
}

#[test]
fn depth_by_aliases_of_aliases_is_bounded_by_size() {
    let mut yaml = String::new();
    for level in 0..40 {
        let inner = if level == 0 {
            "1".into()
        } else {
            format!("*a{}", level - 1)
        };
        yaml.push_str(&format!(
            "a{level}: &a{level} {}{inner}{}\n",
            "[".repeat(60),
            "]".repeat(60)
        ));
        let yaml = format!("train: {{trainer_type: grpo, group_size: 4}}\n{yaml}");
        match import(&yaml, &CATALOG) {
            Ok(imported) => check(&imported),
            Err(error) => assert!(error.to_string().contains("copies by alias"), "{error}"),
        }
    }
    assert!(import(&yaml, &CATALOG).is_err());
}

#[test]
fn what_no_config_needs_is_refused_with_its_place() {
    let deep = format!("a: {}", "[".repeat(100));
    let mut bomb = String::from("a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n");
    for level in 1..9 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    for (text, word) in [
        ("a: 1\n---\nb: 2\n", "second document"),
        ("a: !!python/object:os.system {}\n", "Python object"),
        ("? [a, b]\n: 1\n", "plain word"),
        ("a: &a [*a]\n", "inside of what it refers to"),
        (deep.as_str(), "levels deep"),
        (bomb.as_str(), "copies by alias"),
    ] {
        let error = import(text, &CATALOG).unwrap_err();
        assert!(matches!(error, ImportError::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
    }
}
