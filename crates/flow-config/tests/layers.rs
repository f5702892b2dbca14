//! Defaults, presets, files and overrides: which one wins, and what is said of where a value is from.

use flow_config::{DeviceKind, EmaSchedule, Source, WeightsLayer, Window, inspect_over, presets};
use test_catalog::{parse_named, parse_str};

fn resolve(text: &str, overrides: &[&str]) -> flow_config::Resolved {
    let overrides: Vec<String> = overrides.iter().map(|one| (*one).to_owned()).collect();
    parse_named("a.toml", text, &overrides).unwrap_or_else(|report| panic!("{report}"))
}

#[test]
fn a_file_with_a_version_alone_is_the_default_config() {
    let resolved = resolve("config_version = 1", &[]);
    assert_eq!(resolved.config, test_catalog::defaults());
    let given: Vec<_> = resolved
        .sources
        .iter()
        .filter(|(_, source)| **source != Source::Default)
        .collect();
    assert_eq!(given.len(), 1, "{given:?}");
    assert_eq!(resolved.sources["config_version"].to_string(), "a.toml:1:18");
    assert!(resolved.report.diagnostics.is_empty());
}

#[test]
fn overrides_win_over_the_file_which_wins_over_the_preset_which_wins_over_defaults() {
    let text = "config_version = 1\npreset = \"flow-factory-grpo\"\n[sampling]\ngroup_size = 16\nmicro_batch = 8\n\
                [optimizer]\ngradient_accumulation = 0\n";
    let resolved = resolve(text, &["sampling.micro_batch=4"]);
    let config = &resolved.config;
    assert_eq!(
        (
            config.sampling.group_size,
            config.sampling.prompts_per_step,
            config.sampling.micro_batch
        ),
        (16, 48, 4)
    );
    let source = |key: &str| resolved.sources[key].clone();
    assert_eq!(
        source("sampling.group_size"),
        Source::File {
            path: "a.toml".into(),
            line: 4,
            column: 14
        }
    );
    assert_eq!(
        source("sampling.prompts_per_step"),
        Source::Preset {
            name: "flow-factory-grpo".into()
        }
    );
    assert_eq!(
        source("sampling.micro_batch"),
        Source::Override {
            index: 0,
            text: "sampling.micro_batch=4".into()
        }
    );
    assert_eq!(source("optimizer.epsilon"), Source::Default);
    assert_eq!(
        source("scheduler.window.from"),
        Source::Preset {
            name: "flow-factory-grpo".into()
        }
    );
}

#[test]
fn what_weights_say_wins_over_defaults_alone_and_is_named_as_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.toml");
    std::fs::write(&path, "config_version = 1\n[model.dit]\nheads = 2\nlayers = 5\n").unwrap();
    let weights = WeightsLayer {
        path: "weights/config.json".into(),
        text: "model.dit.heads = 8\nmodel.dit.patch = 4\nmodel.dit.layers = 6\nmodel.dit.conditioning.kind = \"class\"\n\
               model.dit.conditioning.classes = 7\n"
            .into(),
    };
    let overrides = ["model.dit.layers=3".to_owned()];
    let resolved = inspect_over(&test_catalog::CATALOG, &path, &overrides, &[weights])
        .partial
        .unwrap();
    let dit = resolved.config.model.dimensions();
    assert_eq!([&dit["heads"], &dit["patch"], &dit["layers"]], [2, 4, 3]);
    assert_eq!(
        dit["conditioning"],
        serde_json::json!({ "kind": "class", "classes": 7 })
    );
    let weights = Source::Weights {
        path: "weights/config.json".into(),
    };
    assert_eq!(resolved.sources["model.dit.patch"], weights);
    assert_eq!(resolved.sources["model.dit.conditioning.classes"], weights);
    assert_eq!(resolved.sources["model.dit.hidden"], Source::Default);
}

#[test]
fn a_preset_can_be_chosen_by_an_override() {
    let resolved = resolve("config_version = 1", &["preset=shapes-dit"]);
    assert_eq!(resolved.config.model.dimensions()["latent_channels"], 3);
}

#[test]
fn every_preset_is_a_valid_config_and_says_what_it_is_for() {
    for preset in presets() {
        parse_named(preset.name, preset.text, &[])
            .unwrap_or_else(|report| panic!("{}: {report}", preset.name));
        resolve(&format!("config_version = 1\npreset = {:?}", preset.name), &[]);
        assert!(
            preset.description().len() > 20,
            "{} has no description",
            preset.name
        );
    }
    assert!(presets().is_sorted_by_key(|preset| preset.name));
}

