//! Rules on several keys: each is broken once, and held once where it is easily broken by mistake.

mod rollouts;

use flow_config::Severity;
use test_catalog::parse_named;

/// Codes, paths and severities of what is said of a text.
fn found(text: &str) -> Vec<(&'static str, String, Severity)> {
    let text = format!("config_version = 1\n{text}\n");
    let report = match parse_named("a.toml", &text, &[]) {
        Ok(resolved) => resolved.report,
        Err(report) => report,
    };
    for diagnostic in &report.diagnostics {
        assert!(diagnostic.help.is_some(), "{report}");
        assert!(
            diagnostic.span.as_ref().is_some_and(|span| !span.is_empty()),
            "{report}"
        );
    }
    report
        .diagnostics
        .into_iter()
        .map(|one| (one.code, one.path, one.severity))
        .collect()
}

const SHAPES: &str = "preset = \"shapes-dit\"\n";

#[test]
fn each_rule_is_reported_at_the_key_to_mend() {
    use Severity::{Error, Warning};
    let cases: &[(&str, &str, &str, Severity)] = &[
        ("[run]\nname = \"../x\"", "rule::run-name", "run.name", Error),
        ("[run]\nname = \"..\"", "rule::run-name", "run.name", Error),
        ("[run]\nname = \".a\"", "rule::run-name", "run.name", Error),
        ("[run]\nname = \"-a\"", "rule::run-name", "run.name", Error),
        ("[run]\nname = \"~\"", "rule::run-name", "run.name", Error),
        ("[run]\nname = \"a:b\"", "rule::run-name", "run.name", Error),
        ("[run]\nname = \"a\\tb\"", "rule::run-name", "run.name", Error),
        (
            "[evaluation]\nprompts = 100\n[evaluation.grid]\nrows = 100\nscale = 64",
            "rule::grid",
            "evaluation.grid.rows",
            Error,
        ),
        (
            "[[rewards]]\nkind = \"jpeg-compressibility\"\nname = \"group_std\"",
            "rule::reward-name",
            "rewards.0.name",
            Error,
        ),
        (
            "[[rewards]]\nkind = \"jpeg-compressibility\"\nname = \"a\"\n[[rewards]]\nkind = \"jpeg-compressibility\"\nname = \"a/std\"",
            "rule::reward-name",
            "rewards.1.name",
            Error,
        ),
        (
            "[algorithm]\nkind = \"gardo\"\nkl_beta = 0",
            "rule::reward-role",
            "algorithm.kind",
            Error,
        ),
        (
            "[algorithm]\nkind = \"gardo\"\ndiversity = \"none\"",
            "rule::reward-role",
            "algorithm.kind",
            Error,
        ),
        (
            "[algorithm]\nkind = \"gardo\"\ndiversity = \"none\"\njudges = [\"small\"]",
            "rule::reward-role",
            "algorithm.judges.0",
            Error,
        ),
        (
            "[algorithm]\nkind = \"gardo\"\nkl_beta = 0\n[[rewards]]\nkind = \"diversity-in-group\"",
            "rule::reward-role",
            "rewards.0",
            Error,
        ),
        (
            "[algorithm]\nkind = \"gardo\"\njudges = [\"target-colour\"]\ngate = { share_range = [0.3, 0.1] }\n[[rewards]]\nkind = \"target-colour\"\nrgb = [1, 1, 1]\n[[rewards]]\nkind = \"diversity-in-group\"\nweight = 0",
            "rule::kl",
            "algorithm.gate.share_range",
            Error,
        ),
        (
            "[scheduler]\nsteps = 8\n[scheduler.after_window]\nkind = \"dpm-solver\"",
            "rule::unused",
            "scheduler.after_window.kind",
            Warning,
        ),
        ("[device]\nindex = 1", "rule::device-index", "device.index", Error),
        (
            "[model.dit]\nhidden = 98\nheads = 7",
            "rule::model-shape",
            "model.dit.hidden",
            Error,
        ),
        (
            "[model.dit]\nheads = 5",
            "rule::model-shape",
            "model.dit.heads",
            Error,
        ),
        (
            "[model.dit.moe]\nexperts = 2\ntop_k = 3",
            "rule::model-shape",
            "model.dit.moe.top_k",
            Error,
        ),
        (
            "[model.dit.moe]\ninner = 32",
            "rule::unused",
            "model.dit.moe.inner",
            Warning,
        ),
        // The default, but who writes it without a word on what is trained means adapters.
        ("[lora]\nrank = 8", "rule::unused", "lora.rank", Warning),
        (
            "[pretrain]\nbalance_weight = 0.1",
            "rule::unused",
            "pretrain.balance_weight",
            Warning,
        ),
        (
            "[model.wan]\nnum_layers = 2",
            "rule::other-architecture",
            "model.wan.num_layers",
            Error,
        ),
        (
            "[model.dit]\nposition = \"rope\"\nhidden = 72",
            "rule::model-shape",
            "model.dit.hidden",
            Error,
        ),
        (
            "[model.dit]\nlatent_channels = 4",
            "rule::image-shape",
            "model.dit.latent_channels",
            Error,
        ),
        (
            "[model.dit]\nheight = 16\n[data]\nkind = \"digits\"\nimage_size = 16",
            "rule::image-shape",
            "data.image_size",
            Error,
        ),
        (
            "[model.dit.conditioning]\nkind = \"class\"",
            "rule::conditioning",
            "model.dit.conditioning.kind",
            Error,
        ),
        (
            "[model.dit]\nconditioning = { kind = \"tokens\", vocabulary = 14 }",
            "rule::conditioning",
            "model.dit.conditioning.vocabulary",
            Error,
        ),
        (
            "[model.dit]\nconditioning = { kind = \"tokens\", max_tokens = 3 }",
            "rule::conditioning",
            "model.dit.conditioning.max_tokens",
            Error,
        ),
        (
            "[model.mmdit]\nnum_layers = 2",
            "rule::other-architecture",
            "model.mmdit.num_layers",
            Error,
        ),
        ("[lora]\nrank = 4", "rule::unused", "lora.rank", Warning),
        (
            "[text]\nkind = \"words\"\ntokens = 20",
            "rule::unused",
            "text.tokens",
            Warning,
        ),
        ("[pretrain]\nsteps = 50", "rule::warmup", "pretrain.steps", Error),
        (
            "[optimizer]\nwarmup_steps = 9\nschedule = { kind = \"linear\", steps = 9 }",
            "rule::warmup",
            "optimizer.schedule.steps",
            Error,
        ),
        (
            "[run]\nsteps = 10\n[optimizer]\nschedule = { kind = \"cosine\", steps = 9 }",
            "rule::schedule-end",
            "optimizer.schedule.steps",
            Warning,
        ),
        // Three batches of four images, each twice: six optimizer steps to an iteration.
        (
            "[run]\nsteps = 10\n[algorithm]\nkind = \"nft\"\ninner_epochs = 2\n[scheduler]\ndynamics = \"ode\"\n[sampling]\nprompts_per_step = 6\ngroup_size = 2\nmicro_batch = 4\n\
             [optimizer]\ngradient_accumulation = 1\nschedule = { kind = \"linear\", steps = 59 }",
            "rule::schedule-end",
            "optimizer.schedule.steps",
            Warning,
        ),
        (
            "[[rewards]]\nkind = \"shapes-rules\"",
            "rule::reward-data",
            "rewards.0.kind",
            Error,
        ),
        (
            "[[rewards]]\nkind = \"jpeg-compressibility\"\n[[rewards]]\nkind = \"jpeg-compressibility\"\nweight = 2",
            "rule::reward-name",
            "rewards.1.kind",
            Error,
        ),
        (
            "[[eval_rewards]]\nkind = \"jpeg-compressibility\"\nname = \"target-colour\"\n[[eval_rewards]]\n\
             kind = \"target-colour\"\nrgb = [0, 0, 0]",
            "rule::reward-name",
            "eval_rewards.1.kind",
            Error,
        ),
        (
            "[scheduler]\nnoise_level = [1, 1]",
            "rule::noise-level",
            "scheduler.noise_level",
            Error,
        ),
        (
            "[scheduler]\ndynamics = \"cps\"\nnoise_level = 1.5",
            "rule::noise-level",
            "scheduler.noise_level",
            Error,
        ),
        (
            "[scheduler.window]\nkind = \"list\"\nsteps = [0, 10]",
            "rule::window",
            "scheduler.window.steps.1",
            Error,
        ),
        (
            "[scheduler]\ndynamics = \"cps\"\n[scheduler.window]\nkind = \"list\"\nsteps = [9]",
            "rule::window",
            "scheduler.window.steps.0",
            Error,
        ),
        (
            "[scheduler.window]\nkind = \"random\"\nfrom = [12]",
            "rule::window",
            "scheduler.window.from.0",
            Error,
        ),
        (
            "[scheduler.window]\nkind = \"random\"\nfrom = [1, 2]\ncount = 3",
            "rule::window",
            "scheduler.window.count",
            Error,
        ),
        (
            "[scheduler.window]\nkind = \"random\"\ncount = 10",
            "rule::window",
            "scheduler.window.count",
            Error,
        ),
        (
            "[scheduler.window]\nkind = \"sliding\"\nsize = 10",
            "rule::window",
            "scheduler.window.size",
            Error,
        ),
        (
            "[scheduler.window]\nkind = \"contiguous\"\nsize = 6",
            "rule::window",
            "scheduler.window.size",
            Error,
        ),
        (
            "[scheduler.window]\nkind = \"contiguous\"\nrange = [4, 12]",
            "rule::window",
            "scheduler.window.range",
            Error,
        ),
        ("[scheduler]\nsteps = 1", "rule::window", "scheduler.steps", Error),
        (
            "[scheduler]\ndynamics = \"ode\"",
            "rule::no-log-probability",
            "scheduler.dynamics",
            Error,
        ),
        (
            "[scheduler]\nnoise_level = 0",
            "rule::no-log-probability",
            "scheduler.noise_level",
            Error,
        ),
        (
            "[scheduler.shift]\nkind = \"dynamic\"\nbase_tokens = 5000",
            "rule::shift",
            "scheduler.shift.base_tokens",
            Error,
        ),
        (
            "[sampling]\nmicro_batch = 48",
            "rule::batch-geometry",
            "sampling.micro_batch",
            Error,
        ),
        (
            "[sampling]\ngroup_size = 1\nmicro_batch = 8",
            "rule::group-size",
            "sampling.group_size",
            Error,
        ),
        (
            "[optimizer]\ngradient_accumulation = 3",
            "rule::accumulation",
            "optimizer.gradient_accumulation",
            Error,
        ),
        (
            "[algorithm]\nkind = \"grpo\"\nclip_range = [0.1, 0.2]",
            "rule::clip-range",
            "algorithm.clip_range",
            Error,
        ),
        (
            "[algorithm]\nkind = \"grpo-guard\"\nclip_range = [-0.2, -0.1]",
            "rule::clip-range",
            "algorithm.clip_range",
            Error,
        ),
        (
            "[algorithm]\nkind = \"grpo\"\nkl = { beta = 0.1 }",
            "rule::kl",
            "algorithm.kl.beta",
            Error,
        ),
        (
            "[algorithm]\nkind = \"grpo\"\nkl = { kind = \"mean\" }",
            "rule::kl",
            "algorithm.kl.kind",
            Error,
        ),
        (
            "[algorithm]\nkind = \"grpo\"\nkl = { kind = \"mean\", beta = 1, reference = \"lora-off\" }",
            "rule::reference",
            "algorithm.kl.reference",
            Error,
        ),
        (
            "[model]\nadapter = \"a.safetensors\"\nfinetune = \"full\"",
            "rule::adapter",
            "model.adapter",
            Error,
        ),
        (
            "[optimizer]\nlearning_rate = 1e-42",
            "rule::precision",
            "optimizer.learning_rate",
            Error,
        ),
        (
            "[scheduler]\nnoise_level = 1e-10",
            "rule::precision",
            "scheduler.noise_level",
            Error,
        ),
        (
            "[sampling]\nguidance_scale = 0.99999999",
            "rule::precision",
            "sampling.guidance_scale",
            Error,
        ),
        (
            "[algorithm]\nkind = \"nft\"\nkl_beta = 1e-50",
            "rule::precision",
            "algorithm.kl_beta",
            Error,
        ),
        (
            "[algorithm]\nkind = \"grpo\"\nclip_range = [-1e-9, 1e-4]",
            "rule::precision",
            "algorithm.clip_range",
            Error,
        ),
        (
            "[model]\nfinetune = \"lora\"\n[lora]\nalpha = 1e300",
            "rule::precision",
            "lora.alpha",
            Error,
        ),
        (
            "[algorithm]\nkind = \"nft\"\nkl_beta = 1\nreference = \"lora-off\"",
            "rule::reference",
            "algorithm.reference",
            Error,
        ),
        (
            "[algorithm]\nkind = \"nft\"\ntrain_timesteps = { range = [0.5, 0.5] }",
            "rule::train-timesteps",
            "algorithm.train_timesteps.range",
            Error,
        ),
        (
            "[algorithm]\nkind = \"nft\"\ntrain_timesteps = { count = 11 }",
            "rule::train-timesteps",
            "algorithm.train_timesteps.count",
            Error,
        ),
        (
            "[evaluation]\nweights = \"ema\"",
            "rule::ema",
            "evaluation.weights",
            Error,
        ),
        (
            "[ema]\nupdate_every = 3",
            "rule::unused",
            "ema.update_every",
            Warning,
        ),
        (
            "[evaluation.grid]\ncolumns = 9",
            "rule::unused",
            "evaluation.grid.columns",
            Warning,
        ),
    ];
    for (text, code, path, severity) in cases {
        assert_eq!(found(text), [(*code, (*path).to_owned(), *severity)], "{text}");
    }
}

