//! Single keys: what becomes of them, what their notes say, and that the table agrees with flow-config.

mod trainers;

use std::collections::BTreeSet;

use flow_config::Severity;
use flow_import::{Conversion, Imported, Note, Outcome, import, mapping, rules};
use serde_json::json;
use test_catalog::{CATALOG, inspect_named};

fn imported(yaml: &str) -> Imported {
    import(yaml, &CATALOG).unwrap_or_else(|error| panic!("{error}"))
}

fn config(yaml: &str) -> flow_config::Config {
    let toml = imported(yaml).toml;
    // A model or a trainer that is not here is refused where it stands; the rest is read.
    let read = inspect_named("config.toml", &toml, &[]);
    for error in read
        .report
        .diagnostics
        .iter()
        .filter(|one| one.severity == Severity::Error)
    {
        assert!(
            ["model.architecture", "algorithm.kind"].contains(&error.path.as_str()),
            "{error}\n{toml}"
        );
    }
    read.partial
        .unwrap_or_else(|| panic!("{}\n{toml}", read.report))
        .config
}

/// The note on a key.
fn note(yaml: &str, from: &str) -> Note {
    let Imported { notes, toml, .. } = imported(yaml);
    notes
        .into_iter()
        .find(|note| note.from == from)
        .unwrap_or_else(|| panic!("no note on {from}\n{toml}"))
}

#[test]
fn every_target_of_the_table_is_a_key_of_flow_train() {
    let known: BTreeSet<String> = test_catalog::all_keys().into_iter().collect();
    for rule in rules().filter(|rule| !matches!(rule.conversion, Conversion::Nothing)) {
        for to in rule.to.split(", ").filter(|to| !to.is_empty()) {
            let listed = known
                .iter()
                .any(|key| key == to || key.starts_with(&format!("{to}.")));
            assert!(
                listed || test_catalog::explain(to).is_some(),
                "{}: {to}",
                rule.from
            );
        }
    }
}

#[test]
fn the_table_has_each_key_once() {
    let mut seen = BTreeSet::new();
    for rule in rules() {
        assert!(seen.insert(rule.from), "{}", rule.from);
    }
    assert!(seen.len() > 120, "{}", seen.len());
}

#[test]
fn the_readme_has_the_table_of_rules() {
    let readme = include_str!("../../README.md");
    let (_, table) = readme
        .split_once("a test compares the two.\n\n")
        .expect("the section");
    assert!(
        table == mapping(),
        "the table is out of date: put the output of `cargo run --release -p flow-import --example mapping` there"
    );
}

#[test]
fn a_note_names_the_line_the_column_and_both_values() {
    let note = note("train:\n  learning_rate: 2.0e-4\n", "train.learning_rate");
    assert_eq!(
        (note.outcome, note.line, note.column),
        (Outcome::Converted, Some(2), Some(3))
    );
    assert_eq!(
        (note.value.as_str(), note.to.as_str()),
        ("2.0e-4", "optimizer.learning_rate")
    );
    assert_eq!(note.written, "2.0e-4");
    assert!(
        note.to_string()
            .starts_with("line 2: train.learning_rate: 2.0e-4 -> optimizer.learning_rate = 2.0e-4")
    );
}

#[test]
fn a_key_without_a_counterpart_is_a_comment_with_its_value_and_the_reason() {
    let yaml = "log: {project: My Project, logging_backend: wandb, save_freq: 3}";
    let toml = imported(yaml).toml;
    assert!(
        toml.contains("# Not converted: log.project: My Project (line 1)\n#   runs are folders"),
        "{toml}"
    );
    assert!(
        toml.contains("# Not converted: log.logging_backend: wandb (line 1)\n"),
        "{toml}"
    );
    assert_eq!(note(yaml, "log.project").outcome, Outcome::Kept);
}

