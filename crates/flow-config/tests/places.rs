//! The place of a diagnostic that somebody else makes, who knows the path of its key and no text.

use flow_config::{Diagnostic, Layer, Resolved, check_params, codes};
use schemars::JsonSchema;
use serde_json::json;
use test_catalog::{inspect_named, parse_named};

const FILE: &str = r#"config_version = 1
preset = "digits-dit"

[sampling]
micro_batch = 64

[[acceleration.shared]]
name = "one"

[[acceleration.shared]]
name = "two"
params = { depth = { most = 3 } }

[acceleration.rollout]
name = "alone"
params.threshold = 0.5

[runtime.options]
"a.b" = true
"#;

fn resolved(overrides: &[&str]) -> Resolved {
    let overrides: Vec<String> = overrides.iter().map(|one| (*one).to_owned()).collect();
    parse_named("a.toml", FILE, &overrides).expect("a right config")
}

/// The text that is underlined, the source's name, and the layer.
fn place(resolved: &Resolved, diagnostic: Diagnostic) -> (Option<String>, Option<String>, Option<Layer>) {
    let report = resolved.located([diagnostic]);
    let found = report
        .diagnostics
        .iter()
        .find(|one| one.code == "test::code")
        .expect("kept");
    let text = report
        .source_of(found)
        .zip(found.span.clone())
        .map(|(source, span)| source.text[span].to_owned());
    (text, found.file.clone(), found.layer)
}

fn at(path: &str) -> Diagnostic {
    Diagnostic::warning("test::code", "something").path(path)
}

#[test]
fn a_path_leads_to_the_text_it_was_written_in() {
    for (path, text) in [
        ("acceleration.shared.1.name", "\"two\""),
        ("acceleration.shared.1.params.depth.most", "3"),
        ("acceleration.rollout.0.name", "\"alone\""),
        ("acceleration.rollout.0.params.threshold", "0.5"),
        ("runtime.options.\"a.b\"", "true"),
        ("sampling.micro_batch", "64"),
    ] {
        let (found, file, layer) = place(&resolved(&[]), at(path));
        assert_eq!(found.as_deref(), Some(text), "{path}");
        assert_eq!((file.as_deref(), layer), (Some("a.toml"), Some(Layer::File)));
    }
}

#[test]
fn a_missing_key_leads_to_the_table_that_lacks_it() {
    let (text, _, layer) = place(&resolved(&[]), at("acceleration.shared.1.params.width"));
    assert_eq!((text.as_deref(), layer), (Some("params"), Some(Layer::File)));
}

#[test]
fn overrides_presets_and_defaults_are_named_as_what_they_are() {
    let set = resolved(&["acceleration.rollout.0.params.threshold=0.25"]);
    let (text, file, layer) = place(&set, at("acceleration.rollout.0.params.threshold"));
    assert_eq!(
        (text.as_deref(), file.as_deref(), layer),
        (Some("0.25"), Some("--set"), Some(Layer::Override))
    );
    let (text, file, layer) = place(&resolved(&[]), at("model.dit.hidden"));
    assert!(text.is_some_and(|text| text.parse::<usize>().is_ok()));
    assert_eq!(
        (file.as_deref(), layer),
        (Some("preset digits-dit"), Some(Layer::Preset))
    );
    let report = resolved(&[]).located([at("optimizer.epsilon")]);
    let found = report.diagnostics.last().expect("kept");
    assert_eq!((found.layer, found.line), (Some(Layer::Default), None));
    assert!(
        report.render().contains("`optimizer.epsilon` is written nowhere"),
        "{}",
        report.render()
    );
}

#[test]
fn the_place_is_that_of_the_first_key_that_somebody_wrote() {
    let both = at("optimizer.epsilon").related(["sampling.micro_batch", "run.steps"]);
    let report = resolved(&[]).located([both]);
    let found = report.diagnostics.last().expect("kept");
    assert_eq!(found.path, "sampling.micro_batch");
    assert_eq!(found.related, ["optimizer.epsilon", "run.steps"]);
    assert_eq!(found.line, Some(5));
}

#[test]
fn what_can_be_read_of_a_wrong_config_is_given_and_what_is_wrong_in_it_is_known() {
    let text = "config_version = 1\n[run]\nsteps = 0\n[sampling]\nmicro_batch = 4\n";
    let inspection = inspect_named("a.toml", text, &[]);
    assert!(inspection.report.has_errors());
    let partial = inspection.partial.expect("all else is right");
    assert_eq!(partial.config.sampling.micro_batch, 4);
    assert!(!partial.is_whole("run") && partial.is_whole("sampling"));
    assert!(inspect_named("a.toml", "= 3", &[]).partial.is_none());
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[allow(dead_code)]
struct Params {
    /// At which change.
    #[schemars(range(min = 0.0, max = 1.0))]
    threshold: f64,
    scope: Option<Scope>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
#[allow(dead_code)]
enum Scope {
    AllSteps,
    Window,
}

#[test]
fn foreign_parameters_are_judged_in_the_words_of_the_config() {
    let schema = schemars::schema_for!(Params).to_value();
    let found = |params| {
        let found = check_params(&params, &schema, "acceleration.shared.0.params");
        found
            .into_iter()
            .map(|one| (one.code, one.path.clone(), one))
            .collect::<Vec<_>>()
    };
    assert!(found(json!({ "threshold": 0.5, "scope": "window" })).is_empty());
    let below = |key: &str| format!("acceleration.shared.0.params.{key}");
    let all = found(json!({ "threshold": 3, "scope": "windw", "treshold": 1 }));
    let codes: Vec<_> = all.iter().map(|(code, path, _)| (*code, path.clone())).collect();
    assert_eq!(
        codes,
        [
            (codes::NOT_ALLOWED, below("scope")),
            (codes::OUT_OF_RANGE, below("threshold")),
            (codes::UNKNOWN_KEY, below("treshold")),
        ]
    );
    assert_eq!(all[0].2.nearest.as_deref(), Some("window"));
    assert_eq!(all[2].2.help.as_deref(), Some("did you mean `threshold`?"));
    assert_eq!(found(json!({}))[0].1, below("threshold"));
    // No key of the config is suggested where parameters are asked for.
    assert_eq!(found(json!({ "threshold": 0, "group_size": 1 }))[0].2.help, None);
}

#[test]
fn the_old_key_of_attention_shows_the_entry_to_write_with_the_value_filled_in() {
    let report = parse_named(
        "a.toml",
        "config_version = 1\n[model]\nattn_backend = \"reference\"\n",
        &[],
    );
    let report = report.expect_err("no such key");
    let found = &report.diagnostics[0];
    assert_eq!(
        (found.code, found.path.as_str()),
        (codes::REMOVED_KEY, "model.attn_backend")
    );
    let help = found.help.clone().expect("help");
    let (start, end) = (
        help.find("[[").expect("an entry"),
        help.find("\n\n`").expect("its end"),
    );
    let pasted = format!("config_version = 1\n{}\n", &help[start..end]);
    let config = parse_named("b.toml", &pasted, &[])
        .expect("ready to paste")
        .config;
    assert_eq!(config.acceleration.shared[0].params["backend"], "reference");
    let native = parse_named(
        "a.toml",
        "config_version = 1\nmodel.attn_backend = \"native\"\n",
        &[],
    );
    assert!(native.expect_err("no such key").render().contains("remove it"));
}