#[test]
fn rules_of_shapes_and_of_the_mmdit_are_reported_at_the_key_to_mend() {
    use Severity::{Error, Warning};
    let mmdit = "[data]\nkind = \"shapes\"\nimage_size = 32\n[model]\narchitecture = \"mmdit\"\n[model.mmdit]\n\
                 sample_size = 32\nin_channels = 3\nout_channels = 3\n";
    let cases: Vec<(String, &str, &str, Severity)> = vec![
        (
            format!("{SHAPES}[model.dit.conditioning]\nkind = \"class\""),
            "rule::conditioning",
            "model.dit.conditioning.kind",
            Error,
        ),
        (
            format!("{SHAPES}[[rewards]]\nkind = \"digit-classifier\"\nweights = \"w\""),
            "rule::reward-data",
            "rewards.0.kind",
            Error,
        ),
        (
            format!("{mmdit}patch_size = 5"),
            "rule::model-shape",
            "model.mmdit.sample_size",
            Error,
        ),
        (
            format!("{mmdit}num_attention_heads = 2"),
            "rule::model-shape",
            "model.mmdit.num_attention_heads",
            Error,
        ),
        (
            format!("{mmdit}num_layers = 12"),
            "rule::model-shape",
            "model.mmdit.num_layers",
            Error,
        ),
        (
            format!("{mmdit}pos_embed_max_size = 8"),
            "rule::model-shape",
            "model.mmdit.sample_size",
            Error,
        ),
        (
            format!("{mmdit}[text]\nkind = \"words\"\ntokens = 3"),
            "rule::conditioning",
            "text.tokens",
            Error,
        ),
        (
            mmdit.replace("out_channels = 3", ""),
            "rule::model-shape",
            "model.mmdit.in_channels",
            Error,
        ),
        (
            mmdit.replace("_channels = 3", "_channels = 4"),
            "rule::image-shape",
            "model.mmdit.sample_size",
            Warning,
        ),
    ];
    for (text, code, path, severity) in cases {
        assert_eq!(found(&text), [(code, path.to_owned(), severity)], "{text}");
    }
    assert!(found(mmdit).is_empty());
}

