//! Devices that are not here, and what `check` says for programs.

use crate::support::{Place, contains};
use serde_json::Value;

/// What `check --format json` printed, whatever it found.
fn json(place: &Place, arguments: &[&str]) -> (Option<i32>, Value) {
    json_of(place, "check", arguments)
}

/// What `command --format json` printed: one document.
fn json_of(place: &Place, command: &str, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut all = vec![command];
    all.extend(arguments);
    all.extend(["--format", "json"]);
    let outcome = place.run(&all);
    let read = serde_json::from_str(&outcome.stdout);
    (
        outcome.code,
        read.unwrap_or_else(|error| panic!("{error}: {outcome:#?}")),
    )
}

#[test]
fn check_prints_json_on_every_path() {
    let place = Place::new();
    let broken = "not = [toml";
    std::fs::write(place.path("broken.toml"), broken).unwrap();
    std::fs::write(place.path("bytes.toml"), b"\xff\xfe").unwrap();
    std::fs::create_dir(place.path("folder.toml")).unwrap();
    let cases: [(&[&str], bool); 14] = [
        (&["tiny.toml"], true),
        (&["none.toml"], false),
        (&["broken.toml"], false),
        (&["bytes.toml"], false),
        (&["folder.toml"], false),
        (&["tiny.toml", "--set", "run.step=1"], false),
        (&["tiny.toml", "--set", "model.weights=none.safetensors"], false),
        (&["tiny.toml", "--set", "device.index=3"], false),
        (&["tiny.toml", "--device", "h100"], true),
        (&["tiny.toml", "--device", "H100"], true),
        (&["tiny.toml", "--device", "h1000"], false),
        (&["tiny.toml", "--no-such-option"], false),
        (&["~/tiny.toml"], false),
        (&["~alice/tiny.toml"], false),
    ];
    for (arguments, fine) in cases {
        let (code, found) = json(&place, arguments);
        assert_eq!(found["ok"], fine, "{arguments:?}: {found:#}");
        assert_eq!(code, Some(if fine { 0 } else { 2 }), "{arguments:?}");
        let errors = found["errors"].as_u64().unwrap();
        assert_eq!(errors == 0, fine, "{arguments:?}: {found:#}");
    }
    if flow_core::device::visible_gpus() > 0 {
        test_support::skipped("there is a GPU");
        return;
    }
    let (code, found) = json(&place, &["tiny.toml", "--set", "device.kind=cuda"]);
    assert_eq!((code, &found["ok"]), (Some(2), &false.into()));
    let all = found["diagnostics"].as_array().unwrap();
    let refusal = all.iter().find(|one| one["code"] == "device::unavailable");
    let refusal = refusal.unwrap_or_else(|| panic!("{found:#}"));
    let words: &[&str] = match cfg!(feature = "cuda") {
        true => &["nvidia-smi", "device.kind"],
        false => &["--features cuda", "--device h100"],
    };
    contains(&refusal["help"].to_string(), words);
}

