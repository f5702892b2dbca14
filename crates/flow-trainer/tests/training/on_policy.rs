//! The audit: exactly 1 where it must be, and a stop where it is not.

use crate::support::{RunTo, Visit, bits, config, environment, environment_with, registries, with_trainer};
use flow_core::ops::{
    GatedResidual, KernelOps, LayeredKernels, LinearWeights, LossOps, ModelOps, ModulatedNorm, RotaryTables,
    SdeStep, Stash,
};
use flow_core::{Activation, Kernels, RawTensor};
use flow_kernels::CpuKernels;
use flow_trainer::Trainer;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::Observer;
use flow_trainer::{TrainError, setup};
use std::sync::Arc;

type Tracked = burn::backend::DispatchTensor;

fn run(overrides: &[&str]) -> Result<String, TrainError> {
    let registries = registries();
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = RunTo {
        root: root.path(),
        resume: false,
        until: 2,
    };
    with_trainer(&config(overrides), &environment(&registries), run).map(|left| left.metrics)
}

fn deviations(metrics: &str) -> Vec<f64> {
    let records = metrics
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a record"));
    records
        .filter_map(|record| record.get("on_policy/max_ratio_deviation")?.as_f64())
        .collect()
}

#[test]
fn the_ratio_is_exactly_one_for_every_dynamics_algorithm_and_guidance() {
    for algorithm in ["grpo", "grpo-guard", "dppo"] {
        for dynamics in ["flow-sde", "dance-sde", "cps"] {
            for guidance in ["1.0", "3.5"] {
                let metrics = run(&[
                    &format!("algorithm.kind=\"{algorithm}\""),
                    &format!("scheduler.dynamics=\"{dynamics}\""),
                    &format!("sampling.guidance_scale={guidance}"),
                    "scheduler.window={ kind = \"list\", steps = [0, 2] }",
                ]);
                let metrics =
                    metrics.unwrap_or_else(|error| panic!("{algorithm}, {dynamics}, {guidance}: {error}"));
                assert_eq!(
                    deviations(&metrics),
                    [0.0, 0.0],
                    "{algorithm}, {dynamics}, guidance {guidance}"
                );
            }
        }
    }
}

#[test]
fn the_ratio_is_exactly_one_with_adapters_and_a_reference_below_them() {
    let metrics = run(&[
        "model.finetune=\"lora\"",
        "lora.targets=[\"to_q\", \"to_v\"]",
        "algorithm.kl={ kind = \"mean\", beta = 0.1, reference = \"lora-off\" }",
    ]);
    assert_eq!(deviations(&metrics.expect("the run ends")), [0.0, 0.0]);
}

/// Six images of a group, two for each of three steps.
const ONE_STEP: [&str; 5] = [
    "sampling.group_size=6",
    "sampling.micro_batch=2",
    "sampling.initial_noise=\"per_group\"",
    "sampling.branching={ kind = \"one-step\" }",
    "optimizer.gradient_accumulation=3",
];

#[test]
fn the_ratio_is_exactly_one_where_each_image_parts_at_one_step() {
    for dynamics in ["flow-sde", "dance-sde", "cps"] {
        for algorithm in [
            "algorithm={ kind = \"grpo\", step_weights = \"noise\" }",
            "algorithm.kind=\"grpo-guard\"",
            "algorithm.kind=\"dppo\"",
        ] {
            let dynamics = format!("scheduler.dynamics=\"{dynamics}\"");
            let metrics = run(&[&ONE_STEP[..], &[algorithm, &*dynamics]].concat());
            let metrics = metrics.unwrap_or_else(|error| panic!("{algorithm}, {dynamics}: {error}"));
            assert_eq!(deviations(&metrics), [0.0, 0.0], "{algorithm}, {dynamics}");
        }
    }
}

#[test]
fn the_ratio_is_exactly_one_where_each_group_is_random_at_one_step() {
    let geometry = [
        "sampling.micro_batch=2",
        "sampling.branching={ kind = \"one-step-per-group\" }",
        "optimizer.gradient_accumulation=3",
    ];
    for (dynamics, initial_noise) in [
        ("flow-sde", "per_sample"),
        ("dance-sde", "per_group"),
        ("cps", "per_sample"),
    ] {
        for algorithm in [
            "algorithm={ kind = \"grpo\", step_weights = \"inverse-gradient\" }",
            "algorithm={ kind = \"dppo\", step_weights = \"inverse-gradient\" }",
            "algorithm.kind=\"grpo-guard\"",
        ] {
            let dynamics = format!("scheduler.dynamics=\"{dynamics}\"");
            let initial_noise = format!("sampling.initial_noise=\"{initial_noise}\"");
            let metrics = run(&[&geometry[..], &[algorithm, &*dynamics, &*initial_noise]].concat());
            let metrics = metrics.unwrap_or_else(|error| panic!("{algorithm}, {dynamics}: {error}"));
            assert_eq!(deviations(&metrics), [0.0, 0.0], "{algorithm}, {dynamics}");
        }
    }
}

