//! `[acceleration]` from the command line: what is in force shows, and what cannot be is refused.

use crate::support::{Place, contains};
use serde_json::Value;

const REFERENCE: &str =
    "acceleration.shared={ name = \"Attention_Backend\", params = { backend = \"reference\" } }";

pub fn records(place: &Place, kind: &str) -> Vec<Value> {
    let metrics = place.text("runs/tiny/metrics.jsonl");
    let records = metrics
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    records.filter(|record: &Value| record["kind"] == kind).collect()
}

#[test]
fn an_attention_backend_is_named_counted_and_exact_on_policy() {
    let place = Place::new();
    place.succeed(&["train", "tiny.toml", "--set", REFERENCE]);
    let manifest: Value = serde_json::from_str(&place.text("runs/tiny/run.json")).expect("JSON");
    let device = &manifest["device"];
    assert_eq!(
        device["acceleration"],
        "shared: attention_backend (lossless); rollout: none"
    );
    assert!(
        device["training_plan"]
            .to_string()
            .contains("attention reference")
    );
    assert_eq!(device["exact_on_policy"], true);
    let trained = records(&place, "train");
    assert_eq!(trained.len(), 2);
    for record in trained {
        assert_eq!(record["on_policy/max_ratio_deviation"], 0.0);
        let calls = record["acceleration/attention_backend/kernels_replaced"].as_f64();
        assert!(calls > Some(0.0), "{record}");
    }
}

#[test]
fn a_resumed_run_with_an_accelerator_counts_as_one_that_was_never_stopped() {
    let whole = Place::new();
    whole.succeed(&["train", "tiny.toml", "--set", REFERENCE]);
    let parts = Place::new();
    parts.succeed(&["train", "tiny.toml", "--set", REFERENCE, "--set", "run.steps=1"]);
    parts.succeed(&["train", "tiny.toml", "--set", REFERENCE, "--resume", "latest"]);
    assert_eq!(records(&whole, "train"), records(&parts, "train"));
}

#[test]
fn check_and_plan_show_accelerators_and_refuse_what_cannot_be() {
    let place = Place::new();
    let plan = place.succeed(&["plan", "tiny.toml", "--set", REFERENCE]);
    contains(&plan, &["attention_backend (lossless)", "attention reference"]);
    let set = |entry: &str| format!("acceleration.shared={entry}");
    for (entry, texts) in [
        (
            "{ name = \"attention_backend\" }",
            ["acceleration::bad-parameters", "missing field `backend`"],
        ),
        (
            "{ name = \"attention_backend\", params = { backend = \"cpu\" } }",
            ["acceleration::refused", "is the backend without it"],
        ),
        (
            "{ name = \"torch_compile\" }",
            ["acceleration::removed", "PyTorch's compiler"],
        ),
        (
            "{ name = \"graph_capture\" }",
            ["acceleration::refused", "no graphs to record"],
        ),
        (
            "{ name = \"atention_backend\" }",
            ["acceleration::unknown-accelerator", "`attention_backend`"],
        ),
    ] {
        contains(
            &place.fail(2, &["check", "tiny.toml", "--set", &set(entry)]),
            &texts,
        );
    }
    let rollout =
        "acceleration.rollout={ name = \"attention_backend\", params = { backend = \"reference\" } }";
    contains(
        &place.fail(2, &["check", "tiny.toml", "--set", rollout]),
        &["acceleration::not-for-rollout", "acceleration.shared"],
    );
}

#[test]
fn the_lists_name_the_accelerators_and_the_backends() {
    let place = Place::bare();
    contains(
        &place.succeed(&["list", "accelerators"]),
        &["attention_backend", "feature_cache", "graph_capture"],
    );
    contains(&place.succeed(&["list", "attention"]), &["cpu", "reference"]);
}

/// A cache that answers every step it may.
fn cache(scope: &str) -> String {
    format!(
        "acceleration.rollout={{ name = \"feature_cache\", params = {{ policy = \"first_block\", threshold = 9.0, scope = \
         \"{scope}\" }} }}"
    )
}