#[test]
#[cfg(unix)]
fn of_a_config_from_a_pipe_the_fault_is_said_and_no_other_name_for_it() {
    use crate::support::Outcome;
    use std::io::Write;
    use std::process::Stdio;

    let place = Place::new();
    let mut command = place.command(&["check", "/dev/stdin"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut check = command.spawn().unwrap();
    let mut pipe = check.stdin.take().unwrap();
    pipe.write_all(b"\xff\xfe").unwrap();
    drop(pipe);
    let outcome = Outcome::of(check.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(2), "{outcome:#?}");
    contains(
        &outcome.stderr,
        &["byte 0 is not UTF-8", "save the file as UTF-8"],
    );
}

#[test]
fn plan_prints_json_on_every_path() {
    let place = Place::bare();
    let plan = |more: &[&str]| json_of(&place, "plan", more);
    let (code, found) = plan(&["tiny.toml"]);
    assert_eq!(
        (code, &found["ok"], &found["format"]),
        (Some(0), &true.into(), &1.into())
    );
    let plan_of = &found["plan"];
    let wanted = [
        ("/run/name", Value::from("tiny")),
        ("/run/iterations", 2.into()),
        ("/model/architecture", "dit".into()),
        ("/model/tokens", 16.into()),
        ("/batch/images", 12.into()),
        ("/batch/micro_batches", 2.into()),
        // 2 micro-batches, 4 steps of which 3 are random.
        ("/model_calls/sampling", 8.into()),
        ("/model_calls/training", 6.into()),
        ("/algorithm/name", "grpo".into()),
        ("/rewards/0/weight", 1.0.into()),
        ("/kernels", "cpu".into()),
        ("/schedule/1/sigma", 0.75.into()),
        ("/schedule/3/std_dev", Value::Null),
        ("/schedule/3/trained", false.into()),
        ("/checkpoint_plan", Value::Null),
    ];
    for (pointer, value) in wanted {
        assert_eq!(plan_of.pointer(pointer), Some(&value), "{pointer}: {plan_of:#}");
    }
    let total = plan_of.pointer("/memory_bytes/total").and_then(Value::as_f64);
    assert!(total > Some(0.0), "{plan_of:#}");
    // A plan of which a part was measured, written to files as well.
    let budget = "checkpointing={ policy = \"budget\", peak_gib = 1.0 }";
    let (code, found) = plan(&["tiny.toml", "--set", budget, "--out", "planned"]);
    assert_eq!((code, &found["ok"]), (Some(0), &true.into()), "{found:#}");
    let record: Value = serde_json::from_str(&place.text("planned/plan.json")).unwrap();
    assert_eq!(found["plan"]["checkpoint_plan"], record);
    let (code, found) = plan(&["tiny.toml", "--device", "h100"]);
    assert_eq!(code, Some(0));
    assert!(found["plan"]["device"].as_str().unwrap().contains("NVIDIA H100"));

    let small = "checkpointing={ policy = \"budget\", peak_gib = 0.001 }";
    std::fs::write(place.path("broken.toml"), "not = [toml").unwrap();
    let failures: [&[&str]; 6] = [
        &["none.toml"],
        &["broken.toml"],
        &["tiny.toml", "--set", "run.step=1"],
        &["tiny.toml", "--set", small],
        &["tiny.toml", "--out", "nothing"],
        &["tiny.toml", "--set", budget, "--out", "planned"],
    ];
    for arguments in failures {
        let (code, found) = plan(arguments);
        assert_eq!(
            (code, &found["ok"]),
            (Some(2), &false.into()),
            "{arguments:?}: {found:#}"
        );
        assert!(
            found["plan"].is_null() && found["errors"].as_u64() > Some(0),
            "{found:#}"
        );
        assert!(!found["diagnostics"][0]["message"].as_str().unwrap().is_empty());
    }
}

#[test]
fn a_config_is_checked_and_planned_for_a_gpu_that_is_not_here() {
    let place = Place::new();
    let gpu = [
        "--set",
        "device={ kind = \"cuda\", dtype = \"bf16\" }",
        "--set",
        "acceleration.shared=[{ name = \"graph_capture\" }]",
    ];
    let with = |command: &'static str, more: &[&'static str]| {
        let mut all = vec![command, "tiny.toml"];
        all.extend(gpu);
        all.extend(more);
        all
    };
    contains(
        &place.succeed(&with("check", &["--device", "h100"])),
        &["ok", "NVIDIA H100, 79.6 GiB", "which is not here"],
    );
    contains(
        &place.succeed(&with("plan", &["--device", "a100-40gb"])),
        &["NVIDIA A100 40GB", "graph_capture", "flow-sde"],
    );
    // A number of GiB alone is enough, too.
    contains(
        &place.succeed(&with("check", &["--memory-gib", "80"])),
        &["a GPU of 80 GiB"],
    );
    // What the device cannot do, and what does not fit, is still said.
    contains(
        &place.run(&with("check", &["--device", "t4"])).stderr,
        &["device::slow-kernels", "NVIDIA T4", "7.5"],
    );
    let large = with("check", &["--device", "h100", "--set", "sampling.micro_batch=5"]);
    contains(&place.fail(2, &large), &["micro_batch"]);
    let huge = with("check", &["--memory-gib", "0.0001"]);
    contains(&place.run(&huge).stderr, &["memory::too-much"]);
    contains(
        &place.fail(2, &with("check", &["--device", "h10"])),
        &["h100", "h200"],
    );
    // And files are still read.
    let weights = with("check", &["--device", "h100", "--set", "model.weights=tiny.toml"]);
    contains(&place.fail(2, &weights), &["files::bad-weights"]);
}

#[test]
fn what_forbids_frozen_weights_in_8_bits_is_said_for_a_gpu_that_is_not_here_too() {
    let place = Place::new();
    let entry = "acceleration.shared=[{ name = \"low_precision\", params = { compute = \"storage\", format = \"fp8\" } }]";
    let all_trained = [
        "check",
        "tiny.toml",
        "--device",
        "h100",
        "--set",
        "model.finetune=\"full\"",
        "--set",
        entry,
    ];
    contains(
        &place.fail(2, &all_trained),
        &["acceleration::refused", "`low_precision`", "lora"],
    );
    // Lines of messages break anywhere between words.
    let entry = |(compute, more): (&str, &str)| {
        format!(
            "acceleration.shared=[{{ name = \"low_precision\", params = {{ compute = \"{compute}\", format = {more} }} }}]"
        )
    };
    let gradients = "\"fp8\", data_gradient = \"fp8\"";
    let [other_codes, widened, codes] =
        [("fp8", "\"int8\""), ("storage", gradients), ("fp8", gradients)].map(entry);
    let lora = ["check", "tiny.toml", "--set", "model.finetune=\"lora\"", "--set"];
    let elsewhere = [&lora[..], &[&*other_codes, "--device", "h100"]].concat();
    contains(
        &place.fail(2, &elsewhere),
        &["acceleration::refused", "`low_precision`", "codes"],
    );
    let elsewhere = [&lora[..], &[&*widened, "--device", "h100"]].concat();
    contains(
        &place.fail(2, &elsewhere),
        &["acceleration::refused", "`low_precision`", "data_gradient"],
    );
    let outcome = place.run(&[&lora[..], &[&*codes]].concat());
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    let said = outcome.stdout + &outcome.stderr;
    contains(&said, &["acceleration::other-policy", "activations", "gradients"]);
    // Of trained weights products alone are in FP8.
    let products = entry(("fp8", "\"fp8\""));
    let full = ["check", "tiny.toml", "--set", "model.finetune=\"full\"", "--set"];
    for (entry, rounded) in [(&products, "activations"), (&codes, "gradients")] {
        let outcome = place.run(&[&full[..], &[entry.as_str()]].concat());
        assert_eq!(outcome.code, Some(0), "{outcome:#?}");
        let said = outcome.stdout + &outcome.stderr;
        contains(&said, &["acceleration::other-policy", "trained", rounded]);
    }
}

#[test]
fn what_algorithms_ask_of_a_run_is_said_for_a_gpu_that_is_not_here_too() {
    let place = Place::new();
    let behind = "sampling={ staleness = 1, prompts_per_step = 3, group_size = 4, micro_batch = 6 }";
    let auto = "acceleration.rollout={ name = \"feature_cache\", params = { policy = \"auto\", target_error = 0.05, \
                scope = \"outside_sde_window\" } }";
    let window = "scheduler.window={ kind = \"list\", steps = [2] }";
    let teacher = |name: &str, file: &str| format!("{{ name = \"{name}\", weights = \"{file}\" }}");
    let taught = |teachers: &[String]| {
        let teachers = teachers.join(", ");
        format!("algorithm={{ kind = \"diffusion-opd\", teachers = [{teachers}] }}")
    };
    let absent = taught(&[teacher("a", "none.safetensors")]);
    let two = taught(&[teacher("a", "tiny.safetensors"), teacher("b", "tiny.safetensors")]);
    let cases: [(&[&str], &[&str]); 3] = [
        (&[behind, auto, window], &["`auto`", "sampling.staleness"]),
        (&[&absent], &["files::no-weights", "none.safetensors"]),
        (&[&two], &["`teacher`", "`a`"]),
    ];
    for (settings, expected) in cases {
        for target in [&[][..], &["--device", "h100"][..]] {
            let mut all = vec!["check", "tiny.toml"];
            all.extend(target);
            all.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
            contains(&place.fail(2, &all), expected);
        }
    }
}

#[test]
fn plan_makes_no_weights_so_a_large_model_is_planned_anywhere() {
    let place = Place::bare();
    let large = [
        "plan",
        "tiny.toml",
        "--device",
        "h200",
        "--set",
        "model.dit.hidden=16384",
        "--set",
        "model.dit.layers=100",
        "--set",
        "model.dit.heads=128",
    ];
    // Three trillion bytes with the optimizer's moments.
    contains(&place.succeed(&large), &["NVIDIA H200", "memory", "GiB"]);
}
