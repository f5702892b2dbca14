//! A model of elementwise arithmetic, so that no bit of a row depends on the others, and a way to call it row by row.

use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_cache::OnCall;
use flow_core::cpu::{read_ints, to_host};
use flow_core::device::ComputeDevice;
use flow_core::exec::{AttentionKind, Block};
use flow_core::{
    Backends, CallContext, Condition, Exec, FlowModel, InferencePass, Kernels, LatentShape, ModelInput,
    ModelSpec, ParamLayout, RegionKind, Stage, TrajectoryId, Weights,
};
use flow_kernels::CpuKernels;
use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What drives the blocks: a value per row, from noise level and token.
type Signal = Arc<dyn Fn(f32, i64) -> f32 + Send + Sync>;

/// Rows computed, per block and per kind of thing.
#[derive(Debug, Default)]
pub struct Counts {
    pub blocks: Mutex<Vec<usize>>,
    pub attention: Mutex<usize>,
    /// Whether the last block's attention panics.
    pub fails: AtomicBool,
}

struct ToyBlock {
    index: usize,
    kind: AttentionKind,
    counts: Arc<Counts>,
}

impl Debug for ToyBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.index)
    }
}

impl Block for ToyBlock {
    type Carried = Tensor<2>;
    type Shared = Tensor<2>;

    /// `x / 2 + signal`, the signal through an attention layer.
    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x: Tensor<2>, signal: Tensor<2>) -> Tensor<2> {
        self.counts.blocks.lock().expect("no panic")[self.index] += x.dims()[0];
        let branch = exec.attention_layer("attn", self.kind, signal, |_, signal: Tensor<2>| {
            let fails = self.index == 2 && self.counts.fails.load(Ordering::Relaxed);
            assert!(!fails, "asked to fail");
            *self.counts.attention.lock().expect("no panic") += signal.dims()[0];
            signal
        });
        x * 0.5 + branch
    }

    fn modulated_input(
        self: &Arc<Self>,
        _: &Exec<'_>,
        _: &Tensor<2>,
        signal: &Tensor<2>,
    ) -> Option<Tensor<3>> {
        Some(signal.clone().unsqueeze_dim(1))
    }
}

/// The model. Velocity: what `blocks` blocks make of the latent and the signal.
pub struct Toy {
    spec: ModelSpec,
    layout: Arc<ParamLayout>,
    blocks: Vec<Arc<ToyBlock>>,
    signal: Signal,
    pub counts: Arc<Counts>,
}

impl Debug for Toy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("toy")
    }
}

impl Toy {
    pub fn new(
        blocks: usize,
        side: [usize; 2],
        signal: impl Fn(f32, i64) -> f32 + Send + Sync + 'static,
    ) -> Self {
        let counts = Arc::new(Counts::default());
        *counts.blocks.lock().expect("no panic") = vec![0; blocks];
        let block = |index| {
            Arc::new(ToyBlock {
                index,
                kind: AttentionKind::Spatial,
                counts: counts.clone(),
            })
        };
        Self {
            spec: ModelSpec {
                architecture: "toy".into(),
                latent: LatentShape {
                    channels: 1,
                    frames: 1,
                    height: side[0],
                    width: side[1],
                },
                stacks: vec![("blocks".into(), blocks)],
                regions: vec![RegionKind::Attention],
                ..ModelSpec::default()
            },
            layout: Arc::default(),
            blocks: (0..blocks).map(block).collect(),
            signal: Arc::new(signal),
            counts,
        }
    }

    /// Rows computed by each block since the last call of this.
    pub fn take_rows(&self) -> Vec<usize> {
        let blocks = self.blocks.len();
        std::mem::replace(&mut self.counts.blocks.lock().expect("no panic"), vec![0; blocks])
    }

    /// Rows of attention computed since the last call of this.
    pub fn take_attention(&self) -> usize {
        std::mem::take(&mut self.counts.attention.lock().expect("no panic"))
    }
}