#[test]
fn a_cache_outside_the_window_leaves_every_ratio_of_a_coupled_run_exactly_one() {
    let place = Place::new();
    let outside = cache("outside_sde_window");
    let window = "scheduler.window={ kind = \"list\", steps = [2] }";
    let arguments = [
        "train",
        "tiny.toml",
        "--set",
        &outside,
        "--set",
        window,
        "--set",
        "scheduler.steps=6",
    ];
    place.succeed(&arguments);
    for record in records(&place, "train") {
        assert_eq!(record["on_policy/max_ratio_deviation"], 0.0);
        let skipped = record["acceleration/feature_cache/blocks_skipped"].as_f64();
        assert!(skipped > Some(0.0), "{record}");
    }
    let all = cache("all_steps");
    let error = place.fail(2, &["check", "tiny.toml", "--set", &all]);
    contains(
        &error,
        &["acceleration::lossy-rollout-of-coupled", "outside_sde_window"],
    );
}

#[test]
fn evaluations_between_cached_rollouts_are_those_of_a_run_without_a_cache() {
    let decoupled = [
        "train",
        "tiny.toml",
        "--set",
        "algorithm.kind=nft",
        "--set",
        "scheduler.dynamics=ode",
        "--set",
        "evaluation.every=1",
        "--set",
        "optimizer.learning_rate=1e-30",
    ];
    let evaluations = |set: Option<&str>| {
        let place = Place::new();
        let mut arguments = decoupled.to_vec();
        arguments.extend(set.iter().flat_map(|set| ["--set", set]));
        place.succeed(&arguments);
        (records(&place, "eval"), records(&place, "train"))
    };
    let all = cache("all_steps");
    let ((with, trained), (without, _)) = (evaluations(Some(&all)), evaluations(None));
    assert!(with.len() > 2);
    assert_eq!(
        with, without,
        "the weights hardly move, and no evaluation meets a cache"
    );
    let skipped: Vec<f64> = (trained.iter())
        .map(|record| {
            record["acceleration/feature_cache/blocks_skipped"]
                .as_f64()
                .expect("counted")
        })
        .collect();
    assert!(
        skipped[0] > 0.0 && skipped.iter().all(|count| *count == skipped[0]),
        "{skipped:?}"
    );
}

#[test]
fn a_cache_that_finds_nothing_to_answer_is_named_or_stops_a_strict_run() {
    let idle = cache("all_steps").replace("9.0", "1e-9");
    let place = Place::new();
    let mut arguments = vec![
        "train",
        "tiny.toml",
        "--set",
        "algorithm.kind=nft",
        "--set",
        "scheduler.dynamics=ode",
    ];
    arguments.extend(["--set", &idle]);
    let outcome = place.run(&arguments);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    let once = outcome.stderr.matches("did nothing in iteration").count();
    assert_eq!(once, 1, "named once: {}", outcome.stderr);
    contains(&outcome.stderr, &["feature_cache", "threshold = 0.000000001"]);
    arguments.extend(["--set", "acceleration.strict=true", "--on-exists", "new"]);
    contains(
        &place.fail(1, &arguments),
        &["did nothing in iteration 1", "acceleration.strict"],
    );
}

#[test]
fn the_audit_is_exact_for_every_combination_and_writes_nothing() {
    let place = Place::new();
    let text = place.succeed(&["audit", "tiny.toml"]);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("cpu ") || line.starts_with("reference "))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let dtypes = if flow_kernels::CpuKernels::bf16().is_ok() {
        2
    } else {
        1
    };
    assert_eq!(rows.len(), 2 * 2 * 2 * 2 * dtypes, "{text}");
    for row in rows {
        let [.., ratios, deviation] = row[..] else {
            panic!("{row:?}")
        };
        assert!(
            ratios.parse::<u64>().expect("a number") > 0 && deviation == "0e0",
            "{row:?}"
        );
    }
    contains(&text, &["grpo-guard", "lora", "combinations are exact"]);
    assert!(!place.path("runs").exists());
    let ode = [
        "audit",
        "tiny.toml",
        "--set",
        "scheduler.dynamics=ode",
        "--set",
        "algorithm.kind=nft",
    ];
    contains(&place.fail(2, &ode), &["no stochastic step", "flow-sde"]);
}

#[test]
fn the_code_of_a_finding_can_be_explained() {
    let place = Place::bare();
    let text = place.succeed(&["explain", "acceleration::lossy-outside-window"]);
    contains(&text, &["acceleration::lossy-outside-window", "log-probability"]);
    let unknown = place.fail(2, &["explain", "acceleration::no-such-code"]);
    contains(&unknown, &["no key or code"]);
}
