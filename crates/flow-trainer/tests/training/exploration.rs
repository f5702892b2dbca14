//! Exploration: cheap candidates choose, exact trajectories train.

use crate::support::{Left, RunTo, Visit, config, environment, registries, with_parts};
use flow_trainer::TrainError;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::Silent;
use flow_trainer::trainer::Parts;
use serde_json::{Map, Value};
use std::path::Path;

/// A run of the base config, with the accelerators of the program.
fn run(overrides: &[&str], root: &Path, resume: bool, until: u64) -> Left {
    let mut registries = registries();
    let backends = flow_attention::AttentionRegistry::default();
    flow_accelerators::register(&mut registries.accelerators, &backends).expect("a new registry");
    let run = RunTo { root, resume, until };
    with_parts(&config(overrides), &environment(&registries), run)
        .unwrap_or_else(|error| panic!("{overrides:?}: {error}"))
}

/// What iterations wrote down.
fn iterations(left: &Left) -> Vec<Map<String, Value>> {
    let lines = left.metrics.lines();
    let records = lines.map(|line| serde_json::from_str::<Map<String, Value>>(line).expect("a record"));
    records.filter(|record| record["kind"] == "train").collect()
}

fn number(record: &Map<String, Value>, key: &str) -> f64 {
    let value = record.get(key).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("no `{key}` in {record:?}"))
}

#[test]
fn lossless_means_score_those_kept_as_the_exact_ones_bit_for_bit() {
    let same = "exploration.dynamics=\"same\"";
    let ode = ["scheduler.dynamics=\"ode\"", "algorithm.kind=\"nft\""];
    let variants: [&[&str]; 4] = [
        &[same, "exploration.keep=\"extremes\""],
        &[
            same,
            "exploration.keep=\"spread\"",
            "sampling.initial_noise=\"per_group\"",
        ],
        &[
            same,
            "exploration.keep=\"best\"",
            "scheduler.window={ kind = \"list\", steps = [1] }",
        ],
        // The steps of the ODE are those of the run.
        &["exploration.dynamics=\"deterministic\"", ode[0], ode[1]],
    ];
    for variant in variants {
        let root = tempfile::tempdir().expect("a temporary directory");
        let left = run(
            &[variant, &["exploration.candidates=10"]].concat(),
            root.path(),
            false,
            2,
        );
        let records = iterations(&left);
        assert_eq!(records.len(), 2);
        for record in records {
            assert_eq!(
                number(&record, "exploration/reward_difference"),
                0.0,
                "{variant:?}"
            );
            let [explored, exact] = ["exploration/reward_kept", "reward"].map(|key| number(&record, key));
            assert_eq!(explored.to_bits(), exact.to_bits(), "{variant:?}");
            assert_eq!(number(&record, "exploration/candidates"), 10.0);
            // 3 prompts of 10 candidates in batches of 6, in 4 steps.
            assert_eq!(number(&record, "exploration/forward_calls"), 20.0);
            let correlation = number(&record, "exploration/rank_correlation");
            assert!((correlation - 1.0).abs() < 1e-12, "{correlation}");
        }
    }
}

#[test]
fn calls_that_a_solver_behind_the_window_saves_candidates_are_not_counted() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let overrides = [
        "exploration.candidates=10",
        "exploration.dynamics=\"same\"",
        "scheduler.window={ kind = \"list\", steps = [0] }",
        "scheduler.after_window={ kind = \"dpm-solver\", share = 0.5 }",
    ];
    for record in iterations(&run(&overrides, root.path(), false, 1)) {
        // 5 batches as above, in the random step and one in the place of three.
        assert_eq!(number(&record, "exploration/forward_calls"), 10.0);
        assert_eq!(number(&record, "exploration/reward_difference"), 0.0);
        assert_eq!(number(&record, "rollout/calls_saved"), 2.0);
    }
}

#[test]
fn a_coupled_loss_sees_exact_trajectories_only_whatever_explores() {
    let cheap: [&[&str]; 2] = [
        &["exploration.steps=2"],
        &[
            "exploration.dynamics=\"same\"",
            "exploration.accelerators={ name = \"feature_cache\", params = { \
           policy = \"taylorseer\", interval = 2, target = \"velocity\", warmup_steps = 1, compute_last = false } }",
        ],
    ];
    for means in cheap {
        let root = tempfile::tempdir().expect("a temporary directory");
        let overrides = [means, &["exploration.candidates=12", "exploration.keep=\"best\""]].concat();
        let left = run(&overrides, root.path(), false, 2);
        for record in iterations(&left) {
            assert_eq!(number(&record, "on_policy/max_ratio_deviation"), 0.0, "{means:?}");
            assert_eq!(number(&record, "on_policy/other_bits"), 0.0, "{means:?}");
            assert!(
                number(&record, "exploration/reward_difference") > 0.0,
                "{means:?}"
            );
            let [all, kept] =
                ["candidates", "kept"].map(|of| number(&record, &format!("exploration/reward_{of}")));
            assert!(kept > all, "{means:?}: {kept} {all}");
        }
    }
    let root = tempfile::tempdir().expect("a temporary directory");
    let cached = run(
        &[cheap[1], &["exploration.candidates=12"]].concat(),
        root.path(),
        false,
        1,
    );
    assert!(
        cached
            .metrics
            .contains("exploration/feature_cache/blocks_skipped"),
        "{}",
        cached.metrics
    );
}

#[test]
fn a_resumed_run_explores_as_an_uninterrupted_one() {
    let overrides = ["exploration.candidates=8", "exploration.steps=3"];
    let root = tempfile::tempdir().expect("a temporary directory");
    let whole = run(&overrides, &root.path().join("whole"), false, 4);
    let parts = root.path().join("parts");
    run(&overrides, &parts, false, 3);
    // The evaluation at the early end is not part of the whole run, so go back to the checkpoint before it.
    std::fs::remove_file(parts.join("run/checkpoints/step-000003.ckpt")).expect("the run saved its end");
    assert_eq!(run(&overrides, &parts, true, 4), whole);
    assert_eq!(whole.metrics.matches("exploration/reward_kept").count(), 4);
}

#[test]
fn a_run_without_candidates_is_that_of_a_config_that_says_nothing() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let silent = run(&[], &root.path().join("silent"), false, 2);
    let off = [
        "exploration.candidates=0",
        "exploration.steps=2",
        "exploration.keep=\"best\"",
    ];
    assert_eq!(run(&off, &root.path().join("off"), false, 2), silent);
    assert!(!silent.metrics.contains("exploration"));
}

/// The audit alone, which explores nothing: the first candidates of each group are sampled.
struct Audited;

impl Visit for Audited {
    type Output = Result<(f32, u64), TrainError>;

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) -> Self::Output {
        let audit = parts.set_up()?.audit(&mut Silent)?;
        Ok((audit.max_deviation(), audit.checked()))
    }
}

#[test]
fn the_audit_of_a_config_that_explores_reads_0() {
    let registries = registries();
    let config = config(&["exploration.candidates=8", "exploration.steps=2"]);
    let (deviation, checked) = with_parts(&config, &environment(&registries), Audited).expect("it ends");
    // 12 images, at 3 random steps each.
    assert_eq!((deviation, checked), (0.0, 36));
}
