//! Models, averages and old policies of Flow-Factory, as numbers.

use flow_config::{Config, DeviceKind, EmaSchedule, Shift};
use flow_import::{Imported, Outcome, Rank, Verdict, import};
use flow_trainer::algorithm::NftSettings;
use test_catalog::{CATALOG, parse_named};

fn imported(yaml: &str) -> Imported {
    import(yaml, &CATALOG).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

fn config(yaml: &str) -> Config {
    let toml = imported(yaml).toml;
    parse_named("config.toml", &toml, &[])
        .unwrap_or_else(|report| panic!("{report}\n{toml}"))
        .config
}

fn wan(checkpoint: &str, train: &str) -> String {
    format!(
        "model: {{model_type: wan2_t2v, model_name_or_path: {checkpoint}, finetune_type: lora, target_modules: default}}\n\
         train: {{trainer_type: grpo, group_size: 16, {train}}}\nscheduler: {{dynamics_type: Flow-SDE, flow_shift: 5.0}}\n"
    )
}

/// `model.path` and the size in pixels and frames.
fn size(config: &Config) -> (&str, Option<usize>, Option<usize>, Option<usize>) {
    let model = &config.model;
    let path = model.path.as_deref().and_then(std::path::Path::to_str);
    (path.unwrap_or_default(), model.width, model.height, model.frames)
}

#[test]
fn wan_is_the_folder_of_the_checkpoint_and_has_the_size_of_the_video() {
    for (checkpoint, folder) in [
        ("Wan-AI/Wan2.1-T2V-14B-Diffusers", "Wan2.1-T2V-14B-Diffusers"),
        ("/models/wan2.1_t2v_1.3b", "/models/wan2.1_t2v_1.3b"),
    ] {
        let config = config(&wan(checkpoint, "resolution: [480, 840], num_frames: 5"));
        // 840 pixels are no whole patches: Flow-Factory takes 832.
        assert_eq!(size(&config), (folder, Some(832), Some(480), Some(5)));
        let Shift::Static(shift) = &config.scheduler.shift else {
            panic!()
        };
        assert_eq!(shift.value, 5.0);
        assert_eq!(config.device.kind, DeviceKind::Cuda);
        assert!(
            config.lora.targets.contains(&"*.ffn.net.2".to_owned()),
            "{:?}",
            config.lora.targets
        );
    }
    let frames = |train: &str| {
        config(&wan("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", train))
            .model
            .frames
    };
    assert_eq!(frames("num_frames: 1"), Some(1));
    assert_eq!(
        (frames("num_frames: 6"), frames("num_frames: 8")),
        (Some(5), Some(9)),
        "rounded as Flow-Factory rounds it"
    );
    assert_eq!(frames("seed: 1"), None, "81 where it is left out, in both");
}

#[test]
fn what_the_folder_says_is_left_to_it_and_what_the_yaml_says_stands_above_it() {
    let of = |scheduler: &str, guidance: &str| {
        let yaml = format!(
            "model: {{model_type: sd3-5, model_name_or_path: stabilityai/stable-diffusion-3.5-medium, finetune_type: lora, \
             target_modules: default}}\ntrain: {{trainer_type: grpo{guidance}}}\nscheduler: {{{scheduler}}}\n"
        );
        (config(&yaml), imported(&yaml).toml)
    };
    let (config, toml) = of("", "");
    // 512 is Flow-Factory's default, 1024 would be the folder's.
    assert_eq!(
        size(&config),
        ("stable-diffusion-3.5-medium", Some(512), Some(512), None)
    );
    assert_eq!(config.lora.targets.len(), 8);
    assert!(config.lora.targets.contains(&"*.attn.to_add_out".to_owned()));
    for key in ["architecture", "[model.", "\nshift"] {
        assert!(!toml.contains(key), "{key} is the folder's to say\n{toml}");
    }
    // Values that happen to be flow-train's defaults are written all the same: the folder has others.
    let (_, toml) = of("shift: 1.0", ", guidance_scale: 1.0");
    assert!(toml.contains("\nguidance_scale = 1.0\n"), "{toml}");
    assert!(
        toml.contains("\nshift = { kind = \"static\", value = 1.0 }\n"),
        "{toml}"
    );
}

#[test]
fn height_and_width_stand_above_the_resolution() {
    let of = |train: &str| {
        let yaml = format!("model: {{model_type: sd3, model_name_or_path: /sd3}}\ntrain: {{{train}}}\n");
        let config = config(&yaml);
        (config.model.height, config.model.width)
    };
    assert_eq!(of("resolution: 768"), (Some(768), Some(768)));
    assert_eq!(of("resolution: [384, 640]"), (Some(384), Some(640)));
    assert_eq!(of("resolution: [384, 640], height: 256"), (Some(256), Some(640)));
    assert_eq!(
        of("resolution: 768, height: 256, width: 320"),
        (Some(256), Some(320))
    );
    assert_eq!(of("width: 320"), (Some(512), Some(320)));
    for wrong in ["resolution: large", "resolution: 8", "height: 100000, width: 1.5"] {
        let yaml = format!("model: {{model_type: sd3, model_name_or_path: /sd3}}\ntrain: {{{wrong}}}\n");
        let Imported { notes, toml, .. } = imported(&yaml);
        let kept = notes
            .iter()
            .filter(|note| note.outcome == Outcome::Kept && note.needs_attention());
        assert_eq!(kept.count(), wrong.split(", ").count(), "{toml}");
        assert!(!toml.contains("\nwidth") && !toml.contains("\nheight"), "{toml}");
    }
}

#[test]
fn flux_is_told_its_scale_and_takes_no_second_branch() {
    let of = |checkpoint: &str, rest: &str| {
        let yaml = format!("model: {{model_type: flux1, model_name_or_path: {checkpoint}}}\n{rest}\n");
        (config(&yaml), imported(&yaml))
    };
    let note = |imported: &Imported, from: &str| {
        let found = imported.notes.iter().find(|note| note.from == from);
        found.unwrap_or_else(|| panic!("no note on {from}")).clone()
    };
    let dev = "black-forest-labs/FLUX.1-dev";
    let (flux, same) = of(dev, "train: {guidance_scale: 2.5}\neval: {guidance_scale: 2.5}");
    assert_eq!(
        (
            flux.sampling.guidance_scale,
            flux.sampling.embedded_guidance_scale
        ),
        (1.0, 2.5)
    );
    assert_eq!(flux.evaluation.guidance_scale, None);
    assert_eq!(note(&same, "eval.guidance_scale").outcome, Outcome::Default);
    let (_, other) = of(dev, "train: {guidance_scale: 2.5}\neval: {guidance_scale: 4}");
    let kept = note(&other, "eval.guidance_scale");
    assert!(
        kept.outcome == Outcome::Kept && kept.rank == Rank::Result,
        "{kept}"
    );
    let (_, silent) = of(dev, "train: {guidance_scale: 2.5}");
    assert!(
        silent
            .notes
            .iter()
            .any(|note| note.text.contains("evaluates with a scale of 3.5")),
        "{}",
        silent.toml
    );
    // Its noise levels follow the number of tokens, so diffusers reads no shift.
    let (_, shifted) = of(dev, "scheduler: {shift: 2.0}");
    assert_eq!(note(&shifted, "scheduler.shift").rank, Rank::Detail);
    let (schnell, imported) = of(
        "black-forest-labs/FLUX.1-schnell",
        "train: {guidance_scale: 2.5}\neval: {guidance_scale: 4}\nscheduler: {shift: 2.0}",
    );
    assert_eq!(size(&schnell).0, "FLUX.1-schnell");
    assert_eq!(
        (
            schnell.sampling.guidance_scale,
            schnell.sampling.embedded_guidance_scale
        ),
        (1.0, 3.5)
    );
    assert_eq!(note(&imported, "train.guidance_scale").outcome, Outcome::Kept);
    assert_eq!(note(&imported, "scheduler.shift").outcome, Outcome::Converted);
    let lora = "train: {trainer_type: grpo}";
    let yaml =
        format!("model: {{model_type: flux1, finetune_type: lora, target_modules: default}}\n{lora}\n");
    let targets = config(&yaml).lora.targets;
    assert_eq!(targets.len(), 12);
    assert!(
        targets.contains(&"*.ff_context.net.0.proj".to_owned()),
        "{targets:?}"
    );
}

#[test]
fn qwen_image_is_its_folder_with_guidance_and_targets_that_it_has() {
    let of = |kind: &str, checkpoint: &str| {
        let yaml = format!(
            "model: {{model_type: {kind}, model_name_or_path: {checkpoint}, finetune_type: lora, target_modules: default}}\n\
             train: {{trainer_type: grpo, resolution: 384, guidance_scale: 4}}\nscheduler: {{shift: 2.0}}\n"
        );
        (config(&yaml), imported(&yaml))
    };
    for (kind, checkpoint, folder) in [
        ("qwen-image", "Qwen/Qwen-Image", "Qwen-Image"),
        ("qwen-image", "Qwen/Qwen-Image-2512", "Qwen-Image-2512"),
        ("qwenimage", "/models/qwen", "/models/qwen"),
    ] {
        let (config, imported) = of(kind, checkpoint);
        assert_eq!(size(&config), (folder, Some(384), Some(384), None));
        assert_eq!(config.sampling.guidance_scale, 4.0, "a second branch");
        // `img_mlp.net.2.proj`, which Flow-Factory names, is a layer of no Qwen-Image, and a pattern without a layer an error.
        assert_eq!(config.lora.targets.len(), 10, "{:?}", config.lora.targets);
        assert!(config.lora.targets.contains(&"*.txt_mlp.net.0.proj".to_owned()));
        // Its noise levels follow the number of tokens, so diffusers reads no shift.
        let note = imported
            .notes
            .iter()
            .find(|note| note.from == "scheduler.shift")
            .expect("noted");
        assert_eq!((note.outcome, note.rank), (Outcome::Kept, Rank::Detail), "{note}");
        assert!(
            matches!(imported.verdict, Verdict::RunsWhen { .. }),
            "{}",
            imported.verdict
        );
    }
    let yaml = "model: {model_type: qwen-image, model_name_or_path: Qwen/Qwen-Image-Edit}\ntrain: {trainer_type: grpo}\n";
    let verdict = imported(yaml).verdict.to_string();
    assert!(verdict.contains("no model Qwen-Image-Edit"), "{verdict}");
}

#[test]
fn a_model_that_is_named_but_has_no_folder_waits_for_one() {
    for (model, architecture) in [
        ("model_type: sd3-5", "mmdit"),
        ("model_type: wan2_t2v, model_name_or_path: ''", "wan"),
        ("model_type: flux1, model_name_or_path: ~/flux", "flux"),
        ("model_type: sd3, model_name_or_path: [a, b]", "mmdit"),
        ("model_type: sd3, model_name_or_path: sd3.safetensors", "mmdit"),
        ("model_type: qwen-image", "qwen-image"),
    ] {
        let yaml = format!("model: {{{model}}}\ntrain: {{trainer_type: grpo, resolution: 512}}\n");
        let imported = imported(&yaml);
        let config = config(&yaml);
        assert_eq!(config.model.architecture, architecture, "{}", imported.toml);
        assert_eq!(size(&config), ("", None, None, None), "{}", imported.toml);
        let Verdict::RunsWhen { needs } = &imported.verdict else {
            panic!("{}", imported.verdict)
        };
        assert!(
            needs
                .iter()
                .any(|need| need.starts_with("a diffusers folder of ")),
            "{}",
            imported.verdict
        );
    }
}

#[test]
fn names_on_a_hub_are_told_from_paths() {
    for (written, path, fetched) in [
        (
            "stabilityai/stable-diffusion-3-medium-diffusers",
            "stable-diffusion-3-medium-diffusers",
            true,
        ),
        ("models/my sd3", "models/my sd3", false),
        ("sd35", "sd35", false),
        ("./sd35", "./sd35", false),
        ("../models/sd35", "../models/sd35", false),
        ("/models/sd35", "/models/sd35", false),
        ("a/b/c", "a/b/c", false),
    ] {
        let yaml = format!(
            "model: {{model_type: sd3, model_name_or_path: '{written}'}}\ntrain: {{trainer_type: grpo}}\n"
        );
        assert_eq!(size(&config(&yaml)).0, path);
        let verdict = imported(&yaml).verdict.to_string();
        let need = format!("a copy of {written} (`flow-train fetch {written}`)");
        assert_eq!(verdict.contains(&need), fetched, "{verdict}");
        assert_eq!(verdict.contains("flow-train fetch"), fetched, "{verdict}");
    }
}

#[test]
fn prompts_are_the_files_of_the_folder_under_flow_factorys_names() {
    let of = |data: &str| {
        let yaml = format!(
            "model: {{model_type: sd3, model_name_or_path: /sd3}}\ndata: {{{data}}}\ntrain: {{trainer_type: grpo}}\n\
             rewards: {{reward_model: jpeg_compressibility}}\n"
        );
        (config(&yaml).data, imported(&yaml))
    };
    let (data, whole) = of("dataset_dir: dataset/ocr/");
    assert_eq!(data.kind, "prompts");
    assert_eq!(data.params["path"], "dataset/ocr/train.txt");
    assert_eq!(data.params["test_path"], "dataset/ocr/test.txt");
    assert_eq!(whole.verdict, Verdict::Runs, "{}", whole.toml);
    // Pictures stand in a `.jsonl` alone.
    let (data, _) = of("dataset_dir: /d, image_dir: /d/pictures");
    assert_eq!(data.params["path"], "/d/train.jsonl");
    assert_eq!(data.params["test_path"], "/d/test.jsonl");
    for without in [
        "cache_dir: c",
        "dataset_dir: ~/d",
        "dataset_dir: ''",
        "datasets: [{dataset_dir: a}, {dataset_dir: b}]",
    ] {
        let (data, imported) = of(without);
        assert_ne!(data.kind, "prompts", "{without}");
        assert_eq!(
            imported.verdict.to_string(),
            "runs when a file of prompts is there",
            "{without}"
        );
    }
}

#[test]
fn what_is_not_here_stands_as_it_was_asked_for_and_is_refused() {
    for (yaml, because, written) in [
        (
            "model: {model_type: flux2}\ntrain: {trainer_type: grpo}",
            "no model FLUX.2",
            "architecture = \"flux2\"",
        ),
        (
            "model: {model_type: flux1, model_name_or_path: black-forest-labs/FLUX.1-Kontext-dev}\ntrain: {trainer_type: grpo}",
            "no model FLUX.1 Kontext",
            "architecture = \"flux1\"",
        ),
        (
            "model: {model_type: dit, finetune_type: lora}\ntrain: {trainer_type: grpo}",
            "no model dit",
            "architecture = \"flow-factory/dit\"",
        ),
        (
            "model: {model_type: wan2_t2v, model_name_or_path: Wan-AI/Wan2.2-T2V-A14B-Diffusers}\ntrain: {trainer_type: nft}",
            "no model Wan 2.2",
            "architecture = \"wan2_t2v\"",
        ),
        (
            "model: {model_type: wan2_i2v}\ntrain: {trainer_type: nft}",
            "conditioned on images",
            "architecture = \"wan2_i2v\"",
        ),
        (
            "model: {model_type: sd3-5}\ntrain: {trainer_type: dmdr}",
            "no trainer dmdr",
            "kind = \"dmdr\"",
        ),
        (
            "model: {model_type: sd3-5}\ntrain: {trainer_type: my.own.Trainer}",
            "no trainer my.own.Trainer",
            "kind = \"my.own.Trainer\"",
        ),
    ] {
        let Imported { verdict, toml, .. } = imported(yaml);
        let Verdict::Cannot { because: reasons } = &verdict else {
            panic!("{verdict}\n{yaml}")
        };
        assert!(reasons.iter().any(|reason| reason.contains(because)), "{verdict}");
        assert!(toml.contains(&format!("\n{written}")), "{toml}");
        let report = parse_named("config.toml", &toml, &[]).expect_err("it is refused");
        assert_eq!(
            report
                .diagnostics
                .iter()
                .filter(|one| one.code == "not-allowed")
                .count(),
            reasons.len(),
            "{report}"
        );
    }
}

/// Flow-Factory's schedule, from its own words: the decay after iteration `t`, counted from 0.
fn theirs(kind: &str, t: f64) -> f64 {
    let (decay, initial, warmup, total, flat, rate) = (0.9, 0.1, 20.0, 50.0, 7.0, 0.03);
    let half_wave = |part: f64| (1.0 - (std::f64::consts::PI * part).cos()) / 2.0;
    match kind {
        "constant" => decay,
        "power" => f64::min(decay, (1.0 + t) / (warmup + t)),
        "linear" => initial + (decay - initial) * f64::min(t / warmup, 1.0),
        "piecewise_linear" if t < flat => 0.0,
        "piecewise_linear" => f64::min((t - flat) * rate, decay),
        "cosine" => initial + (decay - initial) * half_wave(f64::min(t / total, 1.0)),
        "warmup_cosine" if t < warmup => initial * t / warmup,
        "warmup_cosine" => {
            initial + (decay - initial) * half_wave(f64::min((t - warmup) / (total - warmup), 1.0))
        }
        other => panic!("{other}"),
    }
}

/// flow-train's, from the documentation of `[ema.schedule]`.
fn ours(schedule: &EmaSchedule, t: f64) -> f64 {
    let line = |from: f64, to: f64, part: f64| from + (to - from) * part;
    let half_wave = |part: f64| (1.0 - (std::f64::consts::PI * part).cos()) / 2.0;
    match schedule {
        EmaSchedule::Constant(c) => c.decay,
        EmaSchedule::Power(c) => f64::min(c.decay, (1.0 + t) / (c.warmup + t)),
        EmaSchedule::Linear(c) => line(c.initial, c.decay, f64::min(t / c.steps as f64, 1.0)),
        EmaSchedule::PiecewiseLinear(c) => f64::min((t - c.flat as f64).max(0.0) * c.rate, c.maximum),
        EmaSchedule::Cosine(c) => line(c.initial, c.decay, half_wave(f64::min(t / c.steps as f64, 1.0))),
        EmaSchedule::WarmupCosine(c) if t < c.warmup as f64 => c.initial * t / c.warmup as f64,
        EmaSchedule::WarmupCosine(c) => {
            let part = f64::min((t - c.warmup as f64) / c.steps as f64, 1.0);
            line(c.initial, c.decay, half_wave(part))
        }
    }
}

#[test]
fn averages_have_the_decays_of_flow_factory_at_every_iteration() {
    for kind in [
        "constant",
        "power",
        "linear",
        "piecewise_linear",
        "cosine",
        "warmup_cosine",
    ] {
        let yaml = format!(
            "model: {{model_type: sd3-5}}\ntrain: {{trainer_type: grpo, ema_decay: 0.9, ema_decay_schedule: {kind}, initial_decay: 0.1, \
             warmup_steps: 20, total_steps: 50, flat_steps: 7, ramp_rate: 0.03}}"
        );
        let schedule = config(&yaml).ema.schedule;
        for t in 0..80 {
            let (theirs, ours) = (theirs(kind, t.into()), ours(&schedule, t.into()));
            assert!(
                (theirs - ours).abs() < 1e-12,
                "{kind} at {t}: {theirs} and {ours}"
            );
        }
    }
}

#[test]
fn lengths_that_the_yaml_leaves_out_are_flow_factorys() {
    let of = |kind: &str| {
        let yaml = format!(
            "model: {{model_type: sd3-5}}\ntrain: {{trainer_type: grpo, ema_decay: 0.9, ema_decay_schedule: {kind}}}"
        );
        config(&yaml).ema.schedule
    };
    let EmaSchedule::Cosine(cosine) = of("cosine") else {
        panic!()
    };
    assert_eq!((cosine.initial, cosine.decay, cosine.steps), (0.0, 0.9, 1000));
    let EmaSchedule::Linear(linear) = of("linear") else {
        panic!()
    };
    assert_eq!((linear.initial, linear.steps), (0.0, 10));
    let EmaSchedule::WarmupCosine(both) = of("warmup_cosine") else {
        panic!()
    };
    assert_eq!((both.warmup, both.initial, both.steps), (10, 0.0, 990));
}

#[test]
fn the_old_policy_of_nft_follows_flow_factorys_average_exactly_or_says_that_it_does_not() {
    let old = |train: &str| {
        let yaml =
            format!("model: {{model_type: sd3-5}}\ntrain: {{trainer_type: nft, off_policy: true, {train}}}");
        let nft: NftSettings = config(&yaml).algorithm.params().expect("of nft");
        (nft.old_policy, imported(&yaml))
    };
    let slow = "ema_decay_schedule: piecewise_linear, ema_decay: 0.999, flat_steps: 75, ramp_rate: 0.0075, ema_update_interval: 1";
    let constant = "ema_decay_schedule: constant, ema_decay: 0.7, ema_update_interval: 1";
    let linear = "ema_decay_schedule: linear, ema_decay: 0.8, warmup_steps: 40, ema_update_interval: 1";
    let none = "ema_decay: 0";
    for (train, theirs) in [
        (
            slow,
            (|t| {
                if t < 75.0 {
                    0.0
                } else {
                    f64::min((t - 75.0) * 0.0075, 0.999)
                }
            }) as fn(f64) -> f64,
        ),
        (constant, |_| 0.7),
        (linear, |t| 0.8 * f64::min(t / 40.0, 1.0)),
        (none, |_| 0.0),
    ] {
        let (policy, _) = old(train);
        for t in 0..400 {
            // flow-train counts iterations from 1 here.
            let ours = ((f64::from(t) + 1.0 - policy.flat as f64).max(0.0) * policy.rate).min(policy.hold);
            assert!((ours - theirs(t.into())).abs() < 1e-12, "{train} at {t}: {ours}");
        }
    }
    // At another pace it is written, and said.
    let (policy, imported) = old(&slow.replace("ema_update_interval: 1", "ema_update_interval: 10"));
    assert_eq!((policy.flat, policy.rate, policy.hold), (76, 0.0075, 0.999));
    let note = imported.notes.iter().find(|note| note.from == "train.off_policy");
    let note = note.expect("noted");
    assert!(
        note.rank == Rank::Result && note.text.contains("every 10 iterations"),
        "{note}"
    );
    for train in [
        "ema_decay: 0.9",
        "ema_decay_schedule: cosine, ema_update_interval: 1",
    ] {
        let (_, imported) = old(train);
        let note = imported
            .notes
            .iter()
            .find(|note| note.from == "train.off_policy")
            .expect("noted");
        assert!(
            note.outcome == Outcome::Kept && note.rank == Rank::Result,
            "{note}"
        );
    }
}

#[test]
fn keys_that_flow_factory_hands_on_are_said_to_be_handed_on() {
    let yaml = "model: {model_type: sd3-5}\ntrain: {trainer_type: grpo, kl_weight: 3, num_frames: 5}\nscheduler: {use_karras_sigmas: true}\n\
                eval: {my_scale: 2}\n";
    let Imported { notes, .. } = imported(yaml);
    for (from, said) in [
        ("train.kl_weight", "hands it to the model's adapter"),
        ("train.num_frames", "hands it to the model's adapter"),
        (
            "scheduler.use_karras_sigmas",
            "hands it to the scheduler of diffusers",
        ),
        ("eval.my_scale", "hands it to the model's adapter"),
    ] {
        let note = notes.iter().find(|note| note.from == from).expect("noted");
        assert!(note.text.contains(said), "{note}");
    }
    assert!(notes.iter().all(|note| !note.text.contains("has no such key")));
}

#[test]
fn the_summary_begins_with_the_verdict_and_folds_what_changes_nothing() {
    let yaml = "launcher: accelerate\nmain_process_port: 29500\nconfig_file: a.yaml\n\
                data: {dataset_dir: d, cache_dir: c, dataloader_num_workers: 8}\n\
                model: {model_type: sd3-5, model_name_or_path: stabilityai/stable-diffusion-3.5-medium, resume_path: null}\n\
                train: {trainer_type: grpo, group_size: 8, max_epochs: 3, latent_storage_dtype: fp16}\n\
                rewards: {name: a, reward_model: PickScore}\n";
    let imported = imported(yaml);
    let summary = imported.summary();
    let lines: Vec<&str> = summary.lines().collect();
    assert!(lines[0].starts_with("verdict: runs when "), "{summary}");
    for needed in [
        "a copy of yuvalkirstain/PickScore_v1 (`flow-train fetch yuvalkirstain/PickScore_v1`)",
        "a copy of stabilityai/stable-diffusion-3.5-medium (`flow-train fetch stabilityai/stable-diffusion-3.5-medium`)",
    ] {
        assert!(lines[0].contains(needed), "{summary}");
    }
    let folded = lines
        .iter()
        .position(|line| line.contains("have no counterpart here"))
        .expect("folded");
    assert!(
        lines[folded].contains("main_process_port") && lines[folded].contains("data.cache_dir"),
        "{summary}"
    );
    assert!(
        lines[..folded]
            .iter()
            .any(|line| line.contains("train.latent_storage_dtype")),
        "{summary}"
    );
    assert!(!summary.contains("resume_path"), "{summary}");
    assert!(lines.len() < 20, "{summary}");
    let all = imported.all_notes();
    assert!(all.contains("model.resume_path") && all.lines().count() > imported.notes.len());
}
