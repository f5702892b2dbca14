//! Runs of adapters on frozen weights in low precision: exact on policy, resumed bit for bit, and of another policy.

use crate::support::{Left, Registries, RunTo, config, environment, registries, with_trainer};
use flow_attention::AttentionRegistry;
use flow_core::LowPrecisionFormat;
use flow_trainer::{TrainError, setup};
use std::path::Path;

/// The registries of a program.
fn with_accelerators() -> Registries {
    let mut found = registries();
    flow_accelerators::register(&mut found.accelerators, &AttentionRegistry::default())
        .expect("different names");
    found
}

/// An entry of `acceleration.shared`.
fn entry(format: &str, keep: &str) -> String {
    format!(
        "acceleration.shared=[{{ name = \"low_precision\", params = {{ compute = \"storage\", format = \"{format}\"{keep} }} }}]"
    )
}

const LORA: [&str; 3] = [
    "model.finetune=\"lora\"",
    "lora.targets=[\"to_q\", \"to_v\"]",
    "algorithm.kl={ kind = \"mean\", beta = 0.1, reference = \"lora-off\" }",
];

/// A run in `root`, to iteration `until`.
fn run(overrides: &[&str], root: &Path, resume: bool, until: u64) -> Result<Left, TrainError> {
    let registries = with_accelerators();
    let run = RunTo { root, resume, until };
    with_trainer(&config(overrides), &environment(&registries), run)
}

#[test]
fn the_ratio_is_exactly_one_and_a_resumed_run_is_the_uninterrupted_one() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let go = |name: &str, entry: Option<&str>, resume, until| {
        let overrides: Vec<&str> = LORA.into_iter().chain(entry).collect();
        run(&overrides, &root.path().join(name), resume, until)
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let plain = go("plain", None, false, 3);
    for format in LowPrecisionFormat::ALL.map(LowPrecisionFormat::name) {
        let entry = entry(format, "");
        let entry = Some(&*entry);
        let whole = go(&format!("{format}-whole"), entry, false, 3);
        let deviations = whole.metrics.lines().filter_map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).expect("a record");
            record.get("on_policy/max_ratio_deviation")?.as_f64()
        });
        assert_eq!(deviations.collect::<Vec<_>>(), [0.0; 3], "{format}");
        assert_ne!(
            whole.weights, plain.weights,
            "{format}: the frozen weights are others"
        );

        let parts = format!("{format}-parts");
        go(&parts, entry, false, 2);
        // The evaluation at the early end is not part of the whole run.
        let newest = root.path().join(&parts).join("run/checkpoints/step-000002.ckpt");
        std::fs::remove_file(&newest).expect("the run saved its end");
        assert_eq!(go(&parts, entry, true, 3), whole, "{format}");
    }
}

#[test]
fn a_run_does_not_go_on_with_weights_in_another_form() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let [fp8, int8, nf4] = ["fp8", "int8", "nf4"].map(|format| entry(format, ""));
    let overrides = |entry| -> Vec<&str> { LORA.into_iter().chain(entry).collect() };
    run(&overrides(Some(&*fp8)), root.path(), false, 1).unwrap_or_else(|error| panic!("{error}"));
    for entry in [None, Some(&*int8), Some(&*nf4)] {
        let resumed = run(&overrides(entry), root.path(), true, 2);
        let error = resumed.map(|left| left.metrics).expect_err("another policy");
        let text = error.to_string();
        assert!(text.contains("stored in another form"), "{text}");
    }
}

#[test]
fn weights_stay_as_they_are_where_all_are_trained_and_a_pattern_that_keeps_nothing_is_named() {
    let registries = with_accelerators();
    let environment = environment(&registries);
    let model = |overrides: &[&str]| setup::model(&config(overrides), &environment);

    let all = entry("int8", "");
    let stored = model(&[&LORA[..], &[&*all]].concat()).unwrap_or_else(|error| panic!("{error}"));
    let names = |parts: &setup::ModelParts| -> Vec<String> {
        let specs = parts.weights.layout().specs().iter().enumerate();
        specs
            .filter(|(index, _)| parts.weights.low_precision(*index).is_some())
            .map(|(_, spec)| spec.name.clone())
            .collect()
    };
    let found = names(&stored);
    assert!(!found.is_empty());
    assert!(found.iter().all(|name| name.ends_with(".weight")), "{found:?}");

    let kept = entry("int8", ", keep = [\"to_q\"]");
    let kept = model(&[&LORA[..], &[&*kept]].concat()).unwrap_or_else(|error| panic!("{error}"));
    let of_queries = |name: &&String| name.ends_with("to_q.weight");
    assert_eq!(found.iter().filter(of_queries).count(), 2, "{found:?}");
    assert_eq!(names(&kept).len() + 2, found.len());

    let wrong = entry("fp8", ", keep = [\"to_p\"]");
    let error = model(&[&LORA[..], &[&*wrong]].concat()).expect_err("a pattern that names nothing");
    assert!(
        error.to_string().contains("`to_p`, which names no layer"),
        "{error}"
    );

    let full = model(&[&*all]).unwrap_or_else(|error| panic!("{error}"));
    assert!(names(&full).is_empty());
    let refused = setup::common(&config(&[&*all]), &environment)
        .map(|_| ())
        .expect_err("all weights are trained");
    assert!(refused.to_string().contains("trains all of them"), "{refused}");
}
