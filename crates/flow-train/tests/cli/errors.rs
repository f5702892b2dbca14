//! Bad input: what is said about it, and that nothing is written.

use crate::support::{Place, contains};

#[test]
fn an_unknown_key_is_shown_with_file_line_and_the_nearest_key() {
    let place = Place::bare();
    place.edit(|text| text.replace("learning_rate", "learning_rte"));
    let line = place
        .text("tiny.toml")
        .lines()
        .position(|line| line.contains("learning_rte"))
        .unwrap()
        + 1;
    for command in ["train", "check", "plan", "pretrain", "eval"] {
        let error = place.fail(2, &[command, "tiny.toml"]);
        contains(
            &error,
            &[
                &format!("tiny.toml:{line}:"),
                "learning_rte",
                "did you mean `learning_rate`?",
                "1 error",
            ],
        );
    }
    assert_eq!(place.files(), ["tiny.toml"]);
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let place = Place::bare();
    place.edit(|text| {
        text.replace("group_size = 4", "group_size = 0")
            .replace("kind = \"digits\"", "kind = \"digit\"")
            + "\n[eval]\n"
    });
    let error = place.fail(2, &["check", "tiny.toml"]);
    contains(
        &error,
        &[
            "sampling.group_size",
            "data.kind",
            "\"digits\"",
            "[eval]",
            "3 errors",
        ],
    );
}

#[test]
fn an_override_that_is_wrong_is_shown_as_it_was_typed() {
    let place = Place::bare();
    let error = place.fail(2, &["train", "tiny.toml", "--set", "run.step=3"]);
    contains(&error, &["--set", "run.step=3", "did you mean `steps`?"]);
}

#[test]
fn what_this_build_lacks_is_refused_by_name_and_never_ignored() {
    let place = Place::new();
    let cases = [
        (
            "acceleration.shared=[{ name = \"ring\" }]",
            "acceleration::unknown-accelerator",
            "allowed: attention_backend, exact_reuse, feature_cache, fused_kernels, fusion, graph_capture",
        ),
        (
            "acceleration.rollout=[{ name = \"taylor\" }]",
            "acceleration::unknown-accelerator",
            "allowed: attention_backend, exact_reuse, feature_cache, fused_kernels, fusion, graph_capture",
        ),
        (
            "checkpointing.policy=attn-olny",
            "checkpointing.policy",
            "did you mean \"attn-only\"?",
        ),
        (
            "checkpointing={ policy = \"regions\", save = [\"atention\"] }",
            "checkpointing::no-region",
            "did you mean `attention`?",
        ),
        (
            "runtime.options={ \"cubecl.streaming.polcy\" = \"single\" }",
            "cubecl.streaming.polcy",
            "cubecl.streaming.policy",
        ),
        (
            "runtime.options={ \"cubecl.autotune.level\" = \"full\" }",
            "runtime::never-read",
            "no build of flow-train reads `cubecl.autotune.level`",
        ),
    ];
    for (set, name, available) in cases {
        for command in ["train", "check"] {
            let error = place.fail(2, &[command, "tiny.toml", "--set", set]);
            contains(&error, &[name, available]);
        }
    }
    assert!(!place.path("runs").exists());
}