#[test]
fn what_flow_train_does_anyway_is_not_written_and_said() {
    let yaml = "train: {max_grad_norm: 1.0, ref_param_device: cuda}\nlog: {save_freq: 10}";
    for from in ["train.max_grad_norm", "train.ref_param_device", "log.save_freq"] {
        assert_eq!(note(yaml, from).outcome, Outcome::Default, "{from}");
    }
    assert!(!imported(yaml).toml.contains("max_grad_norm"));
}

#[test]
fn an_unknown_key_names_the_nearest_one() {
    let note = note(
        "train: {trainer_type: grpo, learning_rte: 1}",
        "train.learning_rte",
    );
    assert!(
        note.text
            .contains("The nearest key that it has is `train.learning_rate`"),
        "{note}"
    );
    assert!(note.needs_attention());
}

#[test]
fn a_key_of_another_trainer_says_so() {
    let text = note(
        "train: {trainer_type: nft, clip_range: 1.0e-4}",
        "train.clip_range",
    )
    .text;
    assert!(
        text.contains("`algorithm.kind = \"nft\"` has no such key"),
        "{text}"
    );
    let text = note("train: {trainer_type: dmdr}", "train.trainer_type").text;
    assert!(text.starts_with("flow-train has no trainer dmdr"), "{text}");
}

#[test]
fn a_trainer_on_records_takes_records_of_flow_trains_own_form() {
    for (written, kind, data, path, rows) in [
        ("sft", "sft", "images", "set", 1),
        ("offline_dpo", "offline-dpo", "preferences", "set/pairs.jsonl", 2),
    ] {
        let yaml = format!(
            "num_processes: 2\ndata: {{dataset_dir: set}}\ntrain: {{trainer_type: {written}, per_device_batch_size: 3, \
             gradient_accumulation_steps: 4, num_train_timesteps: 2, weighting_scheme: uniform, time_shift: 3, timestep_range: 0.9, \
             max_epochs: 5}}\neval_rewards: [{{name: a, reward_model: ocr}}]"
        );
        let config = config(&yaml);
        assert_eq!(config.algorithm.kind, kind);
        assert_eq!(
            (config.data.kind.as_str(), &config.data.params["path"]),
            (data, &json!(path))
        );
        assert_eq!(
            (
                config.sampling.group_size,
                config.sampling.prompts_per_step,
                config.sampling.micro_batch
            ),
            (rows, 24, 3 * rows)
        );
        assert_eq!(config.optimizer.gradient_accumulation, 0);
        assert_eq!(
            config.algorithm.params["train_timesteps"],
            json!({ "count": 2, "strategy": "uniform", "shift": 3.0, "range": [0.0, 0.9] })
        );
        let Imported { verdict, notes, .. } = imported(&yaml);
        assert!(
            verdict.to_string().contains("as flow-train reads them"),
            "{verdict}"
        );
        assert!(
            notes
                .iter()
                .any(|note| note.to == "run.steps" && note.text.contains("passes"))
        );
        assert!(
            notes
                .iter()
                .any(|note| note.from == "data.dataset_dir" && note.needs_attention())
        );
    }
}

#[test]
fn what_flow_train_refuses_is_a_comment_with_its_message() {
    let yaml = "scheduler: {dynamics_type: ODE}\ntrain: {trainer_type: grpo}";
    let note = note(yaml, "scheduler.dynamics_type");
    assert_eq!(note.outcome, Outcome::Kept);
    assert!(note.text.contains("trains on log-probabilities"), "{note}");
    let yaml = "log: {run_name: a/b}\ntrain: {learning_rate: -1, seed: -3}\neval: {guidance_scale: .inf}";
    for from in [
        "log.run_name",
        "train.learning_rate",
        "train.seed",
        "eval.guidance_scale",
    ] {
        assert_eq!(self::note(yaml, from).outcome, Outcome::Kept, "{from}");
    }
}

