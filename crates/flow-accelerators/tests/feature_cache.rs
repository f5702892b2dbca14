//! Every policy of `feature_cache`: where it is put, what it refuses, and that it works on both architectures.

mod support;

use burn::tensor::Tensor;
use flow_accel::{Acceleration, Engagement, Params, Part};
use flow_attention::CpuAttention;
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::{
    Backends, CallContext, Exec, FlowModel, InferencePass, ModelInput, ModelSpec, RegionKind, Stage,
    TrajectoryId, VelocityDriver, Weights,
};
use flow_kernels::CpuKernels;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use support::{at_work, condition, noise, noisy, registry};

const STEPS: u32 = 28;
const SAMPLES: u64 = 3;
const GUIDANCE: f32 = 2.0;

fn in_force(params: &Value, model: &ModelSpec) -> Result<Acceleration, String> {
    let params: Params = serde_json::from_value(params.clone()).expect("an object");
    let base = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    registry()
        .arrangement(base, [], [("feature_cache", &params)], model)
        .map(at_work)
        .map_err(|errors| errors[0].to_string())
}

fn model(blocks: usize) -> ModelSpec {
    ModelSpec {
        architecture: "little".into(),
        stacks: vec![("blocks".into(), blocks)],
        regions: vec![RegionKind::Attention],
        ..ModelSpec::default()
    }
}

/// Every policy with parameters under which it answers something in 28 steps of a model that hardly moves.
fn policies() -> Vec<Value> {
    vec![
        json!({ "policy": "auto", "target_error": 0.05 }),
        json!({ "policy": "first_block", "threshold": 0.5 }),
        json!({ "policy": "db_cache", "threshold": 0.5, "front_blocks": 1, "back_blocks": 1, "order": 1 }),
        json!({ "policy": "step_mask" }),
        json!({ "policy": "taylorseer" }),
        json!({ "policy": "taylorseer", "target": "velocity", "basis": "newton", "order": 2 }),
        json!({ "policy": "magcache", "ratios": [1.0, 0.99, 0.98, 0.97] }),
        json!({ "policy": "teacache", "coefficients": [1.0, 0.0] }),
        json!({ "policy": "teacache", "coefficients": [1.0, 0.0], "signal": "conditioning" }),
        json!({ "policy": "easycache", "threshold": 0.15 }),
        json!({ "policy": "pyramid" }),
        json!({ "policy": "faster" }),
    ]
}

/// What [`noisy`] makes.
const MODELS: [&str; 5] = ["dit", "dit-with-experts", "mmdit", "qwen-image", "wan"];

/// The latents of three samples after 28 Euler steps with guidance.
fn sample(rollout: &InferencePass<'_>, model: &dyn FlowModel) -> Vec<f32> {
    sample_in(STEPS, rollout, model)
}

fn sample_in(steps: u32, rollout: &InferencePass<'_>, model: &dyn FlowModel) -> Vec<f32> {
    let device = ComputeDevice::cpu();
    let values = model.spec().latent.values();
    let trajectory = |conditional| move |sample| TrajectoryId { sample, conditional };
    let trajectories: Vec<TrajectoryId> = (0..SAMPLES)
        .map(trajectory(true))
        .chain((0..SAMPLES).map(trajectory(false)))
        .collect();
    let rows = SAMPLES as usize;
    let mut x: Vec<f32> = (0..SAMPLES)
        .flat_map(|sample| noise(values, 500 + sample))
        .collect();
    for step in 0..steps {
        let sigma = |step: u32| 1.0 - f64::from(step) / f64::from(steps);
        let call = CallContext {
            step,
            steps,
            sigma: Some(sigma(step)),
            trajectories: trajectories.clone().into(),
            ..CallContext::single(Stage::Rollout)
        };
        let both = [x.clone(), x.clone()].concat();
        let input = ModelInput {
            x: device.tensor(both, [2 * rows, values]),
            sigma: device.tensor(vec![sigma(step) as f32; 2 * rows], [2 * rows]),
            condition: condition(model, &trajectories),
        };
        let v: Tensor<2> = rollout.exec(call).velocity(model, input);
        let v = to_host(&v.into_dispatch());
        let (conditional, unconditional) = v.split_at(rows * values);
        let dt = (sigma(step + 1) - sigma(step)) as f32;
        for ((x, c), u) in x.iter_mut().zip(conditional).zip(unconditional) {
            *x += dt * (u + GUIDANCE * (c - u));
        }
    }
    x
}

