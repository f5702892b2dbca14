//! The verdict on every example that Flow-Factory publishes. The files are Flow-Factory's and not here; their names, the
//! facts that decide and our verdicts are in `fixtures/examples.tsv`, and the test makes a config of these facts for each.
//! With the files at hand, `FLOW_FACTORY_EXAMPLES=FOLDER` compares the verdicts on them too.

use std::collections::BTreeSet;
use std::path::Path;

use flow_import::{Imported, Verdict, import, import_bytes};
use test_catalog::CATALOG;

/// One example.
struct Example {
    file: &'static str,
    model_type: &'static str,
    checkpoint: &'static str,
    finetune_type: &'static str,
    trainer_type: &'static str,
    rewards: Vec<&'static str>,
    verdict: &'static str,
}

fn examples() -> Vec<Example> {
    let lines = include_str!("fixtures/examples.tsv").lines();
    let rows = lines.filter(|line| !line.starts_with('#'));
    rows.map(|line| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [
            file,
            model_type,
            checkpoint,
            finetune_type,
            trainer_type,
            rewards,
            verdict,
        ] = cells[..]
        else {
            panic!("seven columns: {line}");
        };
        Example {
            file,
            model_type,
            checkpoint,
            finetune_type,
            trainer_type,
            rewards: rewards.split(',').collect(),
            verdict,
        }
    })
    .collect()
}

/// A config of the shape that Flow-Factory's have, in our words.
fn config(example: &Example) -> String {
    let decoupled = !example.trainer_type.starts_with("grpo");
    let path = if decoupled {
        "scheduler: {dynamics_type: ODE}\n".to_owned()
    } else {
        "scheduler: {dynamics_type: Flow-SDE, noise_level: 0.7, num_sde_steps: 1, sde_steps: [1, 2]}\n"
            .to_owned()
    };
    let average = match example.trainer_type {
        "nft" => {
            "\n  off_policy: true\n  ema_decay_schedule: piecewise_linear\n  flat_steps: 0\n  ramp_rate: 0.001\n  ema_decay: 0.5\n  ema_update_interval: 1"
        }
        _ => "\n  ema_decay: 0.9\n  ema_update_interval: 4",
    };
    let rewards: Vec<String> = (example.rewards.iter().enumerate())
        .map(|(index, model)| {
            format!("  - {{name: r{index}, reward_model: {model}, batch_size: 16, device: cuda}}\n")
        })
        .collect();
    format!(
        "launcher: accelerate\nnum_processes: 8\nmain_process_port: 29500\nmixed_precision: bf16\n\
         data: {{dataset_dir: dataset/prompts, cache_dir: ~/.cache/x, sampler_type: auto}}\n\
         model:\n  model_type: {}\n  model_name_or_path: {}\n  finetune_type: {}\n  target_modules: default\n  lora_rank: 32\n  \
         lora_alpha: 64\n  resume_path: null\n\
         log: {{run_name: null, logging_backend: wandb, save_freq: 20}}\n\
         train:\n  trainer_type: {}\n  resolution: 512\n  max_epochs: 100\n  group_size: 16\n  unique_sample_num_per_epoch: 48\n  \
         num_inference_steps: 10\n  guidance_scale: 4.0{average}\n{path}rewards:\n{}",
        example.model_type,
        example.checkpoint,
        example.finetune_type,
        example.trainer_type,
        rewards.concat()
    )
}

#[test]
fn every_example_has_its_verdict() {
    let examples = examples();
    assert_eq!(examples.len(), 59);
    for example in &examples {
        let yaml = config(example);
        let Imported { verdict, toml, .. } =
            import(&yaml, &CATALOG).unwrap_or_else(|error| panic!("{}: {error}\n{yaml}", example.file));
        assert_eq!(verdict.to_string(), example.verdict, "{}", example.file);
        assert_eq!(
            toml.lines().nth(1).map(|line| line.starts_with("# Verdict: ")),
            Some(true)
        );
    }
}

#[test]
fn no_model_and_no_trainer_takes_the_place_of_another() {
    for example in examples() {
        let Imported { verdict, toml, .. } = import(&config(&example), &CATALOG).expect("converts");
        let read = test_catalog::inspect_named("config.toml", &toml, &[]);
        let errors: BTreeSet<&str> = (read.report.diagnostics.iter())
            .filter(|one| one.severity == flow_config::Severity::Error)
            .map(|one| one.path.as_str())
            .collect();
        // Each of them names a checkpoint on a hub, whose folder says what it is.
        let folder = example.checkpoint.rsplit('/').next().unwrap_or_default();
        let model_is_here =
            toml.contains(&format!("\npath = \"{folder}\"\n")) && !toml.contains("\narchitecture = ");
        assert_eq!(
            errors.contains("model.architecture"),
            !model_is_here,
            "{}\n{toml}",
            example.file
        );
        assert!(!errors.contains("algorithm.kind"), "{}\n{toml}", example.file);
        let cannot = matches!(verdict, Verdict::Cannot { .. });
        assert_eq!(cannot, !errors.is_empty(), "{}: {verdict}", example.file);
        assert!(
            toml.contains("\n[device]\nkind = \"cuda\""),
            "{}\n{toml}",
            example.file
        );
    }
}

#[test]
fn the_files_themselves_have_the_same_verdicts() {
    let Some(folder) = std::env::var_os("FLOW_FACTORY_EXAMPLES") else {
        test_support::skipped("FLOW_FACTORY_EXAMPLES names no folder with the examples of Flow-Factory");
        return;
    };
    for example in examples() {
        let file = Path::new(&folder).join(example.file);
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let imported =
            import_bytes(&bytes, &CATALOG).unwrap_or_else(|error| panic!("{}: {error}", example.file));
        assert_eq!(imported.verdict.to_string(), example.verdict, "{}", example.file);
        assert!(imported.summary().starts_with("verdict: "));
    }
}