#[test]
fn the_old_key_for_the_attention_backend_is_the_accelerators_matter() {
    assert_eq!(
        note("model: {attn_backend: native}", "model.attn_backend").outcome,
        Outcome::Default
    );
    for backend in ["flash", "_flash_3", "_flash_3_hub", "sage", "xformers"] {
        let yaml = format!("model: {{attn_backend: {backend}}}");
        let note = note(&yaml, "model.attn_backend");
        assert_eq!(note.outcome, Outcome::Kept);
        assert!(
            note.text
                .contains("name = \"attention_backend\", params = { backend ="),
            "{note}"
        );
    }
}

#[test]
fn a_single_accelerator_is_a_list_of_one_and_order_is_kept() {
    let compiled = "acceleration: {shared: {name: Torch_Compile, params: {mode: full}}}";
    assert!(
        config(compiled).acceleration.shared.is_empty(),
        "what fuses kernels here is no compiler"
    );
    assert_eq!(note(compiled, "acceleration.shared").outcome, Outcome::Kept);
    let one = "train: {trainer_type: nft}\nacceleration: {rollout: {name: Diffusers_Cache}}";
    assert_eq!(config(one).acceleration.rollout.len(), 1);
    let two = config(
        "train: {trainer_type: nft}\nacceleration:\n  rollout:\n    - {name: cache_dit}\n    - {name: diffusers_cache}",
    );
    let thresholds: Vec<_> = two
        .acceleration
        .rollout
        .iter()
        .map(|entry| entry.params["threshold"].clone())
        .collect();
    assert_eq!(thresholds, [0.08, 0.05]);
    assert!(
        two.acceleration
            .rollout
            .iter()
            .all(|entry| entry.params["policy"] == "first_block")
    );
}

#[test]
fn a_lossy_cache_on_a_coupled_trainer_is_flagged_and_on_nft_it_is_not() {
    let with = |kind: &str| {
        format!("train: {{trainer_type: {kind}}}\nacceleration: {{rollout: {{name: diffusers_cache}}}}")
    };
    let coupled = note(&with("grpo-guard"), "acceleration.rollout");
    assert!(
        coupled.needs_attention() && coupled.text.contains("outside_sde_window"),
        "{coupled}"
    );
    assert!(!note(&with("nft"), "acceleration.rollout").needs_attention());
}

#[test]
fn parameters_of_diffusers_cache_policies_get_the_names_that_feature_cache_has() {
    let entry = |params: &str| {
        let yaml = format!(
            "train: {{trainer_type: nft}}\nacceleration: {{rollout: {{name: diffusers_cache, params: {{{params}}}}}}}"
        );
        let entries = config(&yaml).acceleration.rollout;
        serde_json::to_value(&entries[0].params).expect("JSON")
    };
    for (theirs, ours) in [
        (
            "policy: magcache, threshold: 0.1, max_skip_steps: 2, retention_ratio: 0.25, mag_ratios: [0.99, 0.98]",
            json!({ "policy": "magcache", "threshold": 0.1, "max_consecutive": 2, "retention": 0.25, "ratios": [0.99, 0.98] }),
        ),
        (
            "policy: taylorseer, cache_interval: 4, disable_cache_before_step: 2, max_order: 2",
            json!({ "policy": "taylorseer", "interval": 4, "warmup_steps": 2, "order": 2 }),
        ),
        (
            "policy: pyramid, spatial_attention_block_skip_range: 3, spatial_attention_timestep_skip_range: [100, 700]",
            json!({ "policy": "pyramid", "spatial_every": 3, "timesteps": [100, 700] }),
        ),
        (
            "policy: faster, unconditional_batch_skip_range: 4, alpha_low_frequency: 1.2",
            json!({ "policy": "faster", "unconditional_every": 4, "low_frequency_factor": 1.2 }),
        ),
        // A parameter that the policy has not, there or here.
        ("policy: pyramid, threshold: 0.1", json!({ "policy": "pyramid" })),
    ] {
        assert_eq!(entry(theirs), ours, "{theirs}");
    }
}