#[test]
fn the_ratio_is_exactly_one_at_every_edge_of_a_tree() {
    for tree in [
        "{ kind = \"tree\", splits = [0, 2] }",
        "{ kind = \"tree\", splits = [0, 1], fusion = \"path-probability\", leaves = \"extremes\", extremes = 1 }",
        "{ kind = \"tree\", splits = [0], children = 4, leaves = \"better-half\", untrained_steps = [1] }",
    ] {
        for algorithm in ["grpo", "grpo-guard", "dppo"] {
            let algorithm = format!("algorithm.kind=\"{algorithm}\"");
            let branching = format!("sampling.branching={tree}");
            // Groups of four in micro-batches of six: a tree lies in two of them.
            let metrics = run(&[
                &algorithm,
                &branching,
                "sampling.initial_noise=\"per_group\"",
                "sampling.guidance_scale=2.0",
            ]);
            let metrics = metrics.unwrap_or_else(|error| panic!("{algorithm}, {tree}: {error}"));
            assert_eq!(deviations(&metrics), [0.0, 0.0], "{algorithm}, {tree}");
        }
    }
}

/// A mixture of experts in the place of the base config's MLPs.
const EXPERTS: [&str; 3] = [
    "model.dit.moe.experts=4",
    "model.dit.moe.inner=12",
    "model.dit.moe.shared=8",
];

#[test]
fn ratios_of_a_model_with_experts_are_one_with_guidance_too() {
    let guided = [&EXPERTS[..], &["sampling.guidance_scale=2.0"]].concat();
    assert_eq!(deviations(&run(&guided).expect("the run ends")), [0.0, 0.0]);
}

#[test]
fn experts_on_kernels_that_have_none_are_refused_before_anything_runs() {
    let registries = registries();
    let environment = environment_with(&registries, bent(Bend::Products));
    let error = setup::common(&config(&EXPERTS), &environment)
        .err()
        .expect("it is refused");
    let text = error.to_string();
    assert!(
        text.contains("the kernels `bent` of this device compute none"),
        "{text}"
    );
    assert!(text.contains("model.dit.moe.experts = 0"), "{text}");
}

#[test]
fn a_decoupled_algorithm_has_no_ratio_to_audit() {
    for algorithm in ["nft", "awm", "dpo", "dgpo", "crd"] {
        let kind = format!("algorithm.kind=\"{algorithm}\"");
        let whole = "optimizer.gradient_accumulation=2";
        let metrics = run(&[&kind, "scheduler.dynamics=\"ode\"", whole]).expect("the run ends");
        assert!(deviations(&metrics).is_empty(), "{algorithm}");
    }
}

/// A number that each iteration logged.
fn logged(metrics: &str, name: &str) -> Vec<f64> {
    let records = metrics
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a record"));
    records.filter_map(|record| record.get(name)?.as_f64()).collect()
}

#[test]
fn dppo_before_its_first_step_learns_what_grpo_without_a_clip_learns() {
    let registries = registries();
    let learnt = |algorithm: &str| {
        let root = tempfile::tempdir().expect("a temporary directory");
        let run = RunTo {
            root: root.path(),
            resume: false,
            until: 1,
        };
        let config = config(&[algorithm, "optimizer.gradient_accumulation=2"]);
        with_trainer(&config, &environment(&registries), run).expect("the run ends")
    };
    let dppo = learnt("algorithm={ kind = \"dppo\" }");
    let grpo = learnt("algorithm={ kind = \"grpo\", clip_range = [-0.9, 999.0] }");
    assert_eq!(logged(&dppo.metrics, "divergence"), [0.0]);
    assert_eq!(logged(&dppo.metrics, "masked_fraction"), [0.0]);
    assert!(
        dppo.weights == grpo.weights,
        "the first update must be the same bits"
    );
}