#[test]
fn what_is_right_is_not_complained_about() {
    for text in [
        "[scheduler]\ndynamics = \"ode\"\n[algorithm]\nkind = \"nft\"",
        "[scheduler.window]\nkind = \"list\"\nsteps = [0, 9]",
        "[scheduler]\nwindow = { kind = \"sliding\" }\nafter_window = { kind = \"dpm-solver\" }",
        "[algorithm]\nkind = \"gardo\"\njudges = [\"target-colour\"]\n[[rewards]]\nkind = \"target-colour\"\nrgb = [1, 1, 1]\n[[rewards]]\nkind = \"diversity-in-group\"\nweight = 0",
        "[scheduler]\nsteps = 3\nnoise_level = [0.5, 0.7, 0.0]",
        "[scheduler]\nsteps = 3\nnoise_level = [0.0, 0.7, 0.0]\n[scheduler.window]\nkind = \"list\"\nsteps = [1]",
        "[sampling]\ngroup_size = 3\nprompts_per_step = 7\nmicro_batch = 21",
        "[optimizer]\ngradient_accumulation = 4",
        "[exploration]\ncandidates = 20\nsteps = 4\nkeep = \"spread\"",
        "[exploration]\ncandidates = 64\nsteps = 10\ndynamics = \"same\"\naccelerators = { name = \"feature_cache\" }",
        "[model]\nfinetune = \"lora\"\n[lora]\nrank = 4\n[algorithm]\nkind = \"grpo\"\nkl = { kind = \"velocity\", beta = 0.1, reference = \"lora-off\" }",
        "[device]\nkind = \"cuda\"\nindex = 3",
        "[ema]\nenabled = false\nupdate_every = 1",
        "[model.mmdit]\nnum_layers = 24",
        "[model.dit]\nposition = \"rope\"\nhidden = 64",
    ] {
        assert!(found(text).is_empty(), "{text}: {:?}", found(text));
    }
}

