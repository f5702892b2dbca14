//! Migrations: what becomes of version 0, and that nothing is lost on the way.

use flow_config::{codes, migrate};
use test_catalog::parse_str;

const OLD: &str = r#"# Our first run.
# Two lines.

# How it is called.
run_name = "ocr"  # short
seed = 7
num_epochs = 200
use_lora = true
mixed_precision = "no"

# Sampling.
[sample]
num_steps = 8 # was 10
sde_type = "Flow-SDE"
noise_level = 0.8
# K
num_image_per_prompt = 16
train_batch_size = 8
global_std = true

[train]
learning_rate = 3e-4
adam_beta1 = 0.9   # usual
# less than usual
adam_beta2 = 0.99
clip_range = 1e-4
adv_clip_max = 5
beta = 0.04
timestep_fraction = 0.99 # nothing like it

[lora]
rank = 4
"#;

#[test]
fn version_0_becomes_version_1_with_its_comments() {
    let (text, changes) = migrate(OLD).expect("migrates");
    let expected = r#"# Our first run.
# Two lines.

config_version = 1

[lora]
rank = 4
"#;
    assert!(
        text.starts_with("# Our first run.\n# Two lines.\n\nconfig_version = 1\n"),
        "{text}"
    );
    for comment in OLD
        .lines()
        .filter_map(|line| line.split_once('#'))
        .map(|(_, comment)| comment.trim())
    {
        assert!(text.contains(comment), "lost: {comment}\n{text}");
    }
    for line in expected.lines() {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let left: Vec<_> = changes
        .iter()
        .filter(|one| one.needs_attention)
        .map(|one| one.from.as_str())
        .collect();
    // What was added is the kind of the distance, which makes `beta` another strength.
    assert_eq!(left, ["", "train.timestep_fraction"]);

    // What is left over is the user's to decide on; without it the config is valid and says the same as before.
    let text = text
        .replace("timestep_fraction = 0.99", "")
        .replace("[train]", "");
    let config = parse_str(&text)
        .unwrap_or_else(|report| panic!("{report}\n{text}"))
        .config;
    assert_eq!(
        (config.run.name.as_str(), config.run.seed, config.run.steps),
        ("ocr", 7, 200)
    );
    assert_eq!(config.model.finetune, flow_config::Finetune::Lora);
    assert_eq!(
        (
            config.scheduler.steps,
            config.sampling.group_size,
            config.sampling.micro_batch
        ),
        (8, 16, 8)
    );
    assert_eq!(
        config.scheduler.noise_level,
        flow_config::NoiseLevel::Constant(0.8)
    );
    assert_eq!(config.optimizer.betas, [0.9, 0.99]);
    assert_eq!(config.optimizer.learning_rate, 3e-4);
    assert_eq!(config.algorithm.kind, "grpo");
    let grpo = config.algorithm.params;
    assert_eq!(grpo["clip_range"], serde_json::json!([-1e-4, 1e-4]));
    assert_eq!(grpo["advantage_clip"], 5.0);
    assert_eq!(grpo["kl"]["kind"], "mean");
    assert_eq!(grpo["kl"]["beta"], 0.04);
}

#[test]
fn every_documented_rename_leads_to_a_key_that_exists() {
    let old = [
        ("run_name", "\"a\""),
        ("seed", "1"),
        ("save_dir", "\"d\""),
        ("num_epochs", "5"),
        ("eval_freq", "5"),
        ("save_freq", "5"),
        ("num_checkpoint_limit", "5"),
        ("use_lora", "false"),
        ("mixed_precision", "\"bf16\""),
        ("pretrained.model", "\"m\""),
        ("sample.num_steps", "9"),
        ("sample.eval_num_steps", "9"),
        ("sample.noise_level", "0.5"),
        ("sample.sde_type", "\"cps\""),
        ("sample.guidance_scale", "4.5"),
        ("sample.num_image_per_prompt", "16"),
        ("sample.train_batch_size", "16"),
        ("sample.global_std", "true"),
        ("train.learning_rate", "1e-3"),
        ("train.adam_beta1", "0.8"),
        ("train.adam_beta2", "0.9"),
        ("train.adam_weight_decay", "0.1"),
        ("train.adam_epsilon", "1e-7"),
        ("train.max_grad_norm", "2"),
        ("train.gradient_accumulation_steps", "2"),
        ("train.num_inner_epochs", "2"),
        ("train.adv_clip_max", "4"),
        ("train.clip_range", "0.1"),
        ("train.beta", "0"),
        ("train.ema", "true"),
    ];
    for (key, value) in old {
        let text = format!("{key} = {value}\n");
        let (migrated, changes) = migrate(&text).expect("migrates");
        parse_str(&migrated).unwrap_or_else(|report| panic!("{text}{migrated}{report}"));
        assert!(
            changes.iter().all(|change| !change.needs_attention),
            "{changes:?}"
        );
        assert!(changes.iter().any(|change| change.from == key), "{changes:?}");
    }
    let all: String = old
        .iter()
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    let (migrated, _) = migrate(&all).expect("migrates");
    parse_str(&migrated).unwrap_or_else(|report| panic!("{migrated}{report}"));
}

#[test]
fn a_config_of_this_version_comes_back_byte_for_byte() {
    let text = "# hello\nconfig_version=1 # v\n[run]\n  seed =   3\n";
    assert_eq!(migrate(text).expect("current"), (text.to_owned(), Vec::new()));
    let (migrated, _) = migrate(OLD).expect("migrates");
    assert_eq!(
        migrate(&migrated).expect("current"),
        (migrated.clone(), Vec::new()),
        "not idempotent"
    );
}

#[test]
fn inline_tables_and_dotted_keys_are_migrated_too() {
    let text =
        "config_version = 0\ntrain = { learning_rate = 1e-3, max_grad_norm = 2.0 }\nsample.num_steps = 6\n";
    let (migrated, _) = migrate(text).expect("migrates");
    let config = parse_str(&migrated)
        .unwrap_or_else(|report| panic!("{report}\n{migrated}"))
        .config;
    assert_eq!(
        (
            config.optimizer.learning_rate,
            config.optimizer.max_grad_norm,
            config.scheduler.steps
        ),
        (1e-3, 2.0, 6)
    );
    assert!(!migrated.contains("train"), "{migrated}");
}

#[test]
fn what_cannot_be_translated_is_left_and_reported() {
    let text = "mixed_precision = \"fp16\"\nnum_epochs = 3\n[run]\nsteps = 5\n";
    let (migrated, changes) = migrate(text).expect("migrates");
    assert!(
        migrated.contains("mixed_precision = \"fp16\"") && migrated.contains("num_epochs = 3"),
        "{migrated}"
    );
    let left: Vec<_> = changes
        .iter()
        .filter(|one| one.needs_attention)
        .map(|one| one.from.as_str())
        .collect();
    assert_eq!(left, ["num_epochs", "mixed_precision"]);
}

#[test]
fn keys_that_version_1_shares_stay_where_they_are() {
    let text = "seed = 1\n[logging]\n# quiet\nevery = 5\n";
    let (migrated, _) = migrate(text).expect("migrates");
    assert!(migrated.contains("[logging]\n# quiet\nevery = 5\n"), "{migrated}");
    assert_eq!(parse_str(&migrated).expect("valid").config.logging.every, 5);
}

#[test]
fn newer_versions_and_broken_files_are_errors() {
    for (text, code) in [
        ("config_version = 9\n", codes::CONFIG_VERSION),
        ("config_version = \"1\"\n", codes::CONFIG_VERSION),
        ("a = \n", codes::SYNTAX),
    ] {
        assert_eq!(
            migrate(text).expect_err("an error").diagnostics[0].code,
            code,
            "{text}"
        );
    }
}

proptest::proptest! {
    #[test]
    fn migration_never_panics_and_what_it_writes_is_toml(text in "[a-z_.\\[\\]={}\"#\n 0-9]{0,120}") {
        if let Ok((migrated, _)) = migrate(&text) {
            proptest::prop_assert!(migrated.parse::<toml::Table>().is_ok(), "{migrated}");
        }
    }

    #[test]
    fn any_mixture_of_old_keys_migrates_to_toml(
        lines in proptest::collection::vec(proptest::sample::select(OLD.lines().collect::<Vec<_>>()), 0..30)
    ) {
        let text = lines.join("\n");
        if let Ok((migrated, _)) = migrate(&text) {
            proptest::prop_assert!(migrated.parse::<toml::Table>().is_ok(), "{migrated}");
            let (again, changes) = migrate(&migrated).expect("current");
            proptest::prop_assert_eq!(again, migrated);
            proptest::prop_assert!(changes.is_empty());
        }
    }
}
