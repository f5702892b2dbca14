//! Whole runs.

use crate::support::{Place, contains};

#[test]
fn a_run_leaves_every_documented_file() {
    let place = Place::new();
    let out = place.succeed(&["train", "tiny.toml"]);
    contains(
        &out,
        &[
            "finished   2 iterations",
            "trained    digit-classifier: ",
            "before",
            "after",
            "ratio - 1| = 0",
            "report.html",
            "final.safetensors",
        ],
    );
    let mut files = place.files();
    // The name of an event file holds time and process.
    let events = files
        .iter()
        .position(|file| file.starts_with("runs/tiny/events.out.tfevents."))
        .unwrap();
    files.remove(events);
    let expected = [
        "runs/tiny/checkpoints/step-000000.ckpt",
        "runs/tiny/checkpoints/step-000001.ckpt",
        "runs/tiny/checkpoints/step-000002.ckpt",
        "runs/tiny/curves/1-reward-held-out.svg",
        "runs/tiny/curves/2-reward-rollout.svg",
        "runs/tiny/curves/3-loss.svg",
        "runs/tiny/curves/4-gradient-norm.svg",
        "runs/tiny/images/eval-step-000000.png",
        "runs/tiny/images/eval-step-000001.png",
        "runs/tiny/images/eval-step-000002.png",
        "runs/tiny/metrics.jsonl",
        "runs/tiny/report.html",
        "runs/tiny/run.json",
        "runs/tiny/run.lock",
        "runs/tiny/summary.json",
        "runs/tiny/timing.jsonl",
        "runs/tiny/weights/config.json",
        "runs/tiny/weights/diffusion_pytorch_model.safetensors.index.json",
        "runs/tiny/weights/final.safetensors",
        "tiny.safetensors",
        "tiny.toml",
    ];
    assert_eq!(files, expected);
    let records: Vec<serde_json::Value> = place
        .text("runs/tiny/metrics.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<(u64, &str)> = records
        .iter()
        .map(|record| (record["step"].as_u64().unwrap(), record["kind"].as_str().unwrap()))
        .collect();
    assert_eq!(
        kinds,
        [(0, "eval"), (1, "train"), (1, "eval"), (2, "train"), (2, "eval")]
    );
}

#[test]
fn the_manifest_says_where_every_value_is_from() {
    let place = Place::new();
    place.succeed(&["train", "tiny.toml", "--set", "run.seed=9"]);
    let manifest: serde_json::Value = serde_json::from_str(&place.text("runs/tiny/run.json")).unwrap();
    let sources = &manifest["config_sources"];
    assert_eq!(sources["run.seed"], "--set run.seed=9");
    assert_eq!(sources["optimizer.betas"], "default");
    let line = place
        .text("tiny.toml")
        .lines()
        .position(|line| line.contains("learning_rate"))
        .unwrap()
        + 1;
    assert_eq!(sources["optimizer.learning_rate"], format!("tiny.toml:{line}:17"));
    assert!(
        sources["rewards[0].kind"]
            .as_str()
            .unwrap()
            .starts_with("tiny.toml:")
    );
    assert_eq!(manifest["config"]["run"]["seed"], 9);
    assert_eq!(manifest["device"]["backend"], "burn-flex");
    assert_eq!(manifest["versions"]["cubecl"], flow_train::versions()["cubecl"]);
    assert_eq!(manifest["command"][1], "train");
}

#[test]
fn bf16_trains_on_policy_where_the_processor_has_it_and_is_refused_elsewhere() {
    let place = Place::new();
    let arguments = ["train", "tiny.toml", "--set", "device.dtype=bf16"];
    if let Err(problem) = flow_kernels::CpuKernels::bf16() {
        let error = place.fail(2, &arguments);
        contains(&error, &["device.dtype", &problem.to_string()]);
        test_support::skipped(problem);
        return;
    }
    place.succeed(&arguments);
    let manifest: serde_json::Value = serde_json::from_str(&place.text("runs/tiny/run.json")).unwrap();
    assert_eq!(manifest["device"]["dtype"], "bf16");
    let plan = manifest["device"]["training_plan"].to_string();
    assert!(plan.contains("cpu-bf16"), "{plan}");
    let metrics = place.text("runs/tiny/metrics.jsonl");
    let deviations: Vec<f64> = (metrics.lines())
        .filter_map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            record["on_policy/max_ratio_deviation"].as_f64()
        })
        .collect();
    assert!(
        !deviations.is_empty() && deviations.iter().all(|deviation| *deviation == 0.0),
        "{metrics}"
    );
}

/// The manifest's versions of Burn and CubeCL are those that the workspace pins.
#[test]
fn the_manifest_names_the_versions_that_are_built() {
    let workspace = std::fs::read_to_string("../../Cargo.toml").unwrap();
    let workspace: toml::Table = workspace.parse().unwrap();
    let pinned = |name: &str| {
        workspace["workspace"]["dependencies"][name]["version"]
            .as_str()
            .unwrap()
    };
    let versions = flow_train::versions();
    assert_eq!(format!("={}", versions["burn"]), pinned("burn"));
    match cfg!(feature = "cuda") {
        true => assert_eq!(format!("={}", versions["cubecl"]), pinned("cubecl")),
        false => assert_eq!(versions["cubecl"], "not in this build"),
    }
}

