//! The commands beside training.

use crate::support::{Place, contains};

#[test]
fn plan_shows_geometry_calls_and_schedule_before_there_are_weights() {
    let out = Place::bare().succeed(&["plan", "tiny.toml"]);
    contains(
        &out,
        &[
            "tiny in runs, 2 iterations",
            "16 tokens",
            "3 prompts x 4 images = 12 images, 2 micro-batches of 6",
            // 2 micro-batches, 4 steps of which 3 are random.
            "8 to sample and 6 to train",
            "attention      cpu",
            "kernels        cpu",
            "accelerators   ",
            "flow-sde",
        ],
    );
    let rows: Vec<Vec<&str>> = out
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("step "))
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 4);
    let sigmas: Vec<&str> = rows.iter().map(|row| row[1]).collect();
    assert_eq!(sigmas, ["1.00000", "0.75000", "0.50000", "0.25000"]);
    // Flow-SDE at sigma 0.75 with noise level 0.7: std_dev = 0.7 sqrt(0.75 / 0.25), noise = std_dev sqrt(0.25).
    let std_dev = 0.7 * 3f64.sqrt();
    assert_eq!(
        (rows[1][3], rows[1][4]),
        (&*format!("{std_dev:.5}"), &*format!("{:.5}", std_dev * 0.5))
    );
    assert_eq!(rows[3].last(), Some(&"-"), "the last step ends at sigma 0");
}

const BUDGET: &str = "checkpointing={ policy = \"budget\", peak_gib = 1.0 }";

#[test]
fn plan_spends_a_budget_of_memory_and_draws_what_a_block_may_keep() {
    let place = Place::bare();
    let out = place.succeed(&["plan", "tiny.toml", "--set", BUDGET, "--out", "planned"]);
    contains(
        &out,
        &[
            "checkpointing  budget (peak 1 GiB)",
            "predicted",
            "measured",
            "all computed again",
            "keeps",
        ],
    );
    let record: serde_json::Value = serde_json::from_slice(&place.bytes("planned/plan.json")).expect("JSON");
    assert_eq!(record["blocks"].as_array().map(Vec::len), Some(2));
    let peak = record["measured"]["peak_bytes"].as_u64().expect("a number");
    assert!(peak > 0 && peak <= 1 << 30, "{peak}");
    assert!(record["smallest_budget_bytes"].as_u64() <= Some(1 << 30));
    let drawing = String::from_utf8(place.bytes("planned/plan.svg")).expect("text");
    contains(&drawing, &["<svg", "held per block, MiB"]);

    let small = "checkpointing={ policy = \"budget\", peak_gib = 0.001 }";
    let error = place.fail(2, &["plan", "tiny.toml", "--set", small]);
    contains(
        &error,
        &[
            "the smallest budget that one would keep is 0.0",
            "checkpointing.peak_gib",
        ],
    );
    let error = place.fail(2, &["plan", "tiny.toml", "--out", "planned"]);
    contains(&error, &["there is no plan to write", "peak_gib"]);
    let error = place.fail(2, &["pretrain", "tiny.toml", "--set", BUDGET]);
    contains(&error, &["pretraining has none", "attn-only"]);
}

#[test]
fn list_names_every_policy_of_activation_checkpointing() {
    let out = Place::bare().succeed(&["list", "policies"]);
    contains(
        &out,
        &[
            "none",
            "full",
            "block-skip",
            "every-nth-linear",
            "attn-only",
            "regions",
            "budget",
        ],
    );
}

#[test]
fn pretrain_is_reproducible_and_says_what_it_made() {
    let (one, two) = (Place::bare(), Place::bare());
    let out = one.succeed(&["pretrain", "tiny.toml"]);
    contains(&out, &["loss", "tiny.safetensors"]);
    two.succeed(&["pretrain", "tiny.toml", "--set", "device.threads=1"]);
    let bytes = one.bytes("tiny.safetensors");
    assert_eq!(bytes, two.bytes("tiny.safetensors"));
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let metadata = &header["__metadata__"];
    assert_eq!(metadata["flow-train.steps"], "3");
    assert_eq!(metadata["flow-train.seed"], "0");
    assert_eq!(metadata["flow-train.config_blake3"].as_str().unwrap().len(), 64);
    assert!(
        metadata["flow-train.final_loss"]
            .as_str()
            .unwrap()
            .parse::<f64>()
            .unwrap()
            > 0.0
    );
}