#[test]
fn a_magcache_without_measured_ratios_is_a_comment_since_no_run_starts_with_it() {
    for params in [
        "policy: magcache",
        "policy: magcache, threshold: 0.1",
        "policy: magcache, mag_ratios: null",
        "policy: magcache, mag_ratios: 0.9",
        "policy: magcache, mag_ratios: []",
        "policy: magcache, mag_ratios: [0.9, 0.0]",
        "policy: magcache, mag_ratios: [0.9, .inf]",
        "policy: magcache, mag_ratios: [0.9, high]",
    ] {
        let yaml = format!(
            "train: {{trainer_type: nft}}\nacceleration: {{rollout: {{name: diffusers_cache, params: {{{params}}}}}}}"
        );
        assert!(config(&yaml).acceleration.rollout.is_empty(), "{params}");
        let note = note(&yaml, "acceleration.rollout");
        assert!(
            note.outcome == Outcome::Kept && note.needs_attention(),
            "{params}: {note}"
        );
        assert!(
            note.text.contains("`mag_ratios`") && note.text.contains("--policy magcache"),
            "{note}"
        );
    }
}

#[test]
fn parameters_and_extra_keys_of_accelerators_are_not_lost() {
    let yaml = "acceleration:\n  shared: {name: torch_compile, when: now, params: {compile_kwargs: {dynamic: false}}}\n  \
                rollout: [5, {name: my_cache}]";
    for from in [
        "acceleration.shared.when",
        "acceleration.shared.params.compile_kwargs",
        "acceleration.rollout.0",
        "acceleration.rollout.1",
    ] {
        assert_eq!(note(yaml, from).outcome, Outcome::Kept, "{from}");
    }
}

#[test]
fn merged_and_aliased_values_are_converted_where_they_end_up() {
    let yaml = "base: &base {learning_rate: 2.0e-4, seed: 5}\ntrain:\n  <<: *base\n  seed: 6\n";
    let config = config(yaml);
    assert_eq!((config.optimizer.learning_rate, config.run.seed), (2e-4, 6));
}

#[test]
fn numbers_are_read_as_people_and_pyyaml_write_them() {
    let config = config(
        "train: {learning_rate: 1e-3, group_size: 010, max_epochs: 1_000, seed: 0x10, adam_epsilon: .5e-7}",
    );
    assert_eq!(
        (config.optimizer.learning_rate, config.optimizer.epsilon),
        (1e-3, 0.5e-7)
    );
    assert_eq!(
        (config.sampling.group_size, config.run.steps, config.run.seed),
        (8, 1000, 16)
    );
}

#[test]
fn a_seed_at_the_top_counts_where_training_has_none() {
    assert_eq!(config("seed: 3\ntrain: {trainer_type: grpo}").run.seed, 3);
    let both = "seed: 3\ntrain: {seed: 4}";
    assert_eq!(config(both).run.seed, 4);
    assert_eq!(note(both, "seed").outcome, Outcome::Kept);
}

#[test]
fn the_one_map_of_optimizers_is_converted_as_the_keys_of_train_are() {
    let settings = "name: default, learning_rate: 3.0e-4, weight_decay: 0.01, betas: [0.9, 0.99], eps: 1.0e-7, \
                    max_grad_norm: 0.5";
    for yaml in [
        format!("optimizers: [{{{settings}}}]"),
        format!("optimizers: {{{settings}}}"),
    ] {
        let Imported { toml, notes, .. } = imported(&yaml);
        let optimizer = config(&yaml).optimizer;
        assert_eq!(
            (optimizer.learning_rate, optimizer.weight_decay),
            (3e-4, 0.01),
            "{toml}"
        );
        assert_eq!(
            (optimizer.betas, optimizer.epsilon, optimizer.max_grad_norm),
            ([0.9, 0.99], 1e-7, 0.5)
        );
        assert!(
            !notes
                .iter()
                .any(|note| note.from.starts_with("optimizers") && note.needs_attention()),
            "{toml}"
        );
    }
    let rate = note(
        "optimizers:\n  - learning_rate: 3.0e-4\n",
        "optimizers.0.learning_rate",
    );
    assert_eq!((rate.outcome, rate.line), (Outcome::Converted, Some(2)));
    assert_eq!(rate.to, "optimizer.learning_rate");
}

