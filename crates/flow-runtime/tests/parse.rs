//! What a user gets to read about options that cannot be used, and what passes.

mod common;

use common::{Written, everything, usable, valid_options, written};
use flow_runtime::{
    CONTEXT_RULES, Context, DeviceKind, EXCLUDED, Finding, OPTIONS, RuntimeOptions, Severity, Value,
    burn_config, codes, cubecl_config, parse,
};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::path::Path;

fn findings(options: &Written, context: &Context) -> Vec<Finding> {
    match parse(options, context) {
        Ok(options) => options.warnings().to_vec(),
        Err(error) => error.findings,
    }
}

fn found<const N: usize>(entries: [(&str, Json); N]) -> Vec<(&'static str, String)> {
    let findings = findings(&written(entries), &everything());
    findings
        .into_iter()
        .map(|finding| (finding.code, finding.option))
        .collect()
}

fn text<const N: usize>(entries: [(&str, Json); N], context: &Context) -> String {
    match parse(&written(entries), context) {
        Ok(options) => panic!("{options:?} passed"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn an_unknown_option_names_the_nearest_and_all_sorted() {
    let error = parse(
        &written([("cubecl.streaming.polcy", json!("single"))]),
        &everything(),
    )
    .expect_err("a typo");
    let [finding] = &error.findings[..] else {
        panic!("{error}");
    };
    assert_eq!(finding.code, codes::UNKNOWN_OPTION);
    assert_eq!(finding.nearest.as_deref(), Some("cubecl.streaming.policy"));
    assert_eq!(finding.allowed.len(), OPTIONS.len());
    assert!(finding.allowed.is_sorted());
    let text = error.to_string();
    assert!(
        text.contains("there is no option `cubecl.streaming.polcy`"),
        "{text}"
    );
    assert!(
        text.contains("The nearest is `cubecl.streaming.policy`"),
        "{text}"
    );
    assert!(text.contains("burn.autodiff.logger.level, "), "{text}");
}

#[test]
fn the_list_of_options_stands_once_below_several_unknown_ones() {
    let text = text([("a", json!(1)), ("b", json!(2)), ("", json!(3))], &everything());
    assert_eq!(text.matches("there is no option").count(), 3, "{text}");
    assert_eq!(text.matches("allowed: ").count(), 1, "{text}");
    assert!(
        text.lines()
            .last()
            .is_some_and(|line| line.starts_with("  allowed: ")),
        "{text}"
    );
}

#[test]
fn everything_that_is_wrong_is_said_at_once_errors_first() {
    let found = found([
        ("cubecl.autotune.level", json!("full")),
        ("cubecl.compilation.check_mode", json!("validat")),
        ("cubecl.memory.logger.stderr", json!("fast")),
        ("cubecl.streaming.max_streams", json!(0)),
        ("cubecl.streaming.mode", json!(1)),
        ("cubecl.streaming.policy", json!("per-task")),
    ]);
    let expected = [
        (codes::NEVER_READ, "cubecl.autotune.level"),
        (codes::UNKNOWN_CHOICE, "cubecl.compilation.check_mode"),
        (codes::WRONG_TYPE, "cubecl.memory.logger.stderr"),
        (codes::OUT_OF_RANGE, "cubecl.streaming.max_streams"),
        (codes::UNKNOWN_OPTION, "cubecl.streaming.mode"),
        ("runtime::per-task-streams", "cubecl.streaming.policy"),
    ];
    assert_eq!(found, expected.map(|(code, option)| (code, option.to_owned())));
}

#[test]
fn a_wrong_value_names_what_is_allowed_and_the_nearest_word() {
    let cases = [
        (
            "cubecl.compilation.check_mode",
            json!("validat"),
            "\"enforce\", \"validate\", \"auto\"",
            "`validate`",
        ),
        (
            "cubecl.compilation.check_mode",
            json!(3),
            "\"enforce\", \"validate\", \"auto\"",
            "3 does not fit",
        ),
        (
            "cubecl.memory.logger.stdout",
            json!("yes"),
            "true or false",
            "the string \"yes\"",
        ),
        (
            "cubecl.streaming.max_streams",
            json!(255),
            "integer from 1 to 254",
            "255 is out of range",
        ),
        (
            "cubecl.streaming.max_streams",
            json!(-1),
            "integer from 1 to 254",
            "-1 is out of range",
        ),
        (
            "cubecl.streaming.max_streams",
            json!(1e300),
            "integer from 1 to 254",
            "out of range",
        ),
        (
            "cubecl.streaming.max_streams",
            json!(2.5),
            "integer from 1 to 254",
            "2.5 is not a whole number",
        ),
        (
            "cubecl.memory.logger.file",
            json!(""),
            "path of a file",
            "0 characters",
        ),
        (
            "cubecl.memory.logger.file",
            json!("a\0b"),
            "path of a file",
            "null character",
        ),
        (
            "cubecl.environment.name",
            json!("a/b"),
            "letters",
            "other characters",
        ),
        ("cubecl.environment.name", json!(".."), "letters", "only dots"),
        (
            "cubecl.environment.path",
            json!("globl"),
            "{ directory = \"…\" }",
            "`global`",
        ),
        (
            "cubecl.environment.path",
            json!({ "folder": "x" }),
            "{ directory = \"…\" }",
            "the key `directory`",
        ),
        (
            "cubecl.environment.path",
            json!({ "directory": "x", "y": 1 }),
            "{ directory = \"…\" }",
            "no other",
        ),
        (
            "cubecl.compilation.check_mode",
            Json::Null,
            "\"enforce\"",
            "null does not fit",
        ),
        (
            "cubecl.compilation.check_mode",
            json!(["full"]),
            "\"enforce\"",
            "an array does not fit",
        ),
    ];
    for (option, value, allowed, complaint) in cases {
        let text = text([(option, value)], &everything());
        assert!(text.contains(&format!("`{option}`")), "{text}");
        assert!(
            text.contains(&format!("It takes {allowed}")) || text.contains(allowed),
            "{text}"
        );
        assert!(text.contains(complaint), "{complaint}: {text}");
    }
}

#[test]
fn a_table_of_tables_shows_the_line_to_write() {
    let options = written([(
        "cubecl",
        json!({ "streaming": { "policy": "single" }, "memory": { "logger": { "level": "full" } } }),
    )]);
    let error = parse(&options, &everything()).expect_err("a table");
    let text = error.to_string();
    assert_eq!(error.findings[0].code, codes::NESTED_TABLE);
    assert!(
        text.contains("\"cubecl.streaming.policy\" = \"single\""),
        "{text}"
    );
    assert!(
        text.contains("\"cubecl.memory.logger.level\" = \"full\""),
        "{text}"
    );
}

#[test]
fn a_table_without_any_option_in_it_is_an_unknown_option() {
    assert_eq!(found([("cubecl", json!({ "a": 1 }))])[0].0, codes::UNKNOWN_OPTION);
}

#[test]
fn an_option_that_nothing_in_the_build_reads_is_an_error_that_names_the_features() {
    let bare = Context {
        features: Default::default(),
        ..everything()
    };
    let text = text([("cubecl.memory.cuda.allocator", json!("async"))], &bare);
    assert!(
        text.contains("builds with the feature `cuda` do") && text.contains("--features cuda"),
        "{text}"
    );
    for spec in OPTIONS.iter().filter(|spec| !spec.features.is_empty()) {
        let options = written([(spec.path, common::samples(spec)[0].clone())]);
        let findings = findings(&options, &bare);
        assert!(
            findings
                .iter()
                .any(|finding| finding.code == codes::MISSING_FEATURE),
            "{}",
            spec.path
        );
    }
}

#[test]
fn every_entry_that_no_build_reads_is_refused_with_the_reason_however_it_is_written() {
    for entry in EXCLUDED {
        for key in [entry.path.to_owned(), format!("{}.below", entry.path)] {
            let error = text([(&*key, json!(true))], &everything());
            assert!(
                error.contains(&format!("no build of flow-train reads `{key}`")) && error.contains(entry.why),
                "{error}"
            );
        }
    }
    let nested = json!({ "autotune": { "bench": { "max_samples": 5 } } });
    assert_eq!(found([("cubecl", nested)])[0].0, codes::NEVER_READ);
    assert_eq!(
        found([("cubecl.autotuned", json!(1))])[0].0,
        codes::UNKNOWN_OPTION
    );
}

#[test]
fn the_build_that_an_option_needs_is_one_that_flow_train_has() {
    let builds: BTreeSet<Option<&str>> = OPTIONS.iter().map(|spec| spec.build()).collect();
    assert_eq!(builds, [None, Some("cuda"), Some("kernel-cache")].into());
    let manifest = std::fs::read_to_string("../flow-train/Cargo.toml").expect("the facade's manifest");
    for build in builds.into_iter().flatten() {
        assert!(manifest.contains(&format!("\n{build} = [")), "{build}");
    }
}

#[test]
fn an_option_of_another_device_is_an_error_and_one_of_any_device_is_not() {
    let context = Context {
        device: DeviceKind::Cpu,
        ..everything()
    };
    let text = text([("cubecl.compilation.check_mode", json!("full"))], &context);
    assert!(
        text.contains("on the device \"cpu\"; it is for \"cuda\""),
        "{text}"
    );
    let options = written([
        ("burn.autodiff.logger.level", json!("basic")),
        ("burn.autodiff.logger.stderr", json!(true)),
    ]);
    let options = parse(&options, &Context::default()).expect("every build has automatic differentiation");
    assert!(options.warnings().is_empty());
}

#[cfg(not(feature = "persistence"))]
#[test]
fn a_build_that_claims_caches_on_disk_and_has_none_is_not_believed() {
    assert!(
        everything()
            .features
            .contains(&flow_runtime::Feature::Persistence)
    );
    assert_eq!(
        found([("cubecl.compilation.cache", json!(true))])[0].0,
        codes::MISSING_FEATURE
    );
}

#[test]
fn pairs_that_contradict_one_another_or_do_nothing_are_found() {
    let only = |found: Vec<(&'static str, String)>, code: &str, option: &str| {
        assert_eq!(
            found,
            [(found.first().map_or("", |found| found.0), option.to_owned())]
        );
        assert_eq!(found[0].0, code);
    };
    const STREAMS: &str = "cubecl.streaming.max_streams";
    let single = ("cubecl.streaming.policy", json!("single"));
    only(
        found([single, (STREAMS, json!(4))]),
        "runtime::single-stream",
        STREAMS,
    );
}

#[test]
fn keeping_records_that_are_not_made_is_found() {
    const KEEP: &str = "cubecl.environment.records.keep_sessions";
    let with = |level: &str| {
        let found = found([
            ("cubecl.environment.records.level", json!(level)),
            (KEEP, json!(3)),
        ]);
        found.contains(&("runtime::no-records", KEEP.to_owned()))
    };
    assert!(with("off") && !with("basic"));
}

#[test]
fn loggers_that_write_nothing_or_nowhere_are_found() {
    let logger = |end: &str| format!("cubecl.memory.logger.{end}");
    let (level, append) = (logger("level"), logger("append"));
    assert_eq!(
        found([(&level, json!("full"))]),
        [("runtime::logger-without-sink", level.clone())]
    );
    assert_eq!(found([(&level, json!("disabled"))]), []);
    for (sink, value) in [
        ("file", json!("x.log")),
        ("stdout", json!(true)),
        ("stderr", json!(true)),
        ("log", json!("info")),
    ] {
        let sink = logger(sink);
        assert_eq!(found([(&level, json!("full")), (&sink, value.clone())]), []);
        assert_eq!(
            found([(&sink, value)]),
            [("runtime::sink-without-level", sink.clone())]
        );
    }
    assert_eq!(found([(&logger("stdout"), json!(false))]), []);
    assert_eq!(
        found([(&append, json!(true))]),
        [("runtime::append-without-file", append.clone())]
    );
}

#[test]
fn variable_shapes_warn_with_enforced_memory_and_with_captured_graphs() {
    let mut context = everything();
    context.accelerators.insert("graph-capture".into());
    let options = written([("cubecl.memory.persistent_memory", json!("enforced"))]);
    assert_eq!(findings(&options, &context), []);
    context.variable_shapes = true;
    let codes: Vec<&str> = findings(&options, &context)
        .iter()
        .map(|finding| finding.code)
        .collect();
    assert_eq!(
        codes,
        [
            "runtime::enforced-memory-variable-shapes",
            "runtime::capture-variable-shapes"
        ]
    );
    let mild = written([("cubecl.memory.persistent_memory", json!("size-match"))]);
    assert_eq!(findings(&mild, &context).len(), 1);
    assert_eq!(findings(&written([]), &context).len(), CONTEXT_RULES.len());
    assert!(
        findings(&written([]), &context)
            .iter()
            .all(|finding| finding.severity == Severity::Warning)
    );
}

#[test]
fn relative_paths_start_from_the_base_and_absolute_ones_do_not() {
    let context = Context {
        base: "runs/a".into(),
        ..everything()
    };
    let absolute = std::path::absolute("x.log").expect("a current folder");
    let options = written([
        ("burn.autodiff.logger.file", json!("logs/autodiff.log")),
        ("cubecl.memory.logger.file", json!(absolute)),
    ]);
    let options = parse(&options, &context).expect("valid options");
    let file = |path: &Path| Some(Value::File(path.to_owned()));
    assert_eq!(
        options.get("burn.autodiff.logger.file").cloned(),
        file(Path::new("runs/a/logs/autodiff.log"))
    );
    assert_eq!(options.get("cubecl.memory.logger.file").cloned(), file(&absolute));
}

#[test]
fn whole_floats_are_integers_as_in_the_schema() {
    let options = written([
        ("cubecl.streaming.max_streams", json!(8.0)),
        ("cubecl.streaming.priority", json!("low")),
    ]);
    let options = parse(&options, &everything()).expect("valid options");
    assert_eq!(
        options.get("cubecl.streaming.max_streams"),
        Some(&Value::Integer(8))
    );
}

/// The value of an option in the configuration that comes of the options.
fn configured(options: &RuntimeOptions, path: &str) -> Json {
    let burn = serde_json::to_value(burn_config(options).expect("Burn takes the options"));
    let cubecl = serde_json::to_value(cubecl_config(options).expect("CubeCL takes the options"));
    let (burn, cubecl) = (burn.expect("JSON"), cubecl.expect("JSON"));
    let (tree, inner) = match path.split_once('.') {
        Some(("burn", inner)) => (burn, inner),
        Some((_, inner)) => (cubecl, inner),
        None => panic!("{path} has no dot"),
    };
    inner.split('.').fold(&tree, |tree, key| &tree[key]).clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_valid_options_parse_and_read_back_as_they_were_given(options in valid_options(usable().collect())) {
        let parsed = parse(&options, &everything()).expect("valid options");
        prop_assert_eq!(parsed.iter().count(), options.len());
        for (path, value) in &options {
            prop_assert_eq!(&configured(&parsed, path), value, "{}", path);
        }
        for spec in usable().filter(|spec| !options.contains_key(spec.path)) {
            prop_assert_eq!(configured(&parsed, spec.path), spec.default.to_json(), "{}", spec.path);
        }
    }

    #[test]
    fn no_input_whatever_panics(key in ".{0,30}", index in 0..OPTIONS.len(), text in ".{0,30}", number: f64, depth in 0..40usize) {
        let nested = (0..depth).fold(json!(text), |inner, _| json!({ "autotune": inner }));
        let values = [json!(text), json!(number), nested, json!([number, text])];
        for value in values {
            let options = [(key.clone(), value.clone()), (OPTIONS[index].path.to_owned(), value)].into();
            if let Err(error) = parse(&options, &everything()) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}
