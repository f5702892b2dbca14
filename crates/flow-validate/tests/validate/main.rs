//! The rules on device, policies, options, memory and schedule: one case that is found and one that is silent each.

mod low_precision_memory;
mod memory;

use flow_accel::{Accelerator, AcceleratorRegistry, AcceleratorStage, Refusal, Safety, StepScope, Target};
use flow_attention::CpuAttention;
use flow_config::{AcceleratorEntry, Config, Diagnostic, Severity, WordsText};
use flow_core::params::LayoutBuilder;
use flow_core::{AttentionShape, Backends, Init, ModelSpec, ParamLayout, RegionKind, Rows};
use flow_kernels::CpuKernels;
use flow_validate::{
    Capabilities, Companion, Companions, Kept, Load, LowPrecisionLoad, Machine, MemoryEstimate, MemoryTable,
    Operations, Phase, Question, Stored, Teachers, Trained, TrainerKind, errors, explain, gib, validate,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use test_catalog::{CATALOG, parse_str};

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoParams {}

/// Lossy outside the SDE window; excludes `rival` and stands after `first`.
#[derive(Debug)]
struct Outside(&'static str);

impl Accelerator for Outside {
    fn name(&self) -> &str {
        self.0
    }
    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Rollout
    }
    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossy(StepScope::OutsideSdeWindow)
    }
    fn conflicts(&self) -> &[(&'static str, &'static str)] {
        if self.0 == "outside" {
            &[("rival", "both answer steps")]
        } else {
            &[]
        }
    }
    fn after(&self) -> &[(&'static str, &'static str)] {
        if self.0 == "outside" {
            &[("first", "it looks at it")]
        } else {
            &[]
        }
    }
    fn apply(&self, plan: Backends, _: &Target<'_>) -> Result<Backends, Refusal> {
        Ok(plan)
    }
}

fn registry() -> AcceleratorRegistry {
    let mut registry = AcceleratorRegistry::default();
    for name in ["outside", "rival", "first"] {
        registry
            .register(
                name,
                AcceleratorStage::Rollout,
                "For tests.",
                move |_: NoParams| Ok(Outside(name)),
            )
            .expect("a new name");
    }
    registry
}

fn machine() -> Machine {
    Machine {
        devices: vec!["cpu"],
        bf16: Err("this processor has no such instruction".into()),
        checkpointing: vec!["none", "full", "regions", "budget"],
        gpu: None,
        runtime_features: BTreeSet::new(),
        processors: Some(2),
        memory_bytes: Some(1 << 30),
    }
}

/// Ten weights: a linear layer of 3 by 2 that tokens see, and one of 2 by 2 that a sample sees.
fn layout() -> ParamLayout {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    builder.param("blocks.0.to_v.weight", [3, 2], Init::Zeros);
    builder
        .applied_to(Rows::Sample)
        .param("blocks.0.norm.weight", [2, 2], Init::Zeros);
    layout
}

fn config(text: &str) -> Config {
    let parsed = parse_str(&format!("config_version = 1\n{text}\n"));
    parsed.expect("right by itself").config
}
fn ask(text: &str, machine: &Machine, spec: &ModelSpec, sigmas: &[f64]) -> Vec<Diagnostic> {
    let config = config(text);
    let plan = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    validate(&Question {
        config: &config,
        catalog: &CATALOG,
        accelerators: &registry(),
        plan: Some(&plan),
        model: Some(Capabilities {
            spec,
            layout: &layout(),
            trained: 10,
        }),
        sigmas,
        trainer: &TrainerKind::of(&config, &CATALOG),
        machine,
        companions: None,
        ranks: 1,
        training: true,
    })
}