#[test]
fn every_policy_answers_on_every_architecture_and_stays_near_the_exact_trajectory() {
    for architecture in MODELS {
        let (model, weights) = noisy(architecture);
        let plain = in_force(&json!({ "policy": "step_mask" }), model.spec()).expect("it fits");
        let exact = sample(&InferencePass::new(&weights, plain.training().clone()), &*model);
        for params in policies() {
            let what = format!("{architecture} {params}");
            let acceleration =
                in_force(&params, model.spec()).unwrap_or_else(|error| panic!("{what}: {error}"));
            let scope = acceleration.rollout(&weights).expect("it opens");
            let found = sample(scope.rollout(), &*model);
            let activity = &acceleration.take_activity()[0];
            let counted = [Engagement::BlockSkipped, Engagement::AttentionSkipped]
                .map(|what| activity.engagements.of(what));
            assert!(counted.iter().sum::<u64>() > 0, "{what}: nothing was answered");
            assert_ne!(found, exact, "{what}: an answer is not a computation");
            let drift = distance(&found, &exact);
            assert!(drift < 0.1, "{what}: {drift}");
            // What the training plan computes in between is not touched, and a second rollout is like the first.
            let between = sample(
                &InferencePass::new(&weights, acceleration.training().clone()),
                &*model,
            );
            assert_eq!(between, exact, "{what}");
            let scope = acceleration.rollout(&weights).expect("it opens");
            assert_eq!(sample(scope.rollout(), &*model), found, "{what}");
        }
    }
}

#[test]
fn eight_steps_with_the_defaults_of_first_block_have_the_bits_of_no_cache() {
    for architecture in MODELS {
        let (model, weights) = noisy(architecture);
        // Whatever the threshold: the warm-up is as long as the trajectory.
        for params in [
            json!({ "policy": "first_block" }),
            json!({ "policy": "first_block", "threshold": 10 }),
        ] {
            let acceleration = in_force(&params, model.spec()).expect("it fits");
            let exact = sample_in(
                8,
                &InferencePass::new(&weights, acceleration.training().clone()),
                &*model,
            );
            let scope = acceleration.rollout(&weights).expect("it opens");
            let found = sample_in(8, scope.rollout(), &*model);
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
            assert_eq!(bits(found), bits(exact), "{architecture} {params}");
            let activity = &acceleration.take_activity()[0];
            let why = activity.why_idle.as_deref().expect("nothing was answered");
            assert!(why.contains("after `warmup_steps = 8`"), "{why}");
        }
    }
}

#[test]
fn every_policy_answers_with_the_same_bits_beside_fused_kernels() {
    let fused = json!({ "mode": "full" });
    let fused: Params = serde_json::from_value(fused).expect("an object");
    for architecture in MODELS {
        let (model, weights) = noisy(architecture);
        for params in policies() {
            let entry: Params = serde_json::from_value(params.clone()).expect("an object");
            let found = [vec![], vec![("fused_kernels", &fused)]].map(|shared| {
                let base = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
                let acceleration = registry()
                    .arrangement(base, shared, [("feature_cache", &entry)], model.spec())
                    .map(at_work)
                    .expect("both fit");
                let scope = acceleration.rollout(&weights).expect("it opens");
                sample(scope.rollout(), &*model)
            });
            assert_eq!(found[0], found[1], "{architecture} {params}");
        }
    }
}

#[test]
fn the_share_of_rows_answered_is_told_by_step_and_by_block() {
    let (model, weights) = noisy("dit");
    let mask = "1011011011011011011011011011";
    let params = json!({ "policy": "step_mask", "mask": mask, "front_blocks": 1 });
    let acceleration = in_force(&params, model.spec()).expect("it fits");
    let scope = acceleration.rollout(&weights).expect("it opens");
    sample(scope.rollout(), &*model);
    let activity = acceleration.take_activity().remove(0);
    let skipped = |part| (Engagement::BlockSkipped, part);
    let steps = mask.bytes().map(|digit| if digit == b'0' { 1.0 } else { 0.0 });
    let blocks = [1, 2].map(|block| (skipped(Part::Block(block)), 9.0 / 28.0));
    let expected: BTreeMap<(Engagement, Part), f64> = (steps.enumerate())
        .map(|(step, share)| (skipped(Part::Step(step as u32)), share))
        .chain(blocks)
        .collect();
    assert_eq!(activity.shares(), expected);
    let rows = 2 * SAMPLES;
    assert_eq!(activity.engagements.of(Engagement::BlockSkipped), 9 * rows * 2);
    assert!(
        acceleration.take_activity()[0].rows.is_empty(),
        "nothing since then"
    );
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let pairs = a.iter().zip(b);
    let sum = |sum: f64, value: f32| sum + f64::from(value) * f64::from(value);
    let distance = pairs.map(|(a, b)| a - b).fold(0.0, sum);
    (distance / b.iter().copied().fold(0.0, sum)).sqrt()
}

