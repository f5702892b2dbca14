//! `feature_cache` from the command line: a policy for each place that a cache can answer for, in whole runs.

use crate::acceleration::records;
use crate::support::{Place, contains};

const DECOUPLED: [&str; 13] = [
    "train",
    "tiny.toml",
    "--set",
    "algorithm.kind=nft",
    "--set",
    "scheduler.dynamics=ode",
    "--set",
    "scheduler.steps=12",
    "--set",
    "sampling.guidance_scale=2.0",
    "--set",
    "acceleration.strict=true",
    "--set",
];

fn entry(params: &str) -> String {
    format!("acceleration.rollout={{ name = \"feature_cache\", params = {{ {params} }} }}")
}

#[test]
fn policies_of_blocks_velocities_and_attention_run_and_count_what_they_leave_out() {
    for (params, counted) in [
        ("policy = \"step_mask\", mask = \"fast\"", vec!["blocks_skipped"]),
        (
            "policy = \"taylorseer\", target = \"velocity\", basis = \"newton\"",
            vec!["blocks_skipped"],
        ),
        ("policy = \"pyramid\"", vec!["attention_layers_skipped"]),
        (
            "policy = \"faster\"",
            vec!["blocks_skipped", "attention_layers_skipped"],
        ),
    ] {
        let place = Place::new();
        let entry = entry(params);
        let mut arguments = DECOUPLED.to_vec();
        arguments.push(&entry);
        place.succeed(&arguments);
        for record in records(&place, "train") {
            for what in &counted {
                let count = record[format!("acceleration/feature_cache/{what}")].as_f64();
                assert!(count > Some(0.0), "{params}: {record}");
            }
        }
    }
}

#[test]
fn the_share_of_rows_answered_is_in_the_metrics_by_step_and_block() {
    let place = Place::new();
    let entry = entry("policy = \"step_mask\", mask = \"110101101011\"");
    let mut arguments = DECOUPLED.to_vec();
    arguments.push(&entry);
    place.succeed(&arguments);
    let trained = records(&place, "train");
    assert!(!trained.is_empty());
    for record in trained {
        let share =
            |part: &str| record[format!("acceleration/feature_cache/blocks_skipped/share/{part}")].as_f64();
        assert_eq!(share("step_001"), Some(0.0));
        assert_eq!(share("step_002"), Some(1.0));
        // Four of twelve steps, in the block that may be left out.
        assert_eq!(share("block_001"), Some(4.0 / 12.0));
        assert_eq!(share("block_000"), None);
    }
}

#[test]
fn a_mask_outside_the_window_leaves_every_ratio_of_a_coupled_run_exactly_one() {
    let place = Place::new();
    let entry = entry(
        "policy = \"step_mask\", mask = \"110100\", scope = \"outside_sde_window\", compute_last = false",
    );
    place.succeed(&[
        "train",
        "tiny.toml",
        "--set",
        "scheduler.steps=6",
        "--set",
        "scheduler.window={ kind = \"list\", steps = [3] }",
        "--set",
        &entry,
    ]);
    for record in records(&place, "train") {
        assert_eq!(record["on_policy/max_ratio_deviation"], 0.0);
        let skipped = record["acceleration/feature_cache/blocks_skipped"].as_f64();
        assert!(skipped > Some(0.0), "{record}");
    }
}

#[test]
fn a_policy_that_cannot_answer_for_the_model_is_refused_with_what_to_change() {
    let place = Place::new();
    let check = |params: &str| {
        let entry = entry(params);
        let mut arguments = DECOUPLED.to_vec();
        arguments[0] = "check";
        arguments.push(&entry);
        place.fail(2, &arguments)
    };
    contains(
        &check("policy = \"db_cache\""),
        &["no stack of at least 9 blocks", "params.front_blocks"],
    );
    contains(&check("policy = \"magcache\""), &["`ratios` must hold"]);
    contains(
        &check("policy = \"tea_cache\""),
        &["cannot be `tea_cache`", "did you mean \"teacache\"?"],
    );
}