#[test]
fn pretrain_trains_the_classifier_that_can_then_be_the_reward() {
    let place = Place::bare();
    place.edit(|text| {
        text.replace(
            "enabled = false",
            "enabled = true\nsteps = 90\nchannels = 4\noutput = \"reads.safetensors\"",
        )
        .replace("weights = \"built-in\"", "weights = \"reads.safetensors\"")
    });
    contains(
        &place.succeed(&["pretrain", "tiny.toml"]),
        &["reads.safetensors", "read right"],
    );
    contains(&place.succeed(&["eval", "tiny.toml"]), &["digit-classifier: "]);
}

#[test]
fn sample_writes_a_picture_that_depends_on_seed_and_prompt_alone() {
    let place = Place::new();
    let sample = |out: &str, prompt: &str, seed: &str| {
        let arguments = [
            "sample",
            "tiny.toml",
            "--prompt",
            prompt,
            "-n",
            "3",
            "--seed",
            seed,
            "--out",
            out,
        ];
        let text = place.succeed(&arguments);
        contains(&text, &[out, "digit-classifier"]);
        place.bytes(out)
    };
    let first = sample("a.png", "bold 7", "1");
    assert_eq!(&first[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(first, sample("b.png", "bold 7", "1"));
    assert_ne!(first, sample("c.png", "bold 7", "2"));
    assert_ne!(first, sample("d.png", "thin 3", "1"));
}

#[test]
fn eval_gives_one_row_per_prompt_and_a_mean_with_its_interval() {
    let place = Place::new();
    let out = place.succeed(&["eval", "tiny.toml", "--quiet"]);
    let rows: Vec<Vec<&str>> = out
        .lines()
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split("  ").collect())
        .collect();
    assert_eq!(rows.len(), 3, "{out}");
    let values: Vec<f64> = rows
        .iter()
        .map(|row| row.last().unwrap().trim().parse().unwrap())
        .collect();
    let mean = values.iter().sum::<f64>() / 3.0;
    let line = out
        .lines()
        .find(|line| line.starts_with("digit-classifier: "))
        .unwrap();
    let said: f64 = line.split(' ').nth(1).unwrap().parse().unwrap();
    assert!((said - mean).abs() <= 1e-4, "{out}");
    contains(line, &["[", "3 held-out prompts, 2 images each"]);
    // The same as the run's first evaluation, to the digits printed.
    place.succeed(&["train", "tiny.toml", "--quiet", "--set", "run.steps=1"]);
    let metrics = place.text("runs/tiny/metrics.jsonl");
    let first: serde_json::Value = serde_json::from_str(metrics.lines().next().unwrap()).unwrap();
    assert_eq!(
        format!("{:.4}", first["reward/digit-classifier"].as_f64().unwrap()),
        format!("{said:.4}")
    );
}

#[test]
fn check_says_that_a_good_config_is_good() {
    let place = Place::new();
    contains(&place.succeed(&["check", "tiny.toml"]), &["tiny.toml: ok"]);
    contains(
        &Place::bare().succeed(&["check", "tiny.toml", "--for", "pretrain"]),
        &["tiny.toml: ok"],
    );
}

#[test]
fn list_explain_schema_and_completions_agree_on_names() {
    let place = Place::bare();
    contains(
        &place.succeed(&["list"]),
        &[
            "dit",
            "mmdit",
            "wan",
            "digit-classifier",
            "cpu",
            "grpo-guard",
            "dance-sde",
            "shapes",
            "words",
            "digits-dit",
        ],
    );
    let short = place.succeed(&["list"]);
    assert!(
        short.lines().count() < 50 && short.lines().all(|line| line.chars().count() <= 80),
        "{short}"
    );
    for list in ["accelerators", "cache-policies", "policies", "codes", "devices"] {
        let text = place.succeed(&["list", list]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
    for (list, name) in [
        ("models", "dit"),
        ("cache-policies", "taylorseer"),
        ("text", "words"),
        ("devices", "h100"),
        ("rewards", "shapes-rules"),
        ("algorithms", "nft"),
        ("data", "digits"),
    ] {
        assert!(
            place
                .succeed(&["list", list])
                .lines()
                .any(|line| line.starts_with(name)),
            "{list}"
        );
    }
    let schema: serde_json::Value = serde_json::from_str(&place.succeed(&["schema"])).unwrap();
    assert!(schema["properties"]["optimizer"].is_object());
    contains(
        &place.succeed(&["explain", "optimizer.learning_rate"]),
        &["Learning rate", "default"],
    );
    // A bare name is looked up in every section.
    contains(
        &place.succeed(&["explain", "group_size"]),
        &["sampling.group_size"],
    );
    contains(
        &place.fail(2, &["explain", "sampling.group_sise"]),
        &["did you mean `sampling.group_size`?"],
    );
    // Options of the runtimes are explained, too, and what other programs have.
    for (name, said) in [
        ("cubecl.streaming.policy", "read by: builds with `cuda`"),
        ("cubecl.autotune.level", "No build of flow-train reads it"),
        ("torch_compile", "fused_kernels"),
        ("model.attn_backend", "flow-train list attention"),
        ("wandb", "TensorBoard"),
    ] {
        contains(&place.succeed(&["explain", name]), &[name, said]);
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        contains(
            &place.succeed(&["completions", shell]),
            &["flow-train", "on-exists"],
        );
    }
}

#[test]
fn doctor_finds_that_computing_is_deterministic_and_what_the_build_needs() {
    let outcome = Place::bare().run(&["doctor"]);
    // A build for NVIDIA GPUs needs one.
    let lacks_gpu = cfg!(feature = "cuda") && flow_core::device::visible_gpus() == 0;
    assert_eq!(outcome.code, Some(i32::from(lacks_gpu)), "{outcome:#?}");
    if lacks_gpu {
        contains(&outcome.stdout, &["cuda: in this build, but does not answer"]);
    }
    contains(
        &outcome.stdout,
        &[
            "burn",
            "features",
            "threads",
            "memory",
            "free in this folder",
            "same bits",
            "device",
            "driver",
            "nvrtc",
        ],
    );
}

#[test]
fn report_is_made_again_from_the_files_of_a_run() {
    let place = Place::new();
    place.succeed(&["train", "tiny.toml", "--quiet"]);
    let report = place.bytes("runs/tiny/report.html");
    std::fs::remove_file(place.path("runs/tiny/report.html")).unwrap();
    contains(
        &place.succeed(&["report", "runs/tiny"]),
        &["runs/tiny/report.html"],
    );
    assert_eq!(place.bytes("runs/tiny/report.html"), report);
    contains(&place.fail(2, &["report", "runs/other"]), &["runs/other"]);

    // A folder of runs, and one that holds none.
    std::fs::create_dir_all(place.path("runs/other")).unwrap();
    std::fs::copy(
        place.path("runs/tiny/run.json"),
        place.path("runs/other/run.json"),
    )
    .unwrap();
    contains(
        &place.succeed(&["report", "runs"]),
        &[
            "tiny: finished after 2 iterations",
            "other: no summary yet",
            "runs/comparison.html",
        ],
    );
    assert!(place.text("runs/comparison.html").contains("2 runs"));
    contains(
        &place.fail(2, &["report", "runs/tiny/images"]),
        &["no run.json", "runs/tiny/images"],
    );
}

#[test]
fn migrate_keeps_comments_and_the_old_file() {
    let place = Place::bare();
    let old = "# mine\nrun_name = \"old\" # the name\nnum_epochs = 7\n";
    std::fs::write(place.path("old.toml"), old).unwrap();
    contains(&place.fail(2, &["check", "old.toml"]), &["flow-train migrate"]);
    let printed = place.succeed(&["migrate", "old.toml"]);
    contains(
        &printed,
        &["# mine", "# the name", "config_version = 1", "steps = 7"],
    );
    assert_eq!(place.text("old.toml"), old, "without --write the file stays");
    place.succeed(&["migrate", "old.toml", "--write"]);
    assert_eq!(place.text("old.toml"), printed);
    assert_eq!(place.text("old.toml.old"), old);
    contains(
        &place.succeed(&["migrate", "old.toml", "--write"]),
        &["is up to date", "nothing to do"],
    );
    // A pipe gets the config all the same.
    let again = place.run(&["migrate", "old.toml"]);
    assert_eq!(again.stdout, printed);
    contains(&again.stderr, &["nothing to do"]);
}

#[test]
fn quiet_leaves_results_alone_on_standard_output() {
    let place = Place::new();
    let outcome = place.run(&["train", "tiny.toml", "--quiet"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    contains(&outcome.stdout, &["finished"]);
}

#[test]
fn init_writes_a_config_that_runs_and_keeps_what_is_there() {
    let place = Place::bare();
    contains(
        &place.succeed(&["init", "first"]),
        &[
            "first/digits-grpo.toml",
            "flow-train train first/digits-grpo.toml",
        ],
    );
    contains(&place.succeed(&["check", "first/digits-grpo.toml"]), &["ok"]);
    let config = place.text("first/digits-grpo.toml");
    assert!(
        config.starts_with("#:schema ./flow-train.schema.json\n"),
        "{config}"
    );
    assert_eq!(
        place.text("first/flow-train.schema.json"),
        place.succeed(&["schema"])
    );
    std::fs::write(place.path("first/digits-grpo.toml"), "mine").unwrap();
    std::fs::remove_file(place.path("first/digits-dit.safetensors")).unwrap();
    contains(&place.fail(2, &["init", "first"]), &["is there already"]);
    assert!(
        !place.path("first/digits-dit.safetensors").exists(),
        "all or nothing"
    );
    assert_eq!(place.text("first/digits-grpo.toml"), "mine");
    place.succeed(&["init", "first", "--on-exists", "overwrite"]);
    assert_eq!(place.text("first/digits-grpo.toml.old"), "mine");
    contains(&place.fail(2, &["init", "tiny.toml"]), &["tiny.toml is a file"]);
}

/// Standard output that nobody reads any more is no reason to panic.
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let place = Place::bare();
    let mut child = place
        .command(&["schema"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_config_of_flow_factory_becomes_one_that_check_reads() {
    let place = Place::bare();
    std::fs::write(
        place.path("factory.yaml"),
        "model: {model_type: sd3-5, finetune_type: lora, lora_rank: 32}\n\
         train: {trainer_type: grpo, group_size: 24, learning_rate: 3.0e-4}\n\
         acceleration:\n  rollout: {name: cache_dit}\nno_such_key: 7\n",
    )
    .unwrap();
    let toml = place.succeed(&["import", "factory.yaml"]);
    contains(
        &toml,
        &[
            "config_version = 1",
            "learning_rate = 3.0e-4",
            "group_size = 24",
            "no_such_key",
        ],
    );
    let said = place.succeed(&["import", "factory.yaml", "--out", "ours.toml"]);
    contains(&said, &["ours.toml: runs when", "a reward are there"]);
    assert_eq!(place.text("ours.toml"), toml);
    contains(
        &place.fail(2, &["import", "factory.yaml", "--out", "ours.toml"]),
        &["is there already"],
    );
    std::fs::write(place.path("broken.yaml"), "model: [1,\n").unwrap();
    contains(
        &place.fail(2, &["import", "broken.yaml"]),
        &["broken.yaml", "line"],
    );
}