#[test]
fn a_policy_takes_the_place_that_it_answers_for_and_no_other() {
    let places = |params: Value| {
        let acceleration = in_force(&params, &model(12)).unwrap_or_else(|error| panic!("{params}: {error}"));
        let device = ComputeDevice::cpu();
        let weights = Weights::init(Arc::default(), 0, &device);
        let scope = acceleration.rollout(&weights).expect("it opens");
        let plan = scope.plan();
        [plan.stacks.name(), plan.layers.name(), plan.velocities.name()].map(str::to_owned)
    };
    let [run_all, layers, velocities] = ["run-all", "compute-layers", "call-model"];
    for (params, expected) in [
        (
            json!({ "policy": "first_block" }),
            ["first_block", layers, velocities],
        ),
        (json!({ "policy": "db_cache" }), ["db_cache", layers, velocities]),
        (
            json!({ "policy": "step_mask" }),
            ["step_mask", layers, velocities],
        ),
        (
            json!({ "policy": "magcache", "ratios": [1.0] }),
            ["magcache", layers, velocities],
        ),
        (json!({ "policy": "teacache" }), ["teacache", layers, velocities]),
        (json!({ "policy": "easycache" }), [run_all, layers, "easycache"]),
        (
            json!({ "policy": "taylorseer" }),
            [run_all, "taylorseer", velocities],
        ),
        (
            json!({ "policy": "taylorseer", "target": "velocity" }),
            [run_all, layers, "taylorseer"],
        ),
        (json!({ "policy": "pyramid" }), [run_all, "pyramid", velocities]),
        (json!({ "policy": "faster" }), [run_all, "faster", "faster"]),
    ] {
        assert_eq!(places(params.clone()), expected, "{params}");
    }
}

#[test]
fn values_out_of_range_are_refused_with_the_range() {
    for (params, said) in [
        (json!({ "policy": "db_cache" }), "no stack of at least 9 blocks"),
        (
            json!({ "policy": "db_cache", "front_blocks": 0 }),
            "`params.front_blocks` is 0",
        ),
        (
            json!({ "policy": "db_cache", "front_blocks": 1, "order": 9 }),
            "must be 0 to 4",
        ),
        (
            json!({ "policy": "step_mask", "mask": "11x1" }),
            "one digit per step",
        ),
        (
            json!({ "policy": "step_mask", "mask": "Slow" }),
            "slow, medium, fast, ultra",
        ),
        (
            json!({ "policy": "taylorseer", "interval": 0 }),
            "`params.interval` is 0",
        ),
        (json!({ "policy": "magcache" }), "`ratios` must hold"),
        (
            json!({ "policy": "magcache", "ratios": [1.0], "retention": 1.5 }),
            "must be 0 to 1",
        ),
        (
            json!({ "policy": "teacache", "coefficients": [] }),
            "`params.coefficients`",
        ),
        (json!({ "policy": "easycache", "threshold": -0.1 }), "above 0"),
        (
            json!({ "policy": "pyramid", "spatial_every": 1 }),
            "nothing is ever repeated",
        ),
        (
            json!({ "policy": "pyramid", "timesteps": [800.0, 100.0] }),
            "no timestep is between 800 and 100",
        ),
        (
            json!({ "policy": "faster", "attention_weight": 11.0 }),
            "must be 0 to 10",
        ),
        (
            json!({ "policy": "pyramid", "threshold": 0.1 }),
            "it belongs to `policy = ",
        ),
    ] {
        let text = in_force(&params, &model(3)).expect_err("it does not fit");
        assert!(text.contains(said), "{params}: {text}");
    }
    let deaf = ModelSpec {
        regions: vec![RegionKind::Mlp],
        ..model(3)
    };
    let text = in_force(&json!({ "policy": "pyramid" }), &deaf).expect_err("there is no attention");
    assert!(text.contains("`little` announces no attention"), "{text}");
}

/// A driver of velocities that is no cache of ours.
#[derive(Debug)]
struct Others;

impl VelocityDriver for Others {
    fn name(&self) -> &str {
        "others"
    }

    fn run(&self, exec: &Exec<'_>, model: &dyn FlowModel, input: ModelInput) -> Tensor<2> {
        model.velocity(exec, input)
    }
}

/// Computes every row, and counts the calls.
#[derive(Debug, Default)]
struct Replayed {
    rows: Arc<Mutex<Vec<usize>>>,
}

impl VelocityDriver for Replayed {
    fn name(&self) -> &str {
        "replayed"
    }