#[test]
fn a_run_shows_a_warning_about_its_config_once() {
    let place = Place::new();
    let outcome = place.run(&["train", "tiny.toml", "--set", "lora.rank=3"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let shown = outcome.stderr.matches("`lora.rank` is not read").count();
    assert_eq!(shown, 1, "{}", outcome.stderr);
}

/// A build without NVIDIA GPUs names the feature that it lacks, one with them what the machine lacks.
#[test]
fn a_gpu_that_the_build_or_the_machine_lacks_is_refused_and_never_replaced() {
    if flow_core::device::visible_gpus() > 0 {
        test_support::skipped("there is a GPU");
        return;
    }
    let place = Place::new();
    let words: &[&str] = match cfg!(feature = "cuda") {
        true => &["cuda:0", "no NVIDIA driver answers", "doctor"],
        false => &[
            "\"cuda\" is not in this build",
            "--features cuda",
            "allowed: \"cpu\"",
        ],
    };
    for command in ["train", "check"] {
        contains(
            &place.fail(2, &[command, "tiny.toml", "--set", "device.kind=cuda"]),
            words,
        );
    }
    assert!(!place.path("runs").exists());
}

#[test]
fn missing_weights_are_named_with_their_path() {
    let place = Place::bare();
    contains(
        &place.fail(2, &["train", "tiny.toml"]),
        &["tiny.safetensors", "model.weights", "flow-train pretrain"],
    );
    let elsewhere = "pretrain.output=other.safetensors";
    contains(
        &place.fail(2, &["train", "tiny.toml", "--set", elsewhere]),
        &["tiny.safetensors", "Check the path"],
    );
    place.edit(|text| text.replace("weights = \"tiny.safetensors\"\n", ""));
    contains(
        &place.fail(2, &["train", "tiny.toml"]),
        &["model.weights", "pretrain"],
    );
    contains(
        &place.fail(2, &["sample", "tiny.toml", "--prompt", "bold 7"]),
        &["--weights"],
    );
}

#[test]
fn prompts_that_a_reward_cannot_score_are_named_before_the_run() {
    let place = Place::new();
    let networks = concat!(env!("CARGO_MANIFEST_DIR"), "/../flow-rewards-ocr/tests/fixtures");
    let reward = format!("rewards=[{{ kind = \"ocr\", path = \"{networks}\", name = \"reads\" }}]");
    for command in ["check", "train"] {
        let error = place.fail(2, &[command, "tiny.toml", "--set", &reward]);
        // What has a place in the config is drawn with it, and long lines of that are broken.
        let error = error.replace("\n  │ ", " ");
        contains(
            &error,
            &[
                "reward `reads` cannot score images of",
                "no text in double quotes",
                "correct these prompts",
            ],
        );
    }
    let missing = reward.replace("tests/fixtures", "tests/none");
    let error = place.fail(2, &["check", "tiny.toml", "--set", &missing]);
    contains(
        &error.replace("\n  │ ", " "),
        &["reward `ocr`", "tests/none", "it is not there"],
    );
}

#[test]
fn a_file_that_is_not_there_is_named_with_the_folder_that_its_path_starts_from() {
    let place = Place::new();
    std::fs::create_dir(place.path("configs")).unwrap();
    let config = place.text("tiny.toml");
    std::fs::write(place.path("configs/tiny.toml"), &config).unwrap();
    let folder = place.path("configs").canonicalize().unwrap();
    let here = place.path(".").canonicalize().unwrap();
    let of_config = format!("a config starts from the config's folder, `{}`", folder.display());
    let of_line = format!(
        "the command line starts from the working directory, `{}`",
        here.display()
    );
    // The weights are in the working directory, and the config that names them is not.
    let train = ["train", "configs/tiny.toml"];
    contains(&place.fail(2, &train), &["configs/tiny.safetensors", &of_config]);
    contains(
        &place.fail(2, &["check", "configs/tiny.toml"]),
        &["files::no-weights", "configs"],
    );
    let reward = config.replace("weights = \"built-in\"", "weights = \"reads.safetensors\"");
    let reward = reward.replace("\"tiny.safetensors\"", "\"../tiny.safetensors\"");
    std::fs::write(place.path("configs/reward.toml"), reward).unwrap();
    contains(
        &place.fail(2, &["train", "configs/reward.toml"]),
        &["configs/reads.safetensors", &of_config],
    );
    for (set, named) in [
        ("model.weights=none.safetensors", "`model.weights`"),
        ("model.adapter=none", "`model.adapter`"),
        (
            "rewards=[{ kind = \"digit-classifier\", weights = \"none\" }]",
            "classifier weights",
        ),
    ] {
        let train = ["train", "tiny.toml", "--set", "model.finetune=lora", "--set", set];
        // What has a place in the config is drawn with it, and long lines of that are broken.
        let error = place.fail(2, &train).replace("\n  │ ", " ");
        contains(&error, &[named, "none", &of_line]);
    }
    let weights = ["eval", "configs/tiny.toml", "--weights", "none"];
    contains(&place.fail(2, &weights), &["`--weights`", &of_line]);
}

#[test]
fn a_file_in_place_of_the_folder_of_runs_is_a_clear_error() {
    let place = Place::new();
    std::fs::write(place.path("runs"), "mine").unwrap();
    contains(&place.fail(2, &["train", "tiny.toml"]), &["runs", "help:"]);
    assert_eq!(place.text("runs"), "mine");
}

#[test]
fn a_missing_config_is_named() {
    contains(
        &Place::bare().fail(2, &["train", "other.toml"]),
        &["other.toml", "check the path"],
    );
}

#[test]
fn a_mistyped_config_is_answered_with_the_nearest_file() {
    let place = Place::bare();
    for command in ["train", "check", "plan", "eval"] {
        contains(
            &place.fail(2, &[command, "tinny.toml"]),
            &["did you mean `tiny.toml`?"],
        );
    }
    std::fs::create_dir(place.path("configs")).unwrap();
    std::fs::copy(place.path("tiny.toml"), place.path("configs/digits-own.toml")).unwrap();
    contains(
        &place.fail(2, &["train", "digits-own"]),
        &["did you mean `configs/digits-own.toml`?"],
    );
}

#[cfg(not(feature = "tui"))]
#[test]
fn a_view_that_is_not_in_the_build_is_named() {
    contains(
        &Place::bare().fail(2, &["train", "tiny.toml", "--tui"]),
        &["--features tui"],
    );
}

#[test]
fn a_prompt_outside_the_vocabulary_names_the_nearest_word() {
    let place = Place::new();
    contains(
        &place.fail(2, &["sample", "tiny.toml", "--prompt", "bald 7"]),
        &["bald", "bold"],
    );
    assert!(!place.path("sample.png").exists());
}
