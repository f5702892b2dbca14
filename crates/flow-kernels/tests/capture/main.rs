//! Recorded calls of a whole model: the same bits as calls that are not recorded, whatever they are given, and with weights
//! that change between.
//!
//! A program of its own: while one thread records on an NVIDIA GPU, nothing else in the process may wait for it.

#[path = "../cube/setting.rs"]
mod setting;

use burn::tensor::Tensor;
use flow_accel::{Accelerator, Engagement, Meter, Target};
use flow_accelerators::GraphCaptureAccelerator;
use flow_attention::cube::PortableAttention;
use flow_cache::{Forecast, Rules, TaylorSeer, VelocityCache};
use flow_checkpoint::{Checkpointing, Policy};
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::exec::{Stage, TrainingPass};
use flow_core::model::{Condition, ModelInput};
use flow_core::{
    AdamWParam, AdamWStep, Backends, CallContext, FlowModel, InferencePass, Kernels, MasterWeight,
    NoCheckpointing, ParamView, RawTensor, RegionEngine, TrajectoryId, Weights,
};
use flow_models::{Dit, DitConfig, MoeConfig, Position};
use setting::{config, cube, noise};
use std::sync::{Arc, Mutex, PoisonError};

/// One recording at a time.
static RECORDING: Mutex<()> = Mutex::new(());

/// A model with its weights and moments, computing by one plan.
struct Run {
    config: DitConfig,
    device: ComputeDevice,
    kernels: Arc<dyn Kernels>,
    model: Dit,
    weights: Weights,
    moments: Vec<[RawTensor; 2]>,
    plan: Arc<Backends>,
    meter: Meter,
}

impl Run {
    fn new(config: &DitConfig, regions: Arc<dyn RegionEngine>, captured: bool) -> Self {
        let (device, kernels) = cube();
        let model = Dit::new(config, &device).expect("a valid model");
        let mut weights = Weights::init(model.layout().clone(), 0, &device);
        let mut moments = Vec::new();
        for (index, spec) in model.layout().specs().iter().enumerate() {
            let count = spec.shape.iter().product();
            let values = noise(count, 1000 + index as u64)
                .iter()
                .map(|value| 0.2 * value)
                .collect();
            let set = weights.set(index, device.plain(values, &spec.shape));
            set.expect("a weight of its shape");
            moments.push([(); 2].map(|()| device.plain(vec![0.0; count], &spec.shape)));
        }
        let meter = Meter::default();
        let plan = Backends {
            regions,
            ..Backends::new(Arc::new(PortableAttention::default()), kernels.clone())
        };
        let target = Target {
            model: model.spec(),
            meter: &meter,
            below: &[],
        };
        let plan = if captured {
            let applied = GraphCaptureAccelerator.apply(plan, &target);
            applied.unwrap_or_else(|refusal| panic!("{refusal}"))
        } else {
            plan
        };
        Self {
            config: config.clone(),
            device,
            kernels,
            model,
            weights,
            moments,
            plan: Arc::new(plan),
            meter,
        }
    }

    fn input(&self, batch: usize, draw: u64) -> ModelInput {
        let values = self.config.latent.values();
        let sigma = (0..batch).map(|row| 0.1 + 0.07 * (row as f32 + draw as f32));
        let tokens = (0..3 * batch as i64).map(|at| (at * 7 + draw as i64) % 5);
        ModelInput {
            x: self.device.tensor(noise(batch * values, draw), [batch, values]),
            sigma: self.device.tensor(sigma.collect(), [batch]),
            condition: Condition {
                tokens: Some(self.device.int_tensor(tokens.collect(), [batch, 3])),
                ..Condition::default()
            },
        }
    }

    fn velocity(&self, batch: usize, draw: u64) -> Vec<u32> {
        let rollout = InferencePass::new(&self.weights, self.plan.clone());
        let exec = rollout.exec(CallContext::single(Stage::Rollout));
        let velocity = exec.velocity(&self.model, self.input(batch, draw));
        bits(&velocity.into_dispatch())
    }

    /// The loss, and the gradient of every weight.
    fn gradients(&self, batch: usize, draw: u64) -> (Vec<u32>, Vec<Option<RawTensor>>) {
        let trained: Arc<[bool]> = vec![true; self.weights.layout().len()].into();
        let training = TrainingPass::new(&self.weights, self.plan.clone(), trained);
        let exec = training.exec(CallContext::single(Stage::Training));
        let velocity = exec
            .velocity(&self.model, self.input(batch, draw))
            .into_dispatch();
        let values = self.config.latent.values();
        let target = self
            .device
            .plain(noise(batch * values, 50 + draw), &[batch, values]);
        let distance = self.kernels.ops().loss.mean_squared_distance(&velocity, &target);
        let loss = Tensor::<1>::from_dispatch(distance).sum_dim(0);
        let value = loss.clone().into_data().iter::<f32>().map(f32::to_bits).collect();
        (value, training.gradients(&loss))
    }