    fn run(&self, exec: &Exec<'_>, model: &dyn FlowModel, input: ModelInput) -> Tensor<2> {
        let rows = input.x.dims()[0];
        self.rows.lock().expect("no panic").push(rows);
        model.velocity(exec, input)
    }

    fn computes_every_row(&self) -> bool {
        true
    }
}

#[test]
fn a_cache_of_whole_calls_asks_what_stands_below_it_for_whole_batches_and_gives_the_same_bits() {
    for params in [
        json!({ "policy": "taylorseer", "target": "velocity", "basis": "newton", "interval": 2 }),
        json!({ "policy": "easycache", "threshold": 0.15 }),
        json!({ "policy": "auto", "target_error": 0.05 }),
    ] {
        let (model, weights) = noisy("dit");
        let read: Params = serde_json::from_value(params.clone()).expect("an object");
        let sampled = |below: Option<Replayed>| {
            let plain = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
            let base = match below {
                Some(replayed) => Backends {
                    velocities: Arc::new(replayed),
                    ..plain
                },
                None => plain,
            };
            let acceleration = registry()
                .arrangement(base, [], [("feature_cache", &read)], model.spec())
                .map(at_work)
                .expect("they go together");
            let scope = acceleration.rollout(&weights).expect("in force");
            let latents = sample(scope.rollout(), &*model);
            let bits: Vec<u32> = latents.iter().map(|value| value.to_bits()).collect();
            (
                bits,
                acceleration.take_activity()[0]
                    .engagements
                    .of(Engagement::BlockSkipped),
            )
        };
        let replayed = Replayed::default();
        let rows = replayed.rows.clone();
        let (alone, above) = (sampled(None), sampled(Some(replayed)));
        assert_eq!(alone, above, "{params}");
        let rows = rows.lock().expect("no panic");
        assert!(
            above.1 > 0 && !rows.is_empty(),
            "{params}: something is answered, something is computed"
        );
        assert!(
            rows.len() < STEPS as usize,
            "{params}: {} whole calls",
            rows.len()
        );
        assert!(
            rows.iter().all(|rows| *rows == 2 * SAMPLES as usize),
            "{params}: {rows:?}"
        );
    }
}

#[test]
fn two_caches_for_one_place_are_refused_and_the_schema_knows_every_policy() {
    let params: Params = serde_json::from_value(json!({ "policy": "easycache" })).expect("an object");
    let base = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let twice = [("feature_cache", &params), ("feature_cache", &params)];
    let errors = registry()
        .arrangement(base, [], twice, &model(3))
        .expect_err("twice");
    let text: String = errors.iter().map(|error| format!("{error}\n")).collect();
    assert_eq!(
        text,
        "the accelerator `feature_cache` stands in `acceleration.rollout` twice. Keep one of the entries\n"
    );

    // Another accelerator's driver may be there already.
    let base = Backends {
        velocities: Arc::new(Others),
        ..Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()))
    };
    let driven = registry().arrangement(base, [], [("feature_cache", &params)], &model(3));
    let text = driven.expect_err("the place is taken")[0].to_string();
    assert!(text.contains("`others` drives the velocities"), "{text}");

    // One that computes everything is no cache: policies for whole calls stand above it, others would decide nothing.
    let base = || Backends {
        velocities: Arc::new(Replayed::default()),
        ..Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()))
    };
    for params in policies() {
        let whole = ["auto", "easycache"].iter().any(|name| params["policy"] == *name)
            || params["target"] == "velocity";
        let read: Params = serde_json::from_value(params.clone()).expect("an object");
        let above = registry().arrangement(base(), [], [("feature_cache", &read)], &model(3));
        match above {
            Ok(_) => assert!(whole, "{params}"),
            Err(errors) => {
                let text = errors[0].to_string();
                let said =
                    "`replayed` replays whole calls of the model, and this policy decides within a call";
                assert!(!whole && text.contains(said), "{params}: {text}");
                assert!(text.contains("remove `graph_capture`"), "{text}");
            }
        }
    }

    let registry = registry();
    let kind = registry
        .kinds()
        .find(|kind| kind.name() == "feature_cache")
        .expect("registered");
    let variants = kind.schema().as_value()["oneOf"]
        .as_array()
        .expect("one per policy")
        .clone();
    let names: Vec<&str> = (variants.iter())
        .filter_map(|variant| variant["properties"]["policy"]["const"].as_str())
        .collect();
    let expected = [
        "auto",
        "first_block",
        "db_cache",
        "step_mask",
        "taylorseer",
        "magcache",
        "teacache",
        "easycache",
        "pyramid",
        "faster",
    ];
    assert_eq!(names, expected);
}
