//! A config that the validator passes does not fail afterwards for a reason that the validator could have known.

use flow_config::Resolved;
use flow_core::device::ComputeDevice;
use flow_train::Registries;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::setup::{self, Environment};
use flow_trainer::{TrainError, Trainer};
use flow_validate::{Capabilities, Question, TrainerKind, errors, validate};
use proptest::prelude::*;
use proptest::sample::select;
use std::path::Path;
use test_catalog::parse_named;

/// One of some texts, as TOML.
fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = String> {
    select(texts).prop_map(str::to_owned)
}

/// An entry of `[acceleration]`: mostly one that exists, with parameters that mostly fit.
fn entry() -> impl Strategy<Value = String> {
    let scope = one_of(&[
        "",
        ", scope = \"all_steps\"",
        ", scope = \"outside_sde_window\"",
        ", scope = \"none\"",
    ]);
    // Every policy of a cache, with what each needs and now and then with what is another's.
    let policy = one_of(&[
        "policy = \"auto\", target_error = 0.05",
        "policy = \"db_cache\", threshold = 0.5, front_blocks = 1, back_blocks = 1",
        "policy = \"step_mask\"",
        "policy = \"taylorseer\"",
        "policy = \"taylorseer\", target = \"velocity\", order = 2",
        "policy = \"magcache\", ratios = [1.0, 0.99, 0.98, 0.97]",
        "policy = \"teacache\", coefficients = [1.0, 0.0]",
        "policy = \"teacache\", coefficients = [1.0, 0.0], signal = \"conditioning\"",
        "policy = \"easycache\", threshold = 0.15",
        "policy = \"pyramid\"",
        "policy = \"faster\"",
        "policy = \"faster\", ratios = [1.0]",
    ]);
    let scoped = one_of(&["", ", scope = \"outside_sde_window\""]);
    let any_cache = (policy, scoped).prop_map(|(policy, scope)| {
        format!("{{ name = \"feature_cache\", params = {{ {policy}{scope} }} }}")
    });
    let cache = (scope, select(&[0.0, 0.05, 0.05, 0.3, 9.0, 30.0][..]), 0u32..4).prop_map(|(scope, threshold, warmup)| {
        format!(
            "{{ name = \"feature_cache\", params = {{ policy = \"first_block\", threshold = {threshold}, warmup_steps = \
             {warmup}{scope} }} }}"
        )
    });
    let attention = one_of(&["reference", "reference", "cpu", "flash"]).prop_map(|backend| {
        format!("{{ name = \"attention_backend\", params = {{ backend = \"{backend}\" }} }}")
    });
    let lossless = one_of(&[
        "{ name = \"exact_reuse\" }",
        "{ name = \"exact_reuse\", params = { limit_mib = 1 } }",
        "{ name = \"fused_kernels\", params = { mode = \"regional\" } }",
        "{ name = \"fused_kernels\", params = { mode = \"full\" } }",
        "{ name = \"low_precision\", params = { compute = \"storage\", format = \"int8\" } }",
        "{ name = \"low_precision\", params = { compute = \"storage\", format = \"nf4\" } }",
        "{ name = \"low_precision\", params = { compute = \"fp8\", format = \"fp8\" } }",
        "{ name = \"low_precision\", params = { compute = \"fp8\", format = \"fp8\", data_gradient = \"fp8\" } }",
    ]);
    let other = one_of(&[
        "{ name = \"fusion\" }",
        "{ name = \"graph_capture\" }",
        "{ name = \"feature_cache\" }",
        "{ name = \"cache_dit\" }",
        "{ name = \"ring\" }",
        "{ name = \"attention_backend\", params = { backned = 1 } }",
    ]);
    prop_oneof![2 => cache, 3 => any_cache, 3 => lossless, 3 => attention, 1 => other]
}

/// One of the texts that fit, or now and then one that may not.
fn mostly(right: &'static [&'static str], odd: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop_oneof![12 => one_of(right), 1 => one_of(odd)]
}

