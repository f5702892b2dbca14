//! What the cache changes, told by runs and by the commands `drift` and `calibrate`.

use crate::acceleration::records;
use crate::support::{Place, contains};
use serde_json::Value;

const NFT: [&str; 6] = [
    "--set",
    "algorithm.kind=nft",
    "--set",
    "scheduler.dynamics=ode",
    "--set",
    "scheduler.steps=12",
];
const MASK: &str =
    "acceleration.rollout={ name = \"feature_cache\", params = { policy = \"step_mask\", mask = \"fast\" } }";
const AUTO: &str =
    "acceleration.rollout={ name = \"feature_cache\", params = { policy = \"auto\", target_error = 0.05 } }";

fn with<'a>(command: &[&'a str], set: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = command.to_vec();
    arguments.extend(NFT);
    arguments.extend(set.iter().flat_map(|setting| ["--set", setting]));
    arguments
}

#[test]
fn a_run_tells_what_its_cache_changes_and_the_clock_stays_out_of_the_metrics() {
    let place = Place::new();
    place.succeed(&with(
        &["train", "tiny.toml"],
        &[MASK, "audit.drift_groups=2", "audit.drift_every=2"],
    ));
    let trained = records(&place, "train");
    let first = &trained[0];
    let number = |key: &str| first[key].as_f64().unwrap_or_else(|| panic!("no {key}: {first}"));
    assert_eq!(number("drift/samples"), 8.0);
    assert!(number("drift/velocity_l1") > 0.0 && number("drift/latent_l1") > 0.0);
    assert!(number("drift/psnr_db") > 0.0);
    assert!(number("drift/reward/low") <= number("drift/reward"));
    assert!(number("drift/reward") <= number("drift/reward/high"));
    assert!((0.0..=1.0).contains(&number("drift/advantage_sign_changes")));
    assert_eq!(
        number("drift/velocity_l1/step_000"),
        0.0,
        "the first step is computed"
    );
    assert!(
        trained[1].get("drift/samples").is_none(),
        "every second iteration only"
    );
    assert!(
        first
            .as_object()
            .is_some_and(|record| record.keys().all(|key| !key.contains("saved_s")))
    );
    let timing = place.text("runs/tiny/timing.jsonl");
    assert!(timing.contains("rollout_saved_s"), "{timing}");
}

#[test]
fn without_anything_lossy_the_drift_is_exactly_0_and_a_comparison_changes_nothing_of_the_run() {
    let (plain, compared) = (Place::new(), Place::new());
    plain.succeed(&["train", "tiny.toml"]);
    compared.succeed(&["train", "tiny.toml", "--set", "audit.drift_groups=3"]);
    for (plain, mut compared) in records(&plain, "train")
        .into_iter()
        .zip(records(&compared, "train"))
    {
        for key in ["velocity_l1", "latent_l1", "reward", "advantage_sign_changes"] {
            assert_eq!(compared[format!("drift/{key}")], 0.0, "{key}");
        }
        assert!(compared.get("drift/psnr_db").is_none());
        let record = compared.as_object_mut().expect("an object");
        record.retain(|key, _| !key.starts_with("drift/"));
        assert_eq!(compared, plain);
    }
}

#[test]
fn without_an_accelerator_of_the_rollout_there_is_nothing_to_compare() {
    let error = Place::new().fail(2, &["drift", "tiny.toml"]);
    contains(
        &error,
        &["nothing to compare", "acceleration.rollout", "feature_cache"],
    );
}

#[test]
fn an_accelerator_that_does_nothing_is_named_by_drift_or_ends_a_strict_one_as_it_ends_a_run() {
    let place = Place::new();
    let idle = "acceleration.rollout={ name = \"feature_cache\", params = { policy = \"first_block\", threshold = 1e-9, \
                warmup_steps = 0, scope = \"all_steps\" } }";
    let outcome = place.run(&with(&["drift", "tiny.toml", "--rollouts", "2"], &[idle]));
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    assert_eq!(
        outcome.stderr.matches("did nothing in rollout").count(),
        1,
        "{outcome:#?}"
    );
    let strict = [idle, "acceleration.strict=true"];
    // As `train` ends, whose exit code is 1, too.
    for command in ["drift", "train"] {
        let error = place.fail(1, &with(&[command, "tiny.toml"], &strict));
        contains(
            &error,
            &["`feature_cache` did nothing in", "acceleration.strict = false"],
        );
    }
    // Nothing of it is in force in an evaluation, and a strict one with nothing amiss is as any.
    for command in [
        &["eval", "tiny.toml"][..],
        &["sample", "tiny.toml", "--prompt", "bold 7"],
    ] {
        place.succeed(&with(command, &strict));
    }
    place.succeed(&[
        "audit",
        "tiny.toml",
        "--set",
        "acceleration.strict=true",
        "--only",
        "dtype=f32",
    ]);
}