impl FlowModel for Toy {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    fn velocity(&self, exec: &Exec<'_>, input: ModelInput) -> Tensor<2> {
        let sigma = to_host(&input.sigma.into_dispatch());
        let tokens = read_ints(&input.condition.tokens.expect("tokens").into_dispatch());
        let [batch, values] = input.x.dims();
        let rows = sigma.iter().zip(tokens);
        let signal = rows.flat_map(|(sigma, token)| vec![(self.signal)(*sigma, token); values]);
        let signal = ComputeDevice::cpu().tensor(signal.collect(), [batch, values]);
        exec.stack("blocks", &self.blocks, input.x, signal)
    }
}

/// Rows of a call: the trajectory and its latent.
pub type Rows<'a> = &'a [(TrajectoryId, Vec<f32>)];

pub fn trajectory_id(sample: u64, conditional: bool) -> TrajectoryId {
    TrajectoryId { sample, conditional }
}

/// A rollout with the drivers of a plan. The token of a conditional trajectory is its sample, of the others -1.
pub struct Run {
    plan: Arc<Backends>,
    weights: Weights,
    pub skipped: Arc<AtomicU64>,
    pub steps: u32,
    pub iteration: u64,
}

/// Counts into a run's `skipped`.
pub type Counter = OnCall;

impl Run {
    pub fn new(steps: u32, accelerate: impl FnOnce(Backends, Box<dyn Fn() -> Counter>) -> Backends) -> Self {
        let skipped = Arc::new(AtomicU64::new(0));
        let count = skipped.clone();
        let counter = move || -> Counter {
            let count = count.clone();
            Box::new(move |counters| {
                count.fetch_add(counters.skipped(), Ordering::Relaxed);
            })
        };
        let plain = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
        Self {
            plan: Arc::new(accelerate(plain, Box::new(counter))),
            weights: Weights::init(Arc::default(), 0, &ComputeDevice::cpu()),
            skipped,
            steps,
            iteration: 0,
        }
    }

    pub fn plain(steps: u32) -> Self {
        Self::new(steps, |plan, _| plan)
    }

    /// The same run with other kernels.
    pub fn with_kernels(self, kernels: Arc<dyn Kernels>) -> Self {
        let plan = Backends {
            kernels,
            ..(*self.plan).clone()
        };
        Self {
            plan: Arc::new(plan),
            ..self
        }
    }

    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// The velocities of the rows at a step, at noise level `sigma`.
    pub fn call(
        &self,
        model: &dyn FlowModel,
        step: u32,
        sigma: f64,
        stochastic: bool,
        rows: Rows<'_>,
    ) -> Vec<Vec<f32>> {
        let device = ComputeDevice::cpu();
        let (batch, values) = (rows.len(), model.spec().latent.values());
        let call = CallContext {
            iteration: self.iteration,
            step,
            steps: self.steps,
            sigma: Some(sigma),
            stochastic,
            trajectories: rows.iter().map(|(trajectory, _)| *trajectory).collect(),
            ..CallContext::single(Stage::Rollout)
        };
        let token = |(trajectory, _): &(TrajectoryId, Vec<f32>)| {
            if trajectory.conditional {
                trajectory.sample as i64
            } else {
                -1
            }
        };
        let input = ModelInput {
            x: device.tensor(
                rows.iter().flat_map(|(_, x)| x.clone()).collect(),
                [batch, values],
            ),
            sigma: device.tensor(vec![sigma as f32; batch], [batch]),
            condition: Condition {
                tokens: Some(device.int_tensor(rows.iter().map(token).collect(), [batch, 1])),
                ..Condition::default()
            },
        };
        let rollout = InferencePass::new(&self.weights, self.plan.clone());
        let v: Tensor<2> = rollout.exec(call).velocity(model, input);
        to_host(&v.into_dispatch())
            .chunks(values)
            .map(<[f32]>::to_vec)
            .collect()
    }

    /// One deterministic row: the first value of its velocity.
    pub fn one(&self, model: &dyn FlowModel, step: u32, sigma: f64, x: f32) -> f32 {
        let row = (trajectory_id(1, true), vec![x; model.spec().latent.values()]);
        self.call(model, step, sigma, false, &[row])[0][0]
    }
}