fn spec() -> ModelSpec {
    ModelSpec {
        architecture: "tiny".into(),
        tokens: 4,
        stacks: vec![("blocks".into(), 2)],
        regions: vec![RegionKind::Mlp],
        ..ModelSpec::default()
    }
}
const STEPS: [f64; 4] = [1.0, 0.75, 0.5, 0.25];
#[test]
fn each_rule_finds_what_it_is_for_and_nothing_else() {
    let outside = "[[acceleration.rollout]]\nname = \"outside\"";
    let small = "[scheduler]\nsteps = 4\nwindow = { kind = \"list\", steps = [0] }\n";
    let warned = [(
        "acceleration::lossy-outside-window",
        "acceleration.rollout.0.name",
        Severity::Warning,
    )];
    let error = |code, path| vec![(code, path, Severity::Error)];
    let cases = [
        ("", vec![]),
        ("[device]\nkind = \"cpu\"", vec![]),
        (
            "[device]\nkind = \"cuda\"",
            [
                error("device::unavailable", "device.kind"),
                vec![("device::slow-kernels", "device.dtype", Severity::Warning)],
            ]
            .concat(),
        ),
        (
            "[device]\ndtype = \"bf16\"",
            error("device::no-bf16", "device.dtype"),
        ),
        ("[device]\ndtype = \"f32\"", vec![]),
        ("[checkpointing]\npolicy = \"none\"", vec![]),
        ("[checkpointing]\npolicy = \"full\"", vec![]),
        (
            "[checkpointing]\npolicy = \"attn-only\"",
            error("checkpointing::unavailable", "checkpointing.policy"),
        ),
        (
            "[checkpointing]\npolicy = \"regions\"\nsave = [\"mlp\", \"mlp:linear\", \"blocks.1.*\"]",
            vec![],
        ),
        (
            "[checkpointing]\npolicy = \"regions\"\nsave = [\"mlp\", \"mpl\"]",
            error("checkpointing::no-region", "checkpointing.save.1"),
        ),
        ("[device]\nthreads = 8", vec![]),
        (
            "[device]\nthreads = 9",
            vec![("device::many-threads", "device.threads", Severity::Warning)],
        ),
        (
            "[checkpointing]\npolicy = \"regions\"\nsave = [\"[\"]",
            error("checkpointing::no-region", "checkpointing.save.0"),
        ),
        ("[checkpointing]\npolicy = \"budget\"\npeak_gib = 0.001", vec![]),
        (
            "[runtime.options]\n\"burn.no\" = 1",
            error("runtime::unknown-option", "runtime.options.\"burn.no\""),
        ),
        (
            "[runtime.options]\n\"cubecl.autotune.level\" = \"full\"",
            error("runtime::never-read", "runtime.options.\"cubecl.autotune.level\""),
        ),
        (&format!("{small}{outside}"), warned.to_vec()),
        (
            outside,
            [
                &warned[..],
                &[(
                    "acceleration::nothing-outside-window",
                    "acceleration.rollout.0.name",
                    Severity::Warning,
                )],
            ]
            .concat(),
        ),
        (
            &format!("[acceleration]\nstrict = true\n{outside}"),
            [
                &error(
                    "acceleration::nothing-outside-window",
                    "acceleration.rollout.0.name",
                )[..],
                &warned[..],
            ]
            .concat(),
        ),
        (
            &format!("{small}{outside}\n[[acceleration.rollout]]\nname = \"rival\""),
            vec![
                (
                    "acceleration::conflict",
                    "acceleration.rollout.0.name",
                    Severity::Error,
                ),
                warned[0],
                (
                    "acceleration::lossy-outside-window",
                    "acceleration.rollout.1.name",
                    Severity::Warning,
                ),
            ],
        ),
        (
            &format!("{small}{outside}\n[[acceleration.rollout]]\nname = \"first\""),
            vec![
                (
                    "acceleration::order",
                    "acceleration.rollout.0.name",
                    Severity::Error,
                ),
                warned[0],
                (
                    "acceleration::lossy-outside-window",
                    "acceleration.rollout.1.name",
                    Severity::Warning,
                ),
            ],
        ),
        (
            "[scheduler]\nsteps = 4\n[algorithm]\nkind = \"nft\"\ntrain_timesteps = { count = 3, range = [0.4, 0.8] }",
            error("rule::train-timesteps", "algorithm.train_timesteps.range"),
        ),
        (
            "[scheduler]\nsteps = 4\n[algorithm]\nkind = \"nft\"\ntrain_timesteps = { count = 2, range = [0.5, 0.75] }",
            vec![],
        ),
    ];
    for (text, expected) in cases {
        let found = ask(text, &machine(), &spec(), &STEPS);
        let seen: Vec<_> = found
            .iter()
            .map(|one| (one.code, one.path.as_str(), one.severity))
            .collect();
        assert_eq!(seen, expected, "{text}");
        for one in &found {
            assert!(explain(one.code).is_some() && one.help.is_some(), "{one}");
            assert!(!one.message.ends_with('.'), "{one}");
        }
    }
}

#[test]
fn a_policy_that_the_model_would_ignore_is_refused() {
    let without = ModelSpec {
        regions: Vec::new(),
        ..spec()
    };
    let found = ask("[checkpointing]\npolicy = \"full\"", &machine(), &without, &[]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].code, "checkpointing::ignored");
    assert!(
        found[0].message.contains("`tiny` announces no regions"),
        "{}",
        found[0]
    );
}

#[test]
fn equal_questions_have_equal_answers_and_all_of_them_come_at_once() {
    let text = "[device]\ndtype = \"bf16\"\n[checkpointing]\npolicy = \"attn-only\"\n[runtime.options]\n\"burn.no\" = \
                1\n[[acceleration.shared]]\nname = \"oustide\"";
    let found = ask(text, &machine(), &spec(), &STEPS);
    let codes: Vec<_> = found.iter().map(|one| one.code).collect();
    assert_eq!(
        codes,
        [
            "device::no-bf16",
            "checkpointing::unavailable",
            "runtime::unknown-option",
            "acceleration::unknown-accelerator"
        ]
    );
    assert_eq!(found[3].nearest.as_deref(), Some("outside"));
    assert_eq!(found[3].allowed, ["first", "outside", "rival"]);
    assert_eq!(found, ask(text, &machine(), &spec(), &STEPS));
}

