//! Whole configs: the TOML of each YAML in `fixtures`, word for word, and what the numbers in it mean to flow-train.

use flow_config::{Config, EvalWeights, Finetune, Shift, Window};
use flow_import::{Imported, Outcome, import};
use serde_json::json;
use test_catalog::{CATALOG, inspect_named, parse_named};

fn imported(yaml: &str) -> Imported {
    import(yaml, &CATALOG).unwrap_or_else(|error| panic!("{error}"))
}

fn config(yaml: &str) -> Config {
    let Imported { toml, .. } = imported(yaml);
    // A model that is not here is refused where it stands; the rest is read.
    let read = inspect_named("config.toml", &toml, &[]);
    read.partial
        .unwrap_or_else(|| panic!("{}\n{toml}", read.report))
        .config
}

macro_rules! golden {
    ($($test:ident: $name:literal;)+) => {$(
        #[test]
        fn $test() {
            let yaml = include_str!(concat!("fixtures/", $name, ".yaml"));
            let toml = include_str!(concat!("fixtures/", $name, ".toml"));
            let made = imported(yaml).toml;
            for (number, (made, expected)) in made.lines().zip(toml.lines()).enumerate() {
                assert_eq!(made, expected, "line {} of {}.toml", number + 1, $name);
            }
            assert_eq!(made, toml);
        }
    )+};
}

golden! {
    the_grpo_config_for_sd3_converts_to_its_golden_toml: "grpo-sd3";
    the_nft_config_with_accelerators_converts_to_its_golden_toml: "nft-cache";
    the_config_with_uneven_numbers_converts_to_its_golden_toml: "guard-uneven";
    the_config_of_a_trainer_that_does_not_exist_converts_to_its_golden_toml: "dmdr-flux";
}

/// The preset was written by hand from the same recipe.
#[test]
fn flow_factorys_recipe_for_sd3_comes_out_as_the_preset_of_that_name() {
    let yaml = "
num_processes: 8
mixed_precision: 'no'
model: {model_type: sd3-5, model_name_or_path: stabilityai/stable-diffusion-3.5-medium, finetune_type: lora, lora_rank: 32, lora_alpha: 64}
scheduler: {dynamics_type: Flow-SDE, noise_level: 0.8, num_sde_steps: 2, sde_steps: [1, 2, 3, 4, 5]}
train:
  trainer_type: grpo
  group_size: 24
  unique_sample_num_per_epoch: 48
  per_device_batch_size: 8
  gradient_step_per_epoch: 2
  num_inference_steps: 10
  guidance_scale: 4.5
  clip_range: 1.0e-4
  kl_beta: 0
  learning_rate: 3.0e-4
  ema_decay: 0.99
  ema_update_interval: 4
eval: {num_inference_steps: 40, guidance_scale: 4.5}
";
    let ours = config(yaml);
    let preset = parse_named(
        "preset.toml",
        "config_version = 1\npreset = \"flow-factory-grpo\"\n",
        &[],
    )
    .expect("the preset is valid")
    .config;
    assert_eq!(ours.model.finetune, preset.model.finetune);
    assert_eq!(ours.lora, preset.lora);
    assert_eq!(ours.scheduler, preset.scheduler);
    assert_eq!(ours.sampling, preset.sampling);
    assert_eq!(ours.algorithm, preset.algorithm);
    assert_eq!(ours.advantage, preset.advantage);
    assert_eq!(ours.optimizer, preset.optimizer);
    assert_eq!(ours.ema, preset.ema);
    assert_eq!(ours.eval_steps(), preset.eval_steps());
    assert_eq!(ours.eval_guidance_scale(), preset.eval_guidance_scale());
    assert_eq!(ours.evaluation.weights, preset.evaluation.weights);
}

#[test]
fn the_nft_fixture_means_what_it_says() {
    let config = config(include_str!("fixtures/nft-cache.yaml"));
    let nft = &config.algorithm.params;
    assert_eq!(config.algorithm.kind, "nft");
    assert_eq!((&nft["beta"], &nft["kl_beta"]), (&json!(0.5), &json!(1e-4)));
    // Flow-Factory counts iterations from 0, this ramp from 1.
    assert_eq!(
        nft["old_policy"],
        json!({ "flat": 1, "rate": 0.001, "hold": 0.5 })
    );
    let times = &nft["train_timesteps"];
    assert_eq!(
        (&times["count"], &times["range"]),
        (&json!(4), &json!([0.0, 0.5]))
    );
    // 192 images in batches of 4 are 48; 2 optimizer steps take 24 each.
    assert_eq!(
        (
            config.sampling.micro_batches(),
            config.optimizer.gradient_accumulation
        ),
        (48, 24)
    );
    assert!(
        config.acceleration.shared.is_empty(),
        "what fuses kernels here is no compiler"
    );
    assert_eq!(config.acceleration.rollout[0].params["threshold"], 0.08);
    assert_eq!(
        (config.model.finetune, config.evaluation.weights),
        (Finetune::Lora, EvalWeights::Ema)
    );
}