#[test]
fn the_auto_policy_audits_itself_and_a_resumed_run_goes_on_with_what_it_learned() {
    let steps = ["run.steps=4", AUTO];
    let whole = Place::new();
    whole.succeed(&with(&["train", "tiny.toml"], &steps));
    let all = records(&whole, "train");
    let first = &all[0];
    for key in ["predicted", "audited", "audited_less_predicted"] {
        let key = format!("drift/latent_l1/{key}");
        assert!(first[&key].is_number(), "{key}: {first}");
    }
    let audited = all
        .iter()
        .filter(|record| record.get("drift/samples").is_some())
        .count();
    // 1 % of the samples, in whole groups of 3 in each iteration.
    assert_eq!(audited, 1);
    let parts = Place::new();
    parts.succeed(&with(&["train", "tiny.toml"], &["run.steps=2", AUTO]));
    parts.succeed(&with(&["train", "tiny.toml", "--resume", "latest"], &steps));
    assert_eq!(records(&parts, "train"), all);
}

#[test]
fn drift_compares_and_calibrate_writes_what_a_config_takes() {
    let place = Place::new();
    let text = place.succeed(&with(&["drift", "tiny.toml"], &[MASK]));
    contains(
        &text,
        &["block evaluations", "PSNR", "advantages of another sign"],
    );
    let json = place.succeed(&with(
        &["drift", "tiny.toml", "--json", "--rollouts", "2"],
        &[MASK],
    ));
    let found: Value = serde_json::from_str(&json).expect("JSON");
    let blocks = &found["block_evaluations"];
    // Two rollouts of 12 samples and 12 steps, two blocks; one of the blocks is left out in some steps.
    assert_eq!(blocks["without"], 2 * 12 * 12 * 2);
    assert!(blocks["with"].as_f64() < blocks["without"].as_f64() && found["latent_l1"].as_f64() > Some(0.0));
    assert!(!place.path("runs").exists());

    for (policy, count) in [("magcache", 12), ("teacache", 5)] {
        let file = format!("{policy}.toml");
        let out = ["calibrate", "tiny.toml", "--policy", policy, "--out", &file];
        place.succeed(&with(&out, &[]));
        let entry: toml::Table = place.text(&file).parse().expect("TOML");
        let params = &entry["acceleration"]["rollout"][0]["params"];
        let key = if policy == "magcache" {
            "ratios"
        } else {
            "coefficients"
        };
        assert_eq!(params[key].as_array().map(Vec::len), Some(count));
        let config = place.text("tiny.toml") + &place.text(&file);
        std::fs::write(place.path("measured.toml"), config).expect("a file");
        place.succeed(&with(&["check", "measured.toml"], &[]));
    }
}

/// Frozen weights in FP8, multiplied in it.
const PRODUCTS: &str =
    "acceleration.shared={ name = \"low_precision\", params = { compute = \"fp8\", format = \"fp8\" } }";
const LORA: &str = "model.finetune=\"lora\"";

#[test]
fn drift_tells_what_products_in_fp8_change_block_by_block() {
    let place = Place::new();
    let command = ["drift", "tiny.toml", "--low-precision"];
    let text = place.succeed(&with(&command, &[LORA, PRODUCTS]));
    contains(
        &text,
        &["transformer_blocks.0, relative L2", "PSNR", "reward, difference"],
    );
    let as_json = ["drift", "tiny.toml", "--low-precision", "--json"];
    // Caches of the rollout are left out, so blocks are those of a whole rollout.
    let json = place.succeed(&with(&as_json, &[LORA, PRODUCTS, MASK]));
    let found: Value = serde_json::from_str(&json).expect("JSON");
    assert!(found["latent_l1"].as_f64() > Some(0.0), "{found:#}");
    let blocks = &found["block_evaluations"];
    assert_eq!(blocks["with"], blocks["without"]);
    let layers = found["block_outputs_l2"].as_array().expect("a list");
    assert_eq!(layers.len(), 2);
    for layer in layers {
        let drift = layer["relative_l2"].as_f64().expect("a number");
        assert!(drift > 0.0 && drift < 0.5, "{layer}");
    }
    let nothing = place.fail(2, &with(&command, &[LORA]));
    contains(
        &nothing,
        &["stores weights in fewer bits", "--low-precision", "low_precision"],
    );
}

#[test]
fn an_adapter_trained_in_fp8_is_evaluated_on_the_weights_of_the_file() {
    let place = Place::new();
    place.succeed(&with(&["train", "tiny.toml", "--quiet"], &[LORA, PRODUCTS]));
    // A ratio of 1 says nothing of other weights, so the summary and the report say that the policy is another one.
    for file in ["summary.json", "report.html"] {
        let text = place.text(&format!("runs/tiny/{file}"));
        contains(
            &text,
            &["frozen weights are stored in fp8", "another one than without"],
        );
    }
    let eval = ["eval", "tiny.toml", "--weights", "runs/tiny/weights/adapter"];
    let full = [&eval[..], &["--without-low-precision"]].concat();
    let on_file = place.succeed(&with(&full, &[LORA, PRODUCTS]));
    contains(&on_file, &["held-out prompts"]);
    assert_eq!(on_file, place.succeed(&with(&eval, &[LORA])));
    place.succeed(&with(&eval, &[LORA, PRODUCTS]));
    let nothing = place.fail(2, &with(&full, &[LORA]));
    contains(
        &nothing,
        &["stores weights in fewer bits", "--without-low-precision"],
    );
}