#[test]
fn the_words_of_a_finding_are_those_of_the_error() {
    let registry = registry();
    let plan = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let entry = |name: &str| AcceleratorEntry {
        name: name.into(),
        params: Default::default(),
    };
    let mut config = test_catalog::defaults();
    config.acceleration.shared = vec![entry("outside")];
    config.acceleration.rollout = vec![entry("rival"), entry("rival"), entry("nobody")];
    let build = |name: &str| registry.build(name, &Default::default());
    let placed = |name: &str| build(name).expect("registered");
    let mut errors = flow_accel::Arrangement::new(
        plan.clone(),
        &[placed("outside")],
        &[placed("rival"), placed("rival")],
        &spec(),
    )
    .expect_err("arranged badly");
    errors.push(build("nobody").expect_err("unknown"));
    let (found, _) = flow_validate::resolve(
        &config,
        &registry,
        &plan,
        &spec(),
        &TrainerKind::of(&config, &CATALOG),
    );
    for error in errors {
        let same = |one: &&Diagnostic| one.message == error.message() && one.help == Some(error.help());
        assert!(
            found.iter().any(|one| same(&one)),
            "{error} is not among {found:#?}"
        );
    }
}

#[test]
fn a_forward_pass_is_the_products_of_each_weight_with_the_rows_that_it_sees() {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    builder.param("to_q.weight", [8, 8], Init::Zeros);
    builder
        .applied_to(Rows::Text)
        .param("to_k.weight", [8, 3], Init::Zeros);
    builder
        .applied_to(Rows::Sample)
        .param("time.weight", [16, 5], Init::Zeros);
    builder.param("norm.weight", [8], Init::Zeros);
    let spec = ModelSpec {
        tokens: 10,
        attentions: vec![AttentionShape {
            layers: 2,
            queries: &[Rows::Tokens],
            keys: &[Rows::Tokens, Rows::Text],
            width: 8,
            heads: 2,
        }],
        ..ModelSpec::default()
    };
    let operations = Operations::of(&layout, &spec, &[true, false, false, true], 7);
    let trained = 2.0 * 10.0 * 64.0;
    let frozen = 2.0 * 7.0 * 24.0 + 2.0 * 80.0;
    let attention = 2.0 * 4.0 * 10.0 * 17.0 * 8.0;
    assert_eq!(
        operations,
        Operations {
            trained,
            frozen,
            attention
        }
    );
    assert_eq!(operations.forward(), trained + frozen + attention);
    // The gradient of a frozen weight is nobody's.
    assert_eq!(operations.backward(), 2.0 * trained + frozen + 2.0 * attention);
}

#[test]
fn the_examples_of_runtime_options_are_true() {
    use flow_runtime::{Context, DeviceKind, Feature, OptionsError, parse};
    let everything = Context {
        device: DeviceKind::Cuda,
        features: [Feature::Cubecl, Feature::Cuda, Feature::Persistence].into(),
        ..Context::default()
    };
    let found = |example: &str, context: &Context| -> BTreeSet<&'static str> {
        let config = config(example);
        let entries = config.acceleration.shared.iter().map(|entry| entry.name.clone());
        let context = Context {
            device: match example.contains("kind = \"cpu\"") {
                true => DeviceKind::Cpu,
                false => DeviceKind::Cuda,
            },
            accelerators: entries.collect(),
            variable_shapes: config.has_ragged_batches(),
            ..context.clone()
        };
        let findings = match parse(&config.runtime.options, &context) {
            Ok(options) => options.warnings().to_vec(),
            Err(OptionsError { findings }) => findings,
        };
        findings.into_iter().map(|finding| finding.code).collect()
    };
    let of_options = flow_validate::all_codes().filter(|known| known.code.starts_with("runtime::"));
    for known in of_options {
        let mut context = everything.clone();
        if known.code == "runtime::missing-feature" {
            context.features.clear();
        }
        if known.code == "runtime::wrong-device" && !context.has_feature(Feature::Cubecl) {
            test_support::skipped(format!("the example of {}: this build has no CubeCL", known.code));
            continue;
        }
        // That one wants a run whose shapes vary, which its tests have.
        if known.code == "runtime::enforced-memory-variable-shapes" {
            continue;
        }
        let [wrong, right] = [known.wrong, known.right];
        assert!(found(wrong, &context).contains(known.code), "{known}");
        if !right.starts_with('$') {
            assert!(!found(right, &context).contains(known.code), "{known}");
        }
    }
}