/// `[scheduler]`. Which windows and noise levels fit depends on the steps.
fn scheduler() -> impl Strategy<Value = String> {
    let steps = mostly(&["5", "6", "8"], &["1", "2", "3"]);
    let dynamics = mostly(&["flow-sde", "dance-sde", "cps"], &["ode"]);
    let noise = mostly(
        &["0.7", "1.0"],
        &["0.0", "1.5", "[0.5, 0.5, 0.5]", "[0.5, 0.5, 0.0, 0.5, 0.5]"],
    );
    let window = mostly(
        &[
            "{ kind = \"all\" }",
            "{ kind = \"list\", steps = [0] }",
            "{ kind = \"list\", steps = [1, 3] }",
            "{ kind = \"random\", count = 2 }",
            "{ kind = \"random\", count = 1, from = [3, 1] }",
            "{ kind = \"sliding\", size = 2, stride = 9 }",
        ],
        &[
            "{ kind = \"list\", steps = [4, 7] }",
            "{ kind = \"random\", count = 5 }",
            "{ kind = \"sliding\", size = 6 }",
        ],
    );
    let shift = mostly(
        &[
            "{ kind = \"static\", value = 3.0 }",
            "{ kind = \"dynamic\", base_tokens = 4, max_tokens = 9 }",
        ],
        &["{ kind = \"dynamic\", base_tokens = 9, max_tokens = 4 }"],
    );
    (steps, dynamics, noise, window, shift).prop_map(|(steps, dynamics, noise, window, shift)| {
        format!(
            "[scheduler]\nsteps = {steps}\ndynamics = \"{dynamics}\"\nnoise_level = {noise}\nwindow = {window}\nshift = \
             {shift}\n"
        )
    })
}

/// `[algorithm]`.
fn algorithm() -> impl Strategy<Value = String> {
    let kind = mostly(
        &[
            "kind = \"grpo\"",
            "kind = \"grpo\"\nkl = { kind = \"velocity\", beta = 0.1, reference = \"snapshot\" }",
            "kind = \"grpo-guard\"",
            "kind = \"nft\"",
            "kind = \"nft\"\ntrain_timesteps = { strategy = \"discrete\", count = 3 }",
            "kind = \"nft\"\ntrain_timesteps = { strategy = \"logit-normal\", count = 30 }",
            "kind = \"nft\"\ntrain_timesteps = { strategy = \"discrete\", count = 3, range = [0.4, 0.6] }",
            "kind = \"nft\"\ntrain_timesteps = { strategy = \"discrete-without-init\", count = 2, range = [0.0, 0.5] }",
            "kind = \"nft\"\ntrain_timesteps = { strategy = \"discrete-with-init\", count = 2, range = [0.9, 1.0] }",
        ],
        &[
            "kind = \"grpo-guard\"\nkl = { kind = \"mean\", beta = 0.1, reference = \"lora-off\" }",
            "kind = \"nft\"\nkl_beta = 0.1\nreference = \"lora-off\"",
            "kind = \"nft\"\ntrain_timesteps = { strategy = \"discrete\", count = 7 }",
        ],
    );
    kind.prop_map(|kind| format!("[algorithm]\n{kind}\n"))
}

/// `[sampling]` and accumulation.
fn geometry() -> impl Strategy<Value = String> {
    let text = mostly(
        &[
            "prompts_per_step = 2\ngroup_size = 2\nmicro_batch = 2",
            "prompts_per_step = 3\ngroup_size = 4\nmicro_batch = 6",
            "prompts_per_step = 1\ngroup_size = 4\nmicro_batch = 1",
        ],
        &[
            "prompts_per_step = 3\ngroup_size = 4\nmicro_batch = 5",
            "prompts_per_step = 4\ngroup_size = 1\nmicro_batch = 2",
            "prompts_per_step = 2\ngroup_size = 2\nmicro_batch = 64",
        ],
    );
    (text, select(&[1.0, 4.5][..]), mostly(&["0", "1", "2"], &["3"])).prop_map(|(text, guidance, accumulation)| {
        format!(
            "[sampling]\n{text}\nguidance_scale = {guidance}\n[optimizer]\ngradient_accumulation = {accumulation}\n"
        )
    })
}

/// A tiny model of any architecture, with or without adapters.
fn model() -> impl Strategy<Value = String> {
    prop_oneof![2 => dit(), 1 => with_experts(), 1 => encoded(MMDIT), 1 => encoded(WAN)]
}