#[test]
fn what_the_one_map_of_optimizers_leaves_out_is_trains_or_flow_factorys_default() {
    let yaml = "optimizers: [{eps: 1.0e-7, betas: null, amsgrad: true}]\ntrain: {adam_weight_decay: 0.2}";
    let optimizer = config(yaml).optimizer;
    assert_eq!((optimizer.epsilon, optimizer.weight_decay), (1e-7, 0.2));
    assert_eq!((optimizer.learning_rate, optimizer.betas), (1e-5, [0.9, 0.999]));
    assert_eq!(note(yaml, "optimizers.0.betas").outcome, Outcome::Default);
    assert_eq!(note(yaml, "optimizers.0.amsgrad").outcome, Outcome::Kept);
    let both = "optimizers: [{learning_rate: 3.0e-4}]\ntrain: {learning_rate: 1.0e-5}";
    assert_eq!(config(both).optimizer.learning_rate, 3e-4);
    assert_eq!(note(both, "train.learning_rate").outcome, Outcome::Kept);
}

#[test]
fn several_optimizers_are_for_people_to_choose_from_and_nothing_is_added_for_them() {
    for list in [
        "[{learning_rate: 3.0e-4}, {learning_rate: 1.0e-3}]",
        "adamw",
        "[adamw]",
    ] {
        let yaml = format!("optimizers: {list}");
        let kept = note(&yaml, "optimizers");
        assert!(kept.outcome == Outcome::Kept && kept.needs_attention(), "{kept}");
        assert!(kept.text.contains("into [optimizer]"), "{kept}");
        let Imported { toml, notes, .. } = imported(&yaml);
        let settings = [
            "learning_rate",
            "weight_decay",
            "betas",
            "epsilon",
            "max_grad_norm",
        ];
        let written = |note: &Note| settings.iter().any(|key| note.to == format!("optimizer.{key}"));
        assert!(!notes.iter().any(written), "{toml}");
    }
    for nothing in ["null", "[]", "[{}]", "{}"] {
        let yaml = format!("optimizers: {nothing}");
        assert_eq!(note(&yaml, "optimizers").outcome, Outcome::Default);
        assert_eq!(config(&yaml).optimizer.learning_rate, 1e-5);
    }
}

#[test]
fn a_path_below_the_home_folder_is_a_comment_since_flow_train_would_make_a_folder_of_that_name() {
    for (path, part) in [
        ("~/ff", "~"),
        ("'~'", "~"),
        ("~alice/ff", "~"),
        ("/scratch/$USER/ff", "$USER"),
    ] {
        let yaml = format!("log: {{save_dir: {path}}}");
        let note = note(&yaml, "log.save_dir");
        assert!(note.outcome == Outcome::Kept && note.needs_attention(), "{note}");
        let text = format!("flow-train does not expand `{part}`: write the path out");
        assert!(note.text.contains(&text), "{note}");
        assert_eq!(config(&yaml).run.dir, test_catalog::defaults().run.dir);
    }
    let yaml = "model: {model_type: sd3, model_name_or_path: ~/sd3/transformer.safetensors}";
    let weights = note(yaml, "model.model_name_or_path");
    assert!(
        weights.outcome == Outcome::Kept && weights.needs_attention(),
        "{weights}"
    );
    assert!(weights.text.contains("does not expand `~`"), "{weights}");
    assert_eq!(config(yaml).model.weights, None);
    let inside =
        config("log: {save_dir: runs/~old}\nmodel: {model_type: sd3, model_name_or_path: a~/b.safetensors}");
    assert_eq!(inside.run.dir, std::path::Path::new("runs/~old"));
    assert_eq!(
        inside.model.weights.as_deref(),
        Some(std::path::Path::new("a~/b.safetensors"))
    );
}