#[test]
fn what_nobody_wrote_is_flow_factorys_default_and_not_flow_trains() {
    let Imported { notes, .. } = imported("train: {trainer_type: grpo}");
    let config = config("train: {trainer_type: grpo}");
    assert_eq!((config.run.seed, config.optimizer.learning_rate), (42, 1e-5));
    // FLUX.1-dev, which is told its scale, at 512 pixels.
    assert_eq!(
        config.model.path.as_deref(),
        Some(std::path::Path::new("FLUX.1-dev"))
    );
    assert_eq!((config.model.width, config.model.height), (Some(512), Some(512)));
    assert_eq!(
        (
            config.sampling.guidance_scale,
            config.sampling.embedded_guidance_scale
        ),
        (1.0, 3.5)
    );
    assert_eq!((config.scheduler.steps, config.eval_steps()), (10, 30));
    let window = parse_named(
        "w.toml",
        "config_version = 1\n[scheduler]\nwindow = { kind = \"random\", count = 1 }",
        &[],
    );
    assert_eq!(
        config.scheduler.window,
        window.expect("valid").config.scheduler.window
    );
    assert!(config.ema.enabled);
    assert_eq!(
        (config.ema.update_every, config.evaluation.weights),
        (10, EvalWeights::Ema)
    );
    // 8 prompts * 16 images in batches of 1, two optimizer steps per rollout.
    assert_eq!(
        (
            config.sampling.micro_batch,
            config.optimizer.gradient_accumulation
        ),
        (1, 64)
    );
    // What Flow-Factory does not know stays as it is here.
    assert!(matches!(config.scheduler.shift, Shift::Static(_)));
    assert!(
        notes
            .iter()
            .filter(|note| note.from != "train.trainer_type")
            .all(|note| matches!(note.outcome, Outcome::Added | Outcome::Remark))
    );
    assert!(
        notes
            .iter()
            .any(|note| note.to == "sampling.group_size" && note.needs_attention())
    );
}

#[test]
fn on_policy_nft_samples_with_the_policy_that_it_trains() {
    for yaml in [
        "train: {trainer_type: nft}",
        "train: {trainer_type: NFT, off_policy: false}",
    ] {
        let old = &config(yaml).algorithm.params["old_policy"];
        assert_eq!((&old["rate"], &old["hold"]), (&json!(0.0), &json!(0.0)), "{yaml}");
    }
}

#[test]
fn a_window_of_all_its_steps_is_not_random() {
    let with = |text: &str| config(&format!("scheduler: {{{text}}}")).scheduler.window;
    assert_eq!(with("num_sde_steps: null"), Window::default());
    assert_eq!(with("num_sde_steps: 9"), Window::default());
    let Window::List(list) = with("num_sde_steps: 2, sde_steps: [3, 1]") else {
        panic!()
    };
    assert_eq!(list.steps, [3, 1]);
    let Window::Random(random) = with("num_sde_steps: 3, seed: 9") else {
        panic!()
    };
    assert_eq!((random.count, random.from, random.seed), (3, None, 9));
}

#[test]
fn devices_become_accumulation_and_images_per_step_stay() {
    let shapes = [
        // devices, batch, prompts, group, optimizer steps
        (1, 4, 8, 8, 2),
        (4, 4, 8, 8, 2),
        (8, 8, 48, 24, 2),
        (3, 2, 9, 4, 3),
        (2, 5, 10, 6, 1),
    ];
    for (devices, batch, prompts, group, steps) in shapes {
        let yaml = format!(
            "num_processes: {devices}\ntrain: {{per_device_batch_size: {batch}, unique_sample_num_per_epoch: {prompts}, \
             group_size: {group}, gradient_step_per_epoch: {steps}, max_epochs: 1}}"
        );
        let config = config(&yaml);
        assert_eq!(config.sampling.images_per_step(), prompts * group, "{yaml}");
        assert_eq!(config.sampling.micro_batch, batch, "{yaml}");
        let accumulated = match config.optimizer.gradient_accumulation {
            0 => config.sampling.micro_batches(),
            number => number,
        };
        assert_eq!(accumulated * batch * steps, prompts * group, "{yaml}");
        let flagged: Vec<_> = imported(&yaml)
            .notes
            .into_iter()
            .filter(|note| note.needs_attention() && note.to != "model.path")
            .collect();
        assert!(
            flagged.iter().all(|note| note.outcome == Outcome::Remark),
            "{yaml}\n{flagged:?}"
        );
    }
}

#[test]
fn given_accumulation_counts_the_batches_of_all_devices() {
    let yaml = "num_processes: 4\ntrain: {per_device_batch_size: 2, unique_sample_num_per_epoch: 16, group_size: 8, \
                gradient_accumulation_steps: 4, gradient_step_per_epoch: 7}";
    let config = config(yaml);
    // Four devices, two images each, four times: 32 images per optimizer step of the 128.
    assert_eq!(
        config.optimizer.gradient_accumulation * config.sampling.micro_batch,
        32
    );
}
