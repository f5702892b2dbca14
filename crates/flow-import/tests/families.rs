//! Models, averages and old policies of Flow-Factory, as numbers.

use flow_config::{Config, DeviceKind, EmaSchedule, Shift};
use flow_import::{Imported, Outcome, Rank, Verdict, import};
use flow_models::mmdit::MmditSection;
use flow_models::wan::WanSection;
use flow_trainer::algorithm::NftSettings;
use test_catalog::{CATALOG, parse_named};

fn imported(yaml: &str) -> Imported {
    import(yaml, &CATALOG).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

fn mmdit(config: &Config) -> MmditSection {
    config.model.params("mmdit").expect("an mmdit")
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

#[test]
fn wan_takes_its_size_from_the_checkpoint_and_its_latent_from_the_video() {
    for (checkpoint, layers, heads, ffn) in [
        ("Wan-AI/Wan2.1-T2V-14B-Diffusers", 40, 40, 13_824),
        ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", 30, 12, 8960),
        ("/models/wan2.1_t2v_1.3b", 30, 12, 8960),
    ] {
        let config = config(&wan(checkpoint, "resolution: [480, 840], num_frames: 5"));
        assert_eq!(config.model.architecture, "wan");
        let wan: WanSection = config.model.params("wan").expect("a wan");
        assert_eq!(
            (wan.num_layers, wan.num_attention_heads, wan.ffn_dim),
            (layers, heads, ffn)
        );
        // 840 pixels are no whole patches: Flow-Factory takes 832.
        assert_eq!(
            (wan.latent_frames, wan.latent_height, wan.latent_width),
            (2, 60, 104)
        );
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
        let model = config(&wan("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", train)).model;
        model.params::<WanSection>("wan").expect("a wan").latent_frames
    };
    assert_eq!(frames("num_frames: 1"), 1);
    assert_eq!(
        (frames("num_frames: 6"), frames("num_frames: 8")),
        (2, 3),
        "rounded as Flow-Factory rounds it"
    );
    assert_eq!(frames("seed: 1"), 21, "81 where it is left out");
}

#[test]
fn sd3_has_the_dimensions_of_its_checkpoint() {
    let of = |checkpoint: &str| {
        let yaml = format!(
            "model: {{model_type: sd3-5, model_name_or_path: {checkpoint}, finetune_type: lora, target_modules: default}}\n\
             train: {{trainer_type: grpo, resolution: 512}}\n"
        );
        (config(&yaml), imported(&yaml))
    };
    let (medium, _) = of("stabilityai/stable-diffusion-3.5-medium");
    assert_eq!((mmdit(&medium).num_layers, mmdit(&medium).sample_size), (24, 64));
    assert!(medium.lora.targets.contains(&"*.attn.to_add_out".to_owned()));
    assert_eq!(medium.lora.targets.len(), 8);
    let (large, _) = of("stabilityai/stable-diffusion-3.5-large");
    let dims = mmdit(&large);
    assert_eq!(
        (
            dims.num_layers,
            dims.num_attention_heads,
            dims.caption_projection_dim
        ),
        (38, 38, 2432)
    );
    assert!(dims.dual_attention_layers.is_empty() && dims.qk_norm);
    let (older, _) = of("stabilityai/stable-diffusion-3-medium-diffusers");
    let older = mmdit(&older);
    assert!(older.dual_attention_layers.is_empty() && !older.qk_norm);
    let (_, unknown) = of("/models/mine");
    let note = unknown
        .notes
        .iter()
        .find(|note| note.to == "model.architecture")
        .expect("noted");
    assert!(
        note.rank == Rank::Result && note.text.contains("which size"),
        "{note}"
    );
    let weights = unknown
        .notes
        .iter()
        .find(|note| note.to == "model.weights")
        .expect("noted");
    assert_eq!(weights.written, "\"/models/mine/transformer\"");
}

#[test]
fn what_is_not_here_stands_as_it_was_asked_for_and_is_refused() {
    for (yaml, because, written) in [
        (
            "model: {model_type: flux1}\ntrain: {trainer_type: grpo}",
            "no model FLUX.1",
            "architecture = \"flux1\"",
        ),
        (
            "train: {trainer_type: grpo}",
            "no model FLUX.1",
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
            "model: {model_type: sd3-5}\ntrain: {trainer_type: awm}",
            "no trainer awm",
            "kind = \"awm\"",
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
        "an autoencoder",
        "prompts of one's own",
        "the reward PickScore",
        "a copy of stabilityai/stable-diffusion-3.5-medium",
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