#[test]
fn a_rule_broken_by_an_override_points_at_the_override() {
    let overrides = ["sampling.micro_batch=48".to_owned()];
    let report =
        parse_named("a.toml", "config_version = 1\n", &overrides).expect_err("48 does not divide 128");
    assert_eq!(report.diagnostics[0].file.as_deref(), Some("--set"));
    assert_eq!(
        report.diagnostics[0].help.as_deref(),
        Some("the next lower batch that divides 128 is 32")
    );
}

#[test]
fn each_axis_that_a_patch_does_not_divide_is_named() {
    let text = "config_version = 1\n[model.dit]\npatch = 3\n";
    let report = parse_named("a.toml", text, &[]).expect_err("3 does not divide 8");
    let messages: Vec<_> = report
        .diagnostics
        .iter()
        .map(|one| one.message.as_str())
        .collect();
    assert_eq!(
        messages,
        [
            "`model.dit.height` (8) must be a multiple of `model.dit.patch` (3)",
            "`model.dit.width` (8) must be a multiple of `model.dit.patch` (3)",
        ]
    );
    assert_eq!(
        report.diagnostics[0].help.as_deref(),
        Some("nearest that would do for `model.dit.height`: 6 or 9")
    );
}

#[test]
fn a_videos_latent_is_whole_patches_within_the_positions() {
    let sides = |text: &str| {
        let text = format!("[model]\narchitecture = \"wan\"\n[model.wan]\n{text}");
        // There is no autoencoder, which is told too.
        let problems = found(&text).into_iter();
        problems
            .filter(|(code, _, _)| *code == "rule::model-shape")
            .map(|(_, path, _)| path)
            .collect::<Vec<_>>()
    };
    assert_eq!(sides("latent_width = 105"), ["model.wan.latent_width"]);
    assert_eq!(sides("latent_height = 2050"), ["model.wan.latent_height"]);
    assert_eq!(sides("latent_height = 2048"), Vec::<String>::new());
}

#[test]
fn a_rate_that_falls_until_the_last_optimizer_step_is_no_fault() {
    let run = |steps: usize, to: &str| {
        found(&format!(
            "[run]\nsteps = 10\n[sampling]\nprompts_per_step = 6\ngroup_size = 2\nmicro_batch = 4\n[optimizer]\n\
             gradient_accumulation = 1\nschedule = {{ kind = \"cosine\", steps = {steps}{to} }}"
        ))
    };
    let early = [(
        "rule::schedule-end",
        "optimizer.schedule.steps".to_owned(),
        Severity::Warning,
    )];
    assert_eq!(run(30, ""), []);
    assert_eq!(run(29, ""), early);
    assert_eq!(run(29, ", to = 0.1"), []);
}