#[test]
fn the_ratio_of_awm_is_exactly_one_until_the_weights_move_with_guidance_and_off_policy_too() {
    for extra in ["", ", off_policy = true, old_policy_beta = 0.1"] {
        let metrics = run(&[
            &format!("algorithm={{ kind = \"awm\"{extra} }}"),
            "sampling.guidance_scale=2.0",
            "optimizer.gradient_accumulation=2",
        ])
        .expect("the run ends");
        let ratios = logged(&metrics, "ratio");
        // Off policy the second iteration's weights are no longer those that sample.
        let expected = if extra.is_empty() { 2 } else { 1 };
        assert_eq!(ratios[..expected], [1.0, 1.0][..expected], "{ratios:?}");
    }
}

#[test]
fn dpo_begins_at_log_two_where_policy_and_reference_are_the_same() {
    let metrics = run(&[
        "algorithm={ kind = \"dpo\" }",
        "optimizer.gradient_accumulation=2",
    ])
    .expect("the run ends");
    let losses = logged(&metrics, "loss");
    assert!((losses[0] - std::f64::consts::LN_2).abs() < 1e-6, "{losses:?}");
    assert!(losses[1].is_finite() && losses[1] != losses[0], "{losses:?}");
    assert_eq!(logged(&metrics, "implicit_margin")[0], 0.0);
}

#[test]
fn dpo_without_any_preference_says_so_and_changes_nothing() {
    let registries = registries();
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = RunTo {
        root: root.path(),
        resume: false,
        until: 1,
    };
    let config = config(&["algorithm={ kind = \"dpo\" }", "scheduler.dynamics=\"ode\""]);
    let (notices, before, after) = with_trainer(&config, &environment(&registries), Silent(run));
    assert!(notices.contains("no optimizer step"), "{notices}");
    assert!(before == after, "no weight may move");
}

/// The run with groups whose images are all the same: they share their first latents, and no step adds noise.
struct Silent<'a>(RunTo<'a>);

impl Visit for Silent<'_> {
    type Output = (String, Vec<Vec<u32>>, Vec<Vec<u32>>);

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) -> Self::Output {
        trainer.settings.initial_noise = flow_config::InitialNoise::PerGroup;
        let before = bits(&trainer.state.weights.current);
        let mut notices = Notices::default();
        let left = self.0.observed(trainer, &mut notices).expect("the run ends");
        (notices.0, before, left.weights)
    }
}

#[derive(Default)]
struct Notices(String);

impl Observer for Notices {
    fn notice(&mut self, text: &str) {
        self.0.push_str(text);
    }
}

#[test]
fn a_kernel_that_differs_in_training_by_one_part_in_a_million_stops_the_run() {
    let registries = registries();
    let environment = environment_with(&registries, bent(Bend::Products));
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = |overrides: &[&str], name: &str| {
        let root = root.path().join(name);
        with_trainer(
            &config(overrides),
            &environment,
            RunTo {
                root: &root,
                resume: false,
                until: 1,
            },
        )
    };
    let error = run(&[], "stop").expect_err("the audit must stop it");
    let TrainError::OffPolicy {
        iteration: 1,
        deviation,
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert!(deviation.size() > 0.0);
    let text = error.to_string();
    assert!(
        text.contains("sample") && text.contains("step") && text.contains("audit.on_policy"),
        "{text}"
    );
    // Nothing was learnt from the wrong ratio: no iteration was recorded.
    let metrics = std::fs::read_to_string(root.path().join("stop/run/metrics.jsonl")).expect("metrics exist");
    assert!(!metrics.contains("\"train\""), "{metrics}");

    let warned = run(&["audit.on_policy=\"warn\""], "warn").expect("a warning lets it go on");
    assert!(deviations(&warned.metrics)[0] > 0.0);
    let off = run(&["audit.on_policy=\"off\""], "off").expect("nobody looks");
    assert!(deviations(&off.metrics).is_empty());
}

#[test]
fn other_bits_of_log_probability_or_mean_stop_the_run_also_where_every_ratio_is_one() {
    let registries = registries();
    let root = tempfile::tempdir().expect("a temporary directory");
    for (bend, name) in [(Bend::LogProb, "log-prob"), (Bend::Mean, "mean")] {
        let environment = environment_with(&registries, bent(bend));
        let run = |overrides: &[&str], name: &str| {
            let root = root.path().join(name);
            let run = RunTo {
                root: &root,
                resume: false,
                until: 1,
            };
            with_trainer(&config(overrides), &environment, run)
        };
        let error = run(&[], name).expect_err("the audit must stop it");
        let TrainError::OffPolicy { deviation, .. } = &error else {
            panic!("{name}: {error}")
        };
        let [log_prob, mean] = [deviation.log_prob, deviation.mean];
        match bend {
            Bend::Mean => assert!(deviation.size() == 0.0 && mean.is_some() && log_prob.is_none()),
            _ => {
                let found = log_prob.expect("its bits were changed");
                let units = found.rollout.to_bits().abs_diff(found.loss.to_bits());
                assert!((1..=2).contains(&units) && mean.is_none(), "{found}");
            }
        }
        assert!(error.to_string().contains("in the rollout and"), "{error}");
        let warned = run(&["audit.on_policy=\"warn\""], &format!("{name}-warned"));
        let metrics = warned.expect("a warning lets it go on").metrics;
        assert!(!metrics.contains("\"on_policy/other_bits\":0.0"), "{metrics}");
    }
}

/// What of the kernels is off.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bend {
    /// The linear layers of training, by one part in a million.
    Products,
    /// The log-probability that a loss computes again, by a unit in the last place or two.
    LogProb,
    /// The mean that a loss computes again, likewise.
    Mean,
}