/// A DiT with experts.
fn with_experts() -> impl Strategy<Value = String> {
    let moe = mostly(
        &[
            "experts = 4, top_k = 2, inner = 12, shared = 8",
            "experts = 2, top_k = 1, inner = 6, shared = 0",
        ],
        &["experts = 2, top_k = 3, inner = 6, shared = 0"],
    );
    (moe, one_of(&["full", "lora"])).prop_map(|(moe, finetune)| {
        format!(
            "[model]\nfinetune = \"{finetune}\"\n[model.dit]\nhidden = 16\nheads = 2\nlayers = 2\nmoe = {{ {moe} }}\n[lora]\n\
             rank = 2\ntargets = [\"*.attn.*\"]\n"
        )
    })
}

/// A model that reads encoded text.
fn encoded(model: &'static str) -> impl Strategy<Value = String> {
    let odd = mostly(&[""], &["num_layers = 1\n", "in_channels = 4\n"]);
    (
        odd,
        one_of(&["full", "lora"]),
        mostly(&["[\"*\"]"], &["[\"nothing\"]"]),
    )
        .prop_map(move |(odd, finetune, targets)| {
            let key = odd.split(' ').next().unwrap_or_default();
            let kept = model
                .lines()
                .filter(|line| key.is_empty() || !line.starts_with(key));
            let kept: Vec<&str> = kept.collect();
            let kept = kept.join("\n").replace("FINETUNE", &finetune);
            format!("{kept}\n{odd}[lora]\nrank = 2\ntargets = {targets}\n")
        })
}

const MMDIT: &str = "[model]
architecture = \"mmdit\"
finetune = \"FINETUNE\"
[model.mmdit]
sample_size = 8
in_channels = 1
out_channels = 1
num_layers = 2
attention_head_dim = 8
num_attention_heads = 2
joint_attention_dim = 12
caption_projection_dim = 16
pooled_projection_dim = 10
pos_embed_max_size = 6
dual_attention_layers = [0]";

const WAN: &str = "[model]
architecture = \"wan\"
finetune = \"FINETUNE\"
[model.wan]
latent_frames = 1
latent_height = 8
latent_width = 8
in_channels = 1
num_layers = 2
attention_head_dim = 12
num_attention_heads = 2
ffn_dim = 40
text_dim = 12
freq_dim = 16";

/// A tiny DiT.
fn dit() -> impl Strategy<Value = String> {
    let shape = mostly(
        &[
            "hidden = 8\nheads = 1",
            "hidden = 16\nheads = 2",
            "hidden = 12\nheads = 3",
        ],
        &["hidden = 16\nheads = 3", "hidden = 6\nheads = 1", "height = 16"],
    );
    let position = mostly(&["sincos", "rope"], &["rope"]);
    let lora = mostly(
        &["[\"*\"]", "[\"*.attn.*\"]", "[\"proj_out\", \"*.ff.*\"]"],
        &["[\"nothing\"]", "[\"*.attention.*\"]"],
    );
    (shape, position, 1usize..4, one_of(&["full", "lora"]), lora).prop_map(
        |(shape, position, layers, finetune, targets)| {
            format!(
                "[model]\nfinetune = \"{finetune}\"\n[model.dit]\n{shape}\nlayers = {layers}\nposition = \
                 \"{position}\"\n[lora]\nrank = 2\ntargets = {targets}\n"
            )
        },
    )
}