#[test]
fn another_variant_replaces_the_table_below_and_the_same_variant_is_merged_with_it() {
    let base = "config_version = 1\npreset = \"flow-factory-nft\"\n";
    let merged = resolve(
        &format!("{base}[ema.schedule]\nkind = \"piecewise-linear\"\nrate = 0.5\n"),
        &[],
    );
    match merged.config.ema.schedule {
        EmaSchedule::PiecewiseLinear(schedule) => assert_eq!((schedule.rate, schedule.maximum), (0.5, 0.5)),
        other => panic!("{other:?}"),
    }
    let replaced = resolve(&format!("{base}[ema.schedule]\nkind = \"constant\"\n"), &[]);
    assert!(matches!(replaced.config.ema.schedule, EmaSchedule::Constant(_)));
    assert_eq!(replaced.sources["ema.schedule.decay"], Source::Default);
}

#[test]
fn a_kind_that_chooses_no_variant_keeps_the_rest_of_its_table() {
    let resolved = resolve(
        "config_version = 1\n[device]\nkind = \"cpu\"\nthreads = 3\n",
        &["device.kind=cuda"],
    );
    assert_eq!(
        (resolved.config.device.kind, resolved.config.device.threads),
        (DeviceKind::Cuda, 3)
    );
}

#[test]
fn the_order_of_overrides_does_not_matter_where_one_of_them_chooses_a_variant() {
    for overrides in [
        ["algorithm.beta=2", "algorithm.kind=nft"],
        ["algorithm.kind=nft", "algorithm.beta=2"],
    ] {
        let algorithm = resolve("config_version = 1", &overrides).config.algorithm;
        assert_eq!(algorithm.kind, "nft");
        assert_eq!(algorithm.params["beta"], 2.0);
    }
}

#[test]
fn the_last_of_two_overrides_of_one_key_wins() {
    let resolved = resolve("config_version = 1", &["run.seed=1", "run.seed=2"]);
    assert_eq!(resolved.config.run.seed, 2);
    assert_eq!(
        resolved.sources["run.seed"],
        Source::Override {
            index: 1,
            text: "run.seed=2".into()
        }
    );
}

#[test]
fn override_values_are_toml_or_else_texts() {
    let resolved = resolve(
        "config_version = 1",
        &[
            "run.name=test",
            "run.dir = a/b=c ",
            "optimizer.betas=[0.8, 0.9]",
            "optimizer.betas.1=0.95",
            "scheduler.window={kind=\"list\",steps=[0,2]}",
            "logging.tensorboard=false",
            "runtime.options.\"a.b\"=1",
            "model.weights='x=y.safetensors'",
        ],
    );
    let config = &resolved.config;
    assert_eq!(config.run.name, "test");
    assert_eq!(config.run.dir.to_str(), Some("a/b=c"));
    assert_eq!(config.optimizer.betas, [0.8, 0.95]);
    assert!(matches!(
        resolved.sources["optimizer.betas"],
        Source::Override { index: 3, .. }
    ));
    assert!(matches!(&config.scheduler.window, Window::List(list) if list.steps == [0, 2]));
    assert!(!config.logging.tensorboard);
    assert_eq!(config.runtime.options["a.b"], 1);
    assert_eq!(
        config.model.weights.as_deref().and_then(|path| path.to_str()),
        Some("x=y.safetensors")
    );
}

#[test]
fn overrides_reach_into_lists_and_add_to_their_end() {
    let text = "config_version = 1\n[[rewards]]\nkind = \"jpeg-compressibility\"\n";
    let resolved = resolve(
        text,
        &[
            "rewards.0.weight=2.5",
            "rewards.1.kind=target-colour",
            "rewards.1.rgb=[1, 0, 0]",
            "rewards.0.quality=80",
        ],
    );
    assert_eq!(resolved.config.rewards.len(), 2);
    assert_eq!(resolved.config.rewards[0].weight, 2.5);
    assert_eq!(resolved.config.rewards[1].name(), "target-colour");
    assert!(matches!(
        resolved.sources["rewards.0.kind"],
        Source::File { line: 3, .. }
    ));
    assert!(matches!(
        resolved.sources["rewards.1.rgb"],
        Source::Override { index: 2, .. }
    ));
    assert_eq!(resolved.sources["rewards.1.weight"], Source::Default);
}

#[test]
fn a_single_accelerator_table_stands_for_a_list_of_one() {
    let text = "config_version = 1\n[acceleration]\nshared = { name = \"fused_kernels\", params = { mode = \"full\" } }\n\
                [[acceleration.rollout]]\nname = \"feature_cache\"\n";
    let resolved = resolve(text, &[]);
    assert_eq!(resolved.config.acceleration.shared[0].name, "fused_kernels");
    assert_eq!(resolved.config.acceleration.shared[0].params["mode"], "full");
    assert_eq!(resolved.config.acceleration.rollout.len(), 1);
    assert!(matches!(
        resolved.sources["acceleration.shared.0.params.mode"],
        Source::File { line: 3, .. }
    ));
}

