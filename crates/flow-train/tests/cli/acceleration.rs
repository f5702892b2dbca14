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
fn a_run_with_fused_kernels_has_the_numbers_of_one_without() {
    let numbers = |place: &Place| -> Vec<Value> {
        let mut trained = records(place, "train");
        for record in &mut trained {
            let record = record.as_object_mut().expect("a table");
            record.retain(|key, _| !key.starts_with("acceleration/"));
        }
        trained
    };
    let plain = Place::new();
    plain.succeed(&["train", "tiny.toml"]);
    let expected = numbers(&plain);
    assert_eq!(expected.len(), 2);
    let mut replaced = Vec::new();
    for mode in ["regional", "full"] {
        let place = Place::new();
        let set =
            format!("acceleration.shared={{ name = \"fused_kernels\", params = {{ mode = \"{mode}\" }} }}");
        place.succeed(&["train", "tiny.toml", "--set", &set]);
        assert_eq!(numbers(&place), expected, "{mode}");
        let counted = &records(&place, "train")[0]["acceleration/fused_kernels/kernels_replaced"];
        replaced.push(counted.as_f64().expect("counted"));
    }
    assert!(replaced[0] > 0.0 && replaced[0] < replaced[1], "{replaced:?}");
}

#[test]
fn check_and_plan_show_accelerators_and_refuse_what_cannot_be() {
    let place = Place::new();
    let plan = place.succeed(&["plan", "tiny.toml", "--set", REFERENCE]);
    contains(
        &plan,
        &["attention_backend (lossless)", "attention      reference"],
    );
    let set = |entry: &str| format!("acceleration.shared={entry}");
    for (entry, texts) in [
        (
            "{ name = \"attention_backend\" }",
            ["missing-key", "lacks `backend`"],
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
            "{ name = \"fusion\" }",
            ["acceleration::refused", "CubeCL backends only"],
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
fn options_of_the_runtime_are_in_force_and_in_the_manifest_with_their_source() {
    let place = Place::new();
    let level = "runtime.options.\"burn.autodiff.logger.level\"=\"basic\"";
    let file = "runtime.options.\"burn.autodiff.logger.file\"=\"backward.log\"";
    place.succeed(&["train", "tiny.toml", "--dry-run", "--set", level, "--set", file]);
    assert!(!place.path("backward.log").exists(), "a dry run writes nothing");
    place.succeed(&["train", "tiny.toml", "--set", level, "--set", file]);
    let manifest: Value = serde_json::from_str(&place.text("runs/tiny/run.json")).expect("JSON");
    let options = manifest["device"]["runtime_options"].as_array().expect("a list");
    let of = |key: &str| {
        let found = options.iter().find(|option| option["key"] == key);
        found.unwrap_or_else(|| panic!("{key}: {options:#?}"))
    };
    let given = of("burn.autodiff.logger.level");
    assert_eq!(
        (&given["value"], &given["default"]),
        (&"basic".into(), &"disabled".into())
    );
    assert_eq!(given["source"], format!("--set {level}"));
    let default = of("burn.autodiff.logger.append");
    assert_eq!(
        (&default["value"], &default["source"]),
        (&true.into(), &"default".into())
    );
    assert!(
        options
            .iter()
            .all(|option| option["key"].as_str().expect("text").starts_with("burn.autodiff")),
        "nothing that nobody reads: {options:#?}"
    );
    assert!(
        place.text("backward.log").lines().count() > 0,
        "Burn read the options"
    );

    let without = Place::new();
    std::fs::write(
        without.path("burn.toml"),
        "[autodiff.logger]\nlevel = \"full\"\nfile = \"stray.log\"\n",
    )
    .expect("written");
    without.succeed(&["train", "tiny.toml"]);
    assert!(
        !without.path("stray.log").exists(),
        "a `burn.toml` that lies about counts for nothing"
    );
    let manifest: Value = serde_json::from_str(&without.text("runs/tiny/run.json")).expect("JSON");
    let options = manifest["device"]["runtime_options"].as_array().expect("a list");
    assert_eq!(options.len(), 6, "{options:#?}");
    for option in options {
        assert_eq!(
            (&option["value"], &option["source"]),
            (&option["default"], &"default".into())
        );
    }
}

#[test]
fn the_lists_name_the_accelerators_and_the_backends() {
    let place = Place::bare();
    contains(
        &place.succeed(&["list", "accelerators"]),
        &[
            "attention_backend",
            "feature_cache",
            "fused_kernels",
            "fusion",
            "graph_capture",
            "low_precision",
            "floor: refused",
        ],
    );
    contains(&place.succeed(&["list", "attention"]), &["cpu", "reference"]);
}

/// A cache that answers every step it may.
fn cache(scope: &str) -> String {
    format!(
        "acceleration.rollout={{ name = \"feature_cache\", params = {{ policy = \"first_block\", threshold = 9.0, \
         warmup_steps = 0, scope = \"{scope}\" }} }}"
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
    let text = place.succeed(&["audit", "tiny.toml", "--all"]);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("cpu "))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let dtypes = if flow_kernels::CpuKernels::bf16().is_ok() {
        2
    } else {
        1
    };
    assert_eq!(rows.len(), 2 * 3 * 2 * 3 * 2 * 4 * 2 * dtypes, "{text}");
    for row in rows {
        let [.., ratios, deviation] = row[..] else {
            panic!("{row:?}")
        };
        assert!(
            ratios.parse::<u64>().expect("a number") > 0 && deviation == "0e0",
            "{row:?}"
        );
    }
    contains(
        &text,
        &[
            "regional",
            "full",
            "exact",
            "attn-only",
            "grpo-guard",
            "gardo",
            "lora",
            "combinations are exact",
        ],
    );
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
fn an_audit_of_a_config_in_low_precision_has_its_combinations_with_it_and_without_and_all_are_exact() {
    let place = Place::new();
    let audited = |params: &str| {
        let entry = format!("acceleration.shared={{ name = \"low_precision\", params = {{ {params} }} }}");
        let only = ["dtype=f32", "reuse=off", "attention=cpu", "algorithm=grpo"];
        let text = place.succeed(
            &[
                &narrowed(&only)[..],
                &["--set", "model.finetune=lora", "--set", entry.as_str()],
            ]
            .concat(),
        );
        let rows = text.lines().filter(|line| line.starts_with("cpu "));
        let rows = rows.map(|line| {
            let cells: Vec<&str> = line.split_whitespace().collect();
            let [_, _, weights, .., low, ratios, deviation] = cells[..] else {
                panic!("{line}")
            };
            assert!(
                ratios.parse::<u64>().expect("a number") > 0 && deviation == "0e0",
                "{line}"
            );
            format!("{weights} {low}")
        });
        let mut found: Vec<String> = rows.collect();
        found.dedup();
        found
    };
    assert_eq!(
        audited("compute = \"fp8\", format = \"fp8\""),
        ["full off", "full fp8", "lora off", "lora fp8"]
    );
    let gradients = "compute = \"fp8\", format = \"fp8\", data_gradient = \"fp8\"";
    assert_eq!(
        audited(gradients),
        [
            "full off",
            "full fp8-data-gradient",
            "lora off",
            "lora fp8-data-gradient"
        ]
    );
    // Nothing is frozen where all is trained.
    assert_eq!(
        audited("compute = \"storage\", format = \"nf4\""),
        ["full off", "lora off", "lora storage-nf4"]
    );
}

fn narrowed<'a>(only: &[&'a str]) -> Vec<&'a str> {
    let only = only.iter().flat_map(|entry| ["--only", entry]);
    ["audit", "tiny.toml", "--all"].into_iter().chain(only).collect()
}

#[test]
fn an_audit_takes_few_combinations_says_how_many_and_ends_when_nobody_reads() {
    let place = Place::new();
    let outcome = place.run(&["audit", "tiny.toml"]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    let mut words = outcome.stderr.split_whitespace();
    let count: usize = words.nth(1).unwrap().parse().unwrap();
    let all: usize = words.nth(1).unwrap().parse().unwrap();
    assert!(count <= 24 && all >= 288, "{}", outcome.stderr);
    contains(&outcome.stderr, &["`--all`"]);
    let first: Vec<&str> = outcome
        .stdout
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .take(2)
        .collect();
    assert_eq!(first, ["device", "dtype"]);
    let rows = outcome.stdout.lines().filter(|line| line.starts_with("cpu "));
    assert_eq!(rows.count(), count);
    let exact = format!("all {count} combinations are exact");
    contains(
        &outcome.stdout,
        &[&exact, &format!("; {} more were not run", all - count)],
    );

    let mut child = place
        .command(&["audit", "tiny.toml", "--all"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(141), "it was cut off");
}

#[test]
fn combinations_that_fail_have_rows_that_say_why_and_the_others_are_audited() {
    let place = Place::new();
    let mut asked = narrowed(&[
        "attention=cpu",
        "fused=off",
        "keeps=none",
        "reuse=off",
        "dtype=f32",
    ]);
    // Adapters of no layer: whatever trains all weights is none the wiser.
    asked.extend(["--set", "lora.targets=[\"*.atention.*\"]"]);
    let outcome = place.run(&asked);
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    let rows: Vec<&str> = outcome
        .stdout
        .lines()
        .filter(|line| line.starts_with("cpu "))
        .collect();
    let (failed, exact): (Vec<&str>, Vec<&str>) =
        rows.iter().copied().partition(|row| row.contains("  failed: "));
    assert_eq!((failed.len(), exact.len()), (8, 8), "{}", outcome.stdout);
    for row in failed {
        contains(row, &["lora", "*.atention.*"]);
    }
    for row in exact {
        assert!(row.contains(" full ") && row.ends_with(" 0e0"), "{row}");
    }
    contains(&outcome.stderr, &["8 of 16 combinations failed"]);
    assert!(
        !outcome.stdout.contains("combinations are exact"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn an_audit_without_its_weights_says_so_once() {
    let place = Place::bare();
    contains(
        &place.fail(2, &["audit", "tiny.toml"]),
        &["tiny.safetensors", "flow-train pretrain"],
    );
}

#[test]
fn an_audit_can_be_narrowed_down_to_values_of_its_columns() {
    let place = Place::new();
    let asked = narrowed(&[
        "attention=cpu",
        "fused=off",
        "keeps=full",
        "keeps=none",
        "reuse=off",
        "weights=lora",
        "dtype=f32",
    ]);
    contains(&place.succeed(&asked), &["all 16 combinations are exact"]);
    let unknown = place.fail(2, &narrowed(&["dtype=f64"]));
    contains(&unknown, &["`--only dtype=f64`", "`dtype` is one of:", "f32"]);
    let unknown = place.fail(2, &narrowed(&["kernel=cpu"]));
    contains(
        &unknown,
        &["`--only kernel=cpu`", "attention, fused, capture, keeps"],
    );
}

#[test]
fn an_accelerator_and_each_of_its_parameters_can_be_explained() {
    let place = Place::bare();
    contains(
        &place.succeed(&["explain", "feature_cache"]),
        &["policy", "threshold", "spatial_every"],
    );
    contains(
        &place.succeed(&["explain", "feature_cache.interval"]),
        &[
            "feature_cache.interval",
            "Every how many steps one is computed.",
            "1 to 1000",
            "default: 5",
            "only if: policy = \"taylorseer\"",
        ],
    );
    contains(
        &place.succeed(&["explain", "feature_cache.policy"]),
        &["first_block", "easycache"],
    );
    contains(
        &place.fail(2, &["explain", "feature_cahce"]),
        &["did you mean `feature_cache`?"],
    );
}

#[test]
fn the_code_of_a_finding_can_be_explained() {
    let place = Place::bare();
    let text = place.succeed(&["explain", "acceleration::lossy-outside-window"]);
    contains(&text, &["acceleration::lossy-outside-window", "log-probability"]);
    let unknown = place.fail(2, &["explain", "acceleration::no-such-code"]);
    contains(&unknown, &["no key, value or code"]);
}