    /// Losses and bits of all gradients of two units, and of the velocity after the weights have followed them.
    fn step(&mut self, step: u64) -> Vec<Vec<u32>> {
        let units = [2 * step, 2 * step + 1].map(|draw| {
            let (loss, gradients) = self.gradients(2, draw);
            let copied = |gradient: RawTensor| match self.kernels.recorder() {
                Some(recorder) => recorder.copied(&gradient),
                None => gradient,
            };
            (
                loss,
                gradients
                    .into_iter()
                    .map(|gradient| gradient.map(copied))
                    .collect::<Vec<_>>(),
            )
        });
        let mut found: Vec<Vec<u32>> = units.iter().map(|(loss, _)| loss.clone()).collect();
        let of = AdamWStep {
            betas: (0.9, 0.99),
            epsilon: 1e-8,
            weight_decay: 0.01,
            scalars: self.device.plain(vec![0.05, 0.1, 0.01, 1.0], &[4]),
            rounding: Default::default(),
        };
        let before = ParamView::plain(&self.weights).standing();
        let mut update = self.weights.update();
        for (_, gradients) in &units {
            for (index, gradient) in gradients.iter().enumerate() {
                let Some(gradient) = gradient else { continue };
                found.push(bits(gradient));
                let [first, second] = &mut self.moments[index];
                update.change_with_copy(index, |weight, copy| {
                    self.kernels.ops().optimizer.adamw(
                        AdamWParam {
                            weight,
                            master: copy.map_or(MasterWeight::F32, MasterWeight::F32WithCopy),
                            gradient,
                            first,
                            second,
                        },
                        &of,
                    );
                });
            }
        }
        drop(update);
        // Else every step would be recorded anew.
        assert!(
            ParamView::plain(&self.weights).standing() == before,
            "weights moved"
        );
        found.push(self.velocity(3, step));
        found
    }
}

fn bits(tensor: &RawTensor) -> Vec<u32> {
    to_host(tensor).into_iter().map(f32::to_bits).collect()
}

fn engine(policy: &Policy, config: &DitConfig) -> Arc<dyn RegionEngine> {
    let model = Dit::new(config, &cube().0).expect("a valid model");
    let assignment = policy.assign(model.spec()).expect("it fits");
    Arc::new(Checkpointing::new(
        policy.to_string(),
        assignment.expect("it needs no planner"),
    ))
}

fn routed() -> MoeConfig {
    MoeConfig {
        experts: 5,
        top_k: 2,
        inner: 20,
        shared: 28,
        normalize: true,
    }
}

#[test]
fn recorded_calls_have_the_bits_of_calls_while_weights_change() {
    let _alone = RECORDING.lock().unwrap_or_else(PoisonError::into_inner);
    for (config, policy) in [
        (config(Position::Rope, None), None),
        (
            config(Position::Sincos, None),
            Some(Policy::AttnOnly { split: false }),
        ),
        (
            config(Position::Rope, Some(routed())),
            Some(Policy::Full { split: false }),
        ),
    ] {
        let regions = || -> Arc<dyn RegionEngine> {
            policy.as_ref().map_or_else(
                || Arc::new(NoCheckpointing) as _,
                |policy| engine(policy, &config),
            )
        };
        let mut plain = Run::new(&config, regions(), false);
        let mut captured = Run::new(&config, regions(), true);
        for step in 0..3 {
            let (expected, found) = (plain.step(step), captured.step(step));
            assert_eq!(expected.len(), found.len());
            for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
                assert!(expected == found, "step {step}, tensor {number}, {policy:?}");
            }
            // Two forward and two backward passes, and the velocity.
            let replayed = captured.meter.take().of(Engagement::GraphReplayed);
            assert_eq!(replayed, 5, "step {step}");
        }
    }
}