/// A config of a tiny model, with everything that the validator judges drawn at random.
fn config() -> impl Strategy<Value = String> {
    let slots = (
        prop::collection::vec(entry(), 0..3),
        prop::collection::vec(entry(), 0..3),
        any::<bool>(),
    );
    let slots =
        prop_oneof![1 => slots, 1 => (prop::collection::vec(entry(), 0..2), Just(Vec::new()), any::<bool>())];
    let others = (
        mostly(
            &[
                "\"none\"",
                "\"full\"",
                "\"attn-only\"",
                "\"block-skip\"",
                "\"regions\"\nsave = [\"attention\"]",
                "\"every-nth-linear\"",
            ],
            &["\"regions\"\nsave = [\"atention\"]"],
        ),
        mostly(
            &[""],
            &["\"cubecl.streaming.policy\" = \"single\"", "\"burn.what\" = 1"],
        ),
        mostly(
            &["[ema]\nenabled = true", "[ema]\nenabled = false"],
            &["[evaluation]\nweights = \"ema\""],
        ),
    );
    (slots, algorithm(), scheduler(), geometry(), model(), others).prop_map(
        |((shared, rollout, strict), algorithm, scheduler, geometry, model, (policy, options, average))| {
            format!(
                "config_version = 1\n{model}[[rewards]]\nkind = \"jpeg-compressibility\"\n{scheduler}{geometry}{algorithm}\
                 {average}\n[checkpointing]\npolicy = {policy}\n[runtime.options]\n{options}\n[acceleration]\n\
                 strict = {strict}\nshared = [{}]\nrollout = [{}]\n",
                shared.join(", "),
                rollout.join(", ")
            )
        },
    )
}

/// What the validator says, or nothing if there is no model to ask about.
fn passes(resolved: &Resolved, registries: &Registries) -> bool {
    let config = &resolved.config;
    let Ok(outline) = setup::outline(config, &registries.plugins.models, &ComputeDevice::cpu()) else {
        return false;
    };
    let plan = flow_train::base_plan(config, registries).ok();
    let found = validate(&Question {
        config,
        catalog: &test_catalog::CATALOG,
        accelerators: &registries.accelerators,
        plan: plan.as_ref(),
        model: Some(Capabilities {
            spec: outline.model.spec(),
            layout: &outline.layout,
            trained: outline.trained_values(),
        }),
        sigmas: &setup::step_sigmas(config, outline.model.spec().tokens),
        trainer: &TrainerKind::of(config, &test_catalog::CATALOG),
        machine: &flow_train::machine(config.device.kind, Some(64.0)),
        companions: None,
        ranks: 1,
        training: true,
    });
    !errors(&found)
}

/// Builds every part, sets the accelerators up, and opens a rollout.
struct Build<'a>(&'a Resolved, &'a Environment<'a>);

impl Build<'_> {
    fn with(self, algorithm: Box<dyn Algorithm>) -> Result<(), TrainError> {
        let trainer: Trainer<Box<dyn Algorithm>> = setup::trainer(&self.0.config, self.1, algorithm)?;
        let weights = &trainer.state.weights.current;
        drop(trainer.acceleration.set_up(weights)?.rollout(weights)?);
        for iteration in 0..3 {
            trainer.schedule.steps_for(iteration);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_the_validator_passes_can_be_built_and_rolled_out(text in config()) {
        let Ok(resolved) = parse_named("a.toml", &text, &[]) else { return Ok(()) };
        let registries = Registries::built_in().expect("names are unique");
        if !passes(&resolved, &registries) {
            return Ok(());
        }
        let environment = flow_train::environment(&resolved.config, Path::new("."), &registries);
        let environment = environment.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        let tokens = setup::outline(&resolved.config, &registries.plugins.models, &environment.device)
            .expect("as before").model.spec().tokens;
        let built = setup::algorithm(&resolved.config, environment.plugins, tokens)
            .and_then(|algorithm| Build(&resolved, &environment).with(algorithm));
        prop_assert!(built.is_ok(), "{}\n{text}", built.expect_err("failed"));
    }
}

#[test]
fn the_drawn_configs_are_neither_all_wrong_nor_all_right() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let registries = Registries::built_in().expect("names are unique");
    let mut runner = TestRunner::deterministic();
    let (mut right, mut wrong, mut seen) = (0, 0, String::new());
    for _ in 0..400 {
        let text = config().new_tree(&mut runner).expect("drawn").current();
        match parse_named("a.toml", &text, &[]) {
            Ok(resolved) if passes(&resolved, &registries) => {
                right += 1;
                seen.push_str(&text);
            }
            _ => wrong += 1,
        }
    }
    assert!(right >= 40 && wrong >= 100, "{right} right, {wrong} wrong");
    for part in [
        "mmdit",
        "wan",
        "moe =",
        "exact_reuse",
        "fused_kernels",
        "taylorseer",
        "block-skip",
    ] {
        assert!(seen.contains(part), "no config with `{part}` is right");
    }
}