fn bent(bend: Bend) -> Arc<dyn Kernels> {
    Arc::new(Bent(Arc::new(CpuKernels::default()), bend))
}

/// The CPU kernels, but for the bend.
#[derive(Debug)]
struct Bent(Arc<dyn Kernels>, Bend);

/// Times `factor`.
fn times(tensor: Tracked, factor: f32) -> Tracked {
    use burn::backend::{Dispatch, ops::FloatTensorOps};
    Dispatch::float_mul_scalar(tensor, factor.into())
}

impl LayeredKernels for Bent {
    fn inner(&self) -> &dyn Kernels {
        &*self.0
    }
    fn around(&self, inner: Arc<dyn Kernels>) -> Arc<dyn Kernels> {
        Arc::new(Self(inner, self.1))
    }
    fn name(&self) -> &str {
        "bent"
    }
    fn ops(&self) -> KernelOps<'_> {
        KernelOps {
            model: self,
            loss: self,
            experts: None,
            ..self.0.ops()
        }
    }
}

impl ModelOps for Bent {
    fn linear(
        &self,
        stash: &dyn Stash,
        x: &Tracked,
        weights: &LinearWeights,
        activation: Activation,
    ) -> Tracked {
        let y = self.0.ops().model.linear(stash, x, weights, activation);
        match y.kind {
            burn::backend::DispatchTensorKind::Autodiff(_) if self.1 == Bend::Products => times(y, 1.000_001),
            _ => y,
        }
    }
    fn activation(&self, x: &Tracked, activation: Activation) -> Tracked {
        self.0.ops().model.activation(x, activation)
    }
    fn modulated_layer_norm(&self, norm: ModulatedNorm<'_>) -> Tracked {
        self.0.ops().model.modulated_layer_norm(norm)
    }
    fn layer_norm(&self, x: &Tracked, weight: &Tracked, bias: &Tracked, epsilon: f32) -> Tracked {
        self.0.ops().model.layer_norm(x, weight, bias, epsilon)
    }
    fn gated_residual(&self, gated: GatedResidual<'_>, branch: &Tracked) -> Tracked {
        self.0.ops().model.gated_residual(gated, branch)
    }
    fn rms_norm(&self, x: &Tracked, weight: Option<&Tracked>, epsilon: f32) -> Tracked {
        self.0.ops().model.rms_norm(x, weight, epsilon)
    }
    fn rotary(&self, x: &Tracked, tables: RotaryTables<'_>) -> Tracked {
        self.0.ops().model.rotary(x, tables)
    }
    fn embedding(&self, table: &Tracked, index: &RawTensor) -> Tracked {
        self.0.ops().model.embedding(table, index)
    }
}

impl LossOps for Bent {
    fn sde_log_prob(&self, step: SdeStep<'_>, x_next: &RawTensor) -> (Tracked, Tracked) {
        let (log_prob, mean) = self.0.ops().loss.sde_log_prob(step, x_next);
        match self.1 {
            Bend::Products => (log_prob, mean),
            Bend::LogProb => (times(log_prob, 1.0 + f32::EPSILON), mean),
            Bend::Mean => (log_prob, times(mean, 1.0 + f32::EPSILON)),
        }
    }
    fn mean_squared_distance(&self, a: &Tracked, b: &RawTensor) -> Tracked {
        self.0.ops().loss.mean_squared_distance(a, b)
    }
}