#[test]
fn a_call_of_another_shape_is_another_recording_and_two_passes_at_once_share_none() {
    let _alone = RECORDING.lock().unwrap_or_else(PoisonError::into_inner);
    let config = config(Position::Rope, None);
    let plain = Run::new(&config, Arc::new(NoCheckpointing), false);
    let captured = Run::new(&config, Arc::new(NoCheckpointing), true);
    for (batch, draw) in [(2, 0), (3, 1), (2, 2), (3, 3)] {
        assert!(
            plain.velocity(batch, draw) == captured.velocity(batch, draw),
            "{batch} rows"
        );
    }
    assert_eq!(captured.meter.take().of(Engagement::GraphReplayed), 4);

    // Two calls of one pass: the second begins before the first is differentiated.
    let both = |run: &Run| {
        let trained: Arc<[bool]> = vec![true; run.weights.layout().len()].into();
        let training = TrainingPass::new(&run.weights, run.plan.clone(), trained);
        let [a, b] = [4, 5].map(|draw| {
            let exec = training.exec(CallContext::single(Stage::Training));
            exec.velocity(&run.model, run.input(2, draw))
        });
        let loss = (a * b).sum_dim(1).sum_dim(0).squeeze_dim::<1>(1);
        let gradients = training.gradients(&loss);
        gradients.iter().flatten().map(bits).collect::<Vec<_>>()
    };
    assert!(both(&plain) == both(&captured), "two calls in one pass");
    // Forward and backward of the first; the second is computed as without a recording.
    assert_eq!(captured.meter.take().of(Engagement::GraphReplayed), 2);
}

#[test]
fn gradients_that_someone_holds_are_not_written_over() {
    let _alone = RECORDING.lock().unwrap_or_else(PoisonError::into_inner);
    let config = config(Position::Rope, None);
    let plain = Run::new(&config, Arc::new(NoCheckpointing), false);
    let captured = Run::new(&config, Arc::new(NoCheckpointing), true);
    let of = |run: &Run, draw| run.gradients(2, draw).1;
    let all = |gradients: &[Option<RawTensor>]| gradients.iter().flatten().map(bits).collect::<Vec<_>>();
    let held = of(&captured, 0);
    let next = of(&captured, 1);
    assert!(all(&held) == all(&of(&plain, 0)), "gradients of the first pass");
    assert!(all(&next) == all(&of(&plain, 1)), "gradients of the second");
    // The first pass was replayed; the second, as the first one's gradients were held, was not.
    assert_eq!(captured.meter.take().of(Engagement::GraphReplayed), 2);
    drop(held);
    assert!(all(&of(&captured, 2)) == all(&of(&plain, 2)));
    assert_eq!(captured.meter.take().of(Engagement::GraphReplayed), 2);
}

#[test]
fn a_cache_of_whole_calls_above_recordings_gives_the_bits_of_one_above_calls() {
    const STEPS: u32 = 8;
    let _alone = RECORDING.lock().unwrap_or_else(PoisonError::into_inner);
    let config = config(Position::Rope, None);
    // Three rollouts, as in three iterations: the cache is a new one in each, the recordings stay.
    let rolled_out = |captured: bool| {
        let run = Run::new(&config, Arc::new(NoCheckpointing), captured);
        let of = |iteration: u64| {
            let policy = TaylorSeer {
                interval: 2,
                first: 2,
                last: None,
                forecast: Forecast::Newton { order: 1 },
            };
            let cache = VelocityCache::new(policy, Rules::default(), Box::new(|_| {}));
            let plan = Backends {
                velocities: Arc::new(cache.above(run.plan.velocities.clone())),
                ..(*run.plan).clone()
            };
            let rollout = InferencePass::new(&run.weights, Arc::new(plan));
            let trajectory = |sample| TrajectoryId {
                sample,
                conditional: true,
            };
            let velocity = |step: u32| {
                let exec = rollout.exec(CallContext {
                    iteration,
                    step,
                    steps: STEPS,
                    sigma: Some(1.0 - f64::from(step) / f64::from(STEPS)),
                    trajectories: [trajectory(0), trajectory(1)].into(),
                    ..CallContext::single(Stage::Rollout)
                });
                let input = run.input(2, 10 * iteration + u64::from(step));
                bits(&exec.velocity(&run.model, input).into_dispatch())
            };
            (0..STEPS).map(velocity).collect::<Vec<_>>()
        };
        let velocities: Vec<_> = (0..3).map(of).collect();
        (velocities, run.meter.take().of(Engagement::GraphReplayed))
    };
    let ((alone, none), (above, replayed)) = (rolled_out(false), rolled_out(true));
    assert!(alone == above, "velocities differ");
    assert_eq!(none, 0);
    assert!(
        (1..3 * u64::from(STEPS)).contains(&replayed),
        "{replayed} of 24 calls were replayed"
    );
    assert_eq!(replayed % 3, 0, "each rollout asks as often");
}