#[test]
fn a_dry_run_builds_everything_and_writes_nothing() {
    let place = Place::new();
    let before = place.files();
    let out = place.succeed(&["train", "tiny.toml", "--dry-run"]);
    contains(&out, &["3 prompts x 4 images = 12 images", "nothing was written"]);
    assert_eq!(place.files(), before);
}

#[test]
fn an_existing_run_is_left_alone_unless_the_user_says_otherwise() {
    let place = Place::new();
    place.succeed(&["train", "tiny.toml"]);
    let metrics = place.bytes("runs/tiny/metrics.jsonl");
    let error = place.fail(2, &["train", "tiny.toml"]);
    contains(&error, &["runs/tiny", "already exists", "--on-exists"]);
    place.succeed(&["train", "tiny.toml", "--on-exists", "new"]);
    assert_eq!(
        place.bytes("runs/tiny-2/metrics.jsonl"),
        metrics,
        "the same config and seed"
    );
    place.succeed(&[
        "train",
        "tiny.toml",
        "--on-exists",
        "overwrite",
        "--set",
        "run.seed=6",
    ]);
    assert_ne!(place.bytes("runs/tiny/metrics.jsonl"), metrics, "another seed");
    assert_eq!(
        place.bytes("runs/tiny.replaced-1/metrics.jsonl"),
        metrics,
        "nothing is deleted"
    );
}

#[test]
fn the_number_of_threads_does_not_change_a_run() {
    let place = Place::new();
    for threads in ["1", "3"] {
        let (threads, folder) = (
            format!("device.threads={threads}"),
            format!("run.dir=runs-{threads}"),
        );
        place.succeed(&["train", "tiny.toml", "--set", &threads, "--set", &folder]);
    }
    for file in ["metrics.jsonl", "weights/final.safetensors"] {
        let of = |threads: usize| place.bytes(&format!("runs-{threads}/tiny/{file}"));
        assert_eq!(of(1), of(3), "{file}");
    }
}

#[test]
fn every_algorithm_trains() {
    let place = Place::new();
    for (kind, audit) in [
        ("grpo", "= 0 on all"),
        ("grpo-guard", "= 0 on all"),
        ("nft", "not run"),
    ] {
        let (algorithm, name) = (format!("algorithm.kind={kind}"), format!("run.name={kind}"));
        let mut arguments = vec!["train", "tiny.toml", "--set", &algorithm, "--set", &name];
        if kind == "nft" {
            arguments.extend(["--set", "scheduler.dynamics=ode"]);
        }
        contains(&place.succeed(&arguments), &["finished   2 iterations", audit]);
        assert_ne!(
            place.bytes(&format!("runs/{kind}/weights/final.safetensors")),
            place.bytes("tiny.safetensors")
        );
    }
}

#[test]
fn an_evaluation_without_rows_draws_no_picture_and_keeping_none_keeps_every_checkpoint() {
    let place = Place::new();
    let set = [
        "--set",
        "evaluation.grid.rows=0",
        "--set",
        "checkpoints.keep=0",
        "--set",
        "run.steps=4",
    ];
    place.succeed(&[["train", "tiny.toml", "--quiet"].as_slice(), &set].concat());
    let files = place.files();
    assert!(!files.iter().any(|name| name.ends_with(".png")), "{files:?}");
    let checkpoints = files.iter().filter(|name| name.ends_with(".ckpt")).count();
    assert_eq!(checkpoints, 5, "the start and four iterations: {files:?}");
}

#[test]
fn an_average_that_follows_every_other_iteration_ends_with_the_weights_of_the_last() {
    let place = Place::new();
    let schedule =
        "ema={ enabled = true, update_every = 2, schedule = { kind = \"constant\", decay = 0.0 } }";
    place.succeed(&[
        "train",
        "tiny.toml",
        "--quiet",
        "--set",
        schedule,
        "--set",
        "run.steps=2",
    ]);
    let [last, average] = ["final", "average"].map(|name| {
        let bytes = place.bytes(&format!("runs/tiny/weights/{name}.safetensors"));
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut values: Vec<_> = tensors
            .iter()
            .map(|(name, view)| (name.to_owned(), view.data().to_vec()))
            .collect();
        values.sort();
        values
    });
    assert!(
        last == average,
        "a decay of 0 copies the weights, after the second iteration, too"
    );
}

#[test]
fn measured_values_are_not_written_over_a_file_that_is_there() {
    let place = Place::new();
    let before = place.text("tiny.toml");
    let error = place.fail(
        2,
        &[
            "calibrate",
            "tiny.toml",
            "--policy",
            "magcache",
            "--out",
            "tiny.toml",
        ],
    );
    contains(&error, &["tiny.toml is there already"]);
    assert_eq!(place.text("tiny.toml"), before);
}