#[test]
fn whole_floats_are_integers_and_integers_are_floats() {
    let resolved = resolve(
        "config_version = 1\n[run]\nsteps = 1e3\n[optimizer]\nmax_grad_norm = 2\n",
        &[],
    );
    assert_eq!(resolved.config.run.steps, 1000);
    assert_eq!(resolved.config.optimizer.max_grad_norm, 2.0);
}

#[test]
fn the_largest_seed_survives() {
    let resolved = resolve("config_version = 1\n[run]\nseed = 9223372036854775807\n", &[]);
    assert_eq!(resolved.config.run.seed, i64::MAX as u64);
}

#[test]
fn a_resolved_config_written_out_and_read_again_is_the_same() {
    let text = "config_version = 1\npreset = \"flow-factory-nft\"\n[[rewards]]\nkind = \"jpeg-compressibility\"\n\
                name = \"small\"\n[acceleration]\nrollout = { name = \"x\", params = { a = [1, { b = 2.5 }] } }\n";
    let config = resolve(text, &[]).config;
    let written = toml::to_string(&config).expect("a config is TOML");
    assert_eq!(
        parse_str(&written).expect("what was written can be read").config,
        config
    );
}

#[test]
fn the_rendered_config_names_the_source_of_every_value() {
    let resolved = resolve("config_version = 1\n[run]\nname = \"n\"\n", &["run.seed=7"]);
    let text = resolved.render();
    assert_eq!(text.lines().count(), resolved.sources.len());
    let line = |start: &str| {
        text.lines()
            .find(|line| line.starts_with(start))
            .expect("a line")
            .to_owned()
    };
    assert!(line("run.name").ends_with("# a.toml:3:8"));
    assert!(line("run.seed").ends_with("# --set run.seed=7"));
    assert!(line("run.steps").ends_with("# default"));
}

#[test]
fn a_config_for_training_needs_rewards_and_weights() {
    let codes = |text: &str| -> Vec<&str> {
        resolve(text, &[])
            .check_training()
            .diagnostics
            .iter()
            .map(|one| one.code)
            .collect()
    };
    assert_eq!(
        codes("config_version = 1"),
        ["rule::no-weights", "rule::no-reward"]
    );
    let text = "config_version = 1\n[model]\nweights = \"w.safetensors\"\n[[rewards]]\nkind = \"jpeg-compressibility\"\n";
    assert!(codes(text).is_empty());
    // A weight of 0 is no reward to learn from, unless there is another one.
    let without = format!("{text}weight = 0.0\n");
    assert_eq!(codes(&without), ["rule::no-reward"]);
    let with =
        format!("{without}[[rewards]]\nkind = \"target-colour\"\nrgb = [1.0, 0.0, 0.0]\nweight = -0.5\n");
    assert!(codes(&with).is_empty());
}

#[test]
fn a_file_is_read_from_disk_and_named_in_errors() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("c.toml");
    std::fs::write(&path, "config_version = 1\n[run]\nseed = 3\n").expect("written");
    assert_eq!(test_catalog::load(&path, &[]).expect("valid").config.run.seed, 3);
    assert_eq!(flow_config::base_dir(&path), directory.path());
    std::fs::write(&path, [0x61, 0xff]).expect("written");
    assert_eq!(
        test_catalog::load(&path, &[]).expect_err("not UTF-8").diagnostics[0].code,
        "unreadable"
    );
    let missing = test_catalog::load(directory.path().join("none.toml"), &[]).expect_err("not there");
    assert!(missing.to_string().contains("none.toml"), "{missing}");
    let folder = test_catalog::load(directory.path(), &[]).expect_err("a folder");
    assert!(folder.to_string().contains("it is a folder"), "{folder}");
    // As long as a device without an end, of which no more than needed is read.
    let long = std::fs::File::create(&path).expect("made");
    long.set_len(1 << 30).expect("a file with a hole");
    let long = test_catalog::load(&path, &[]).expect_err("too long");
    assert!(long.to_string().contains("64 MiB"), "{long}");
}

#[test]
fn the_committed_configs_are_valid_and_fit_for_training() {
    let mut count = 0;
    for entry in std::fs::read_dir("../../configs").expect("configs") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let resolved = test_catalog::load(&path, &[]).unwrap_or_else(|report| panic!("{report}"));
            assert!(resolved.report.diagnostics.is_empty(), "{}", resolved.report);
            assert!(
                resolved.check_training().diagnostics.is_empty(),
                "{}",
                path.display()
            );
            count += 1;
        }
    }
    assert!(count >= 3, "{count}");
}
