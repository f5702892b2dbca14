//! Sampling trajectories with fixed weights, and keeping of them what a loss will read.
//!
//! Legend: `B` samples of a micro-batch, `N` values of one latent.

use crate::policy::{CallSite, Conditions, Policy};
use crate::scheduler::StepCoefficients;
use burn::tensor::Tensor;
use flow_core::device::ComputeDevice;
use flow_core::ops::{SdeOutputs, SdeStep};
use flow_core::rng::{Purpose, Stream};
use flow_core::{InferencePass, Kernels, Noise, RawTensor, Stage, tensors::plain};
use std::sync::Arc;

/// One step of a micro-batch, as the loss will replay it.
#[derive(Clone, Debug)]
pub struct StepRecord {
    /// The step.
    pub step: StepCoefficients,
    /// Latents before, `[B, N]`.
    pub x: RawTensor,
    /// Latents after, as stored, `[B, N]`.
    pub x_next: RawTensor,
    /// Mean of their distribution, `[B, N]`; of a deterministic step the latents after it.
    pub mean: RawTensor,
    /// Log-probability, `[B]`; of a deterministic step 0.
    pub log_prob: RawTensor,
}

impl StepRecord {
    /// Of `step` from latents `x`, which gave `done`.
    fn new(step: &StepCoefficients, x: RawTensor, done: SdeOutputs) -> Self {
        Self {
            step: *step,
            x,
            // Without noise the two are one, and take memory once.
            mean: match step.is_stochastic() {
                true => done.mean,
                false => done.x_next.clone(),
            },
            x_next: done.x_next,
            log_prob: done.log_prob,
        }
    }
}

/// A finished micro-batch.
#[derive(Clone, Debug)]
pub struct Trajectories {
    /// Sample ids, one per row.
    pub samples: Vec<u64>,
    /// What they were asked for.
    pub conditions: Conditions,
    /// The steps that were recorded, in order: the stochastic ones, or those that were asked for.
    pub records: Vec<StepRecord>,
    /// The steps that are trained of their groups, of which these samples may have recorded a part; weights of steps are relative to them.
    pub trained: Vec<StepCoefficients>,
    /// Final latents, `[B, N]`.
    pub clean: RawTensor,
    /// Number of their size among those of the run.
    pub size: usize,
}

/// What a sampler needs besides weights.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// Model and guidance.
    pub policy: Policy,
    /// Fused operations, the same as in training.
    pub kernels: Arc<dyn Kernels>,
    /// Where tensors live.
    pub device: ComputeDevice,
    /// Seed of all noise.
    pub seed: u64,
    /// Number of the policy's size among those of the run; 0 is its own.
    pub size: usize,
}

/// A step that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Stepped<'a> {
    /// Steps done.
    pub done: usize,
    /// Its guided velocity, `[B, N]`.
    pub velocity: &'a RawTensor,
}

/// Which random numbers a trajectory starts from and adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoiseSource {
    /// A rollout's: new in every iteration.
    Rollout,
    /// An evaluation's: the same each time.
    Evaluation,
}

impl NoiseSource {
    /// The streams of first latents and of the noise of steps.
    fn purposes(self) -> (Purpose, Purpose) {
        match self {
            Self::Rollout => (Purpose::InitialNoise, Purpose::SdeNoise),
            Self::Evaluation => (Purpose::Evaluation, Purpose::Evaluation),
        }
    }
}

/// Images that are wanted, and the way to them.
#[derive(Clone, Debug)]
pub struct SampleRequest<'a> {
    /// Stage and iteration; the step is filled in.
    pub site: CallSite,
    /// Which noise.
    pub source: NoiseSource,
    /// Ids of the samples, which address their noise, `[B]`.
    pub samples: &'a [u64],
    /// Ids that address their first latents, `[B]`: those of the samples, or the same id for samples of one condition that
    /// start from the same latent. Such samples have their trajectory in common up to the first stochastic step.
    pub starts: &'a [u64],
    /// Their conditions, `[B, …]`.
    pub conditions: Conditions,
    /// The steps, from noise to image.
    pub steps: &'a [StepCoefficients],
}

/// `[B, 5]`, the row `a, b, c, k, offset` of [`SamplerOps::sde_step`](flow_core::ops::SamplerOps::sde_step) repeated. `c` is that of
/// noise, or of what a step has in its place.
pub fn coefficient_rows(device: &ComputeDevice, step: &StepCoefficients, batch: usize) -> RawTensor {
    let log_prob = step.log_prob.as_ref();
    let added = if step.history == 0.0 {
        step.noise
    } else {
        step.history
    };
    let row = [
        step.mean_x,
        step.mean_v,
        added,
        log_prob.map_or(0.0, |coefficients| coefficients.scale),
        log_prob.map_or(0.0, |coefficients| coefficients.offset),
    ];
    repeated(device, row, batch)
}

fn repeated(device: &ComputeDevice, row: [f64; 5], batch: usize) -> RawTensor {
    device.plain(row.map(|value| value as f32).repeat(batch), &[batch, row.len()])
}

impl Sampler {
    /// Takes the samples through the steps. Of a rollout those with a log-probability are recorded.
    ///
    /// `on_step` is called after each step.
    pub fn run(
        &self,
        rollout: &InferencePass<'_>,
        request: SampleRequest<'_>,
        on_step: impl FnMut(Stepped<'_>),
    ) -> Trajectories {
        let keeps = |step: &StepCoefficients| step.log_prob.is_some();
        self.run_recording(rollout, request, (&[], keeps), on_step)
    }

    /// As [`run`](Self::run), recording the steps of a rollout that `keeps` says, with samples that part one after the other: `noise_ids`
    /// has for each step the ids that address its noise, `[B]`. Samples whose first latents and ids agree up to a step have their
    /// trajectory in common up to it. The ids of a step without an entry are those of the samples.
    pub fn run_recording(
        &self,
        rollout: &InferencePass<'_>,
        request: SampleRequest<'_>,
        (noise_ids, keeps): (&[Vec<u64>], impl Fn(&StepCoefficients) -> bool),
        mut on_step: impl FnMut(Stepped<'_>),
    ) -> Trajectories {
        let SampleRequest {
            site,
            source,
            samples,
            starts,
            conditions,
            steps,
        } = request;
        let batch = samples.len();
        let values = self.policy.model.spec().latent.values();
        let (initial, added) = source.purposes();
        let mut x = self.noise(initial, starts, 0, values);
        // The noise of steps that have none: made once, on the device.
        let mut still = None;
        // The image that the step before pointed at, where a step reads it: a solver of second order.
        let mut image: Option<RawTensor> = None;
        // One number per sample, the same for those whose latents are the same bits; none once all may differ.
        let mut alike = Some(starts);
        let mut records = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let site = CallSite {
                step: index as u32,
                stochastic: step.is_stochastic(),
                sigma: Some(step.sigma),
                ..site
            };
            let call = self.policy.call(site, samples);
            let sigma = self.device.tensor(vec![step.sigma as f32; batch], [batch]);
            let exec = rollout.exec(call);
            let own = noise_ids.get(index).map_or(samples, Vec::as_slice);
            let latents = alike;
            if step.is_stochastic() {
                // Noise of their own makes latents differ from the next step on.
                alike = (alike.is_some() && own != samples).then_some(own);
            }
            let v = self.policy.velocity_of(
                &exec,
                Tensor::from_dispatch(x.clone()),
                sigma,
                &conditions,
                latents,
            );
            let v = plain(&v.into_dispatch());
            let coefficients = coefficient_rows(&self.device, step, batch);
            let taken = SdeStep {
                x: &x,
                v: &v,
                coefficients: &coefficients,
            };
            let sampler = self.kernels.ops().sampler;
            let done = if step.is_stochastic() {
                let noise = self.addressed(added, own, index as u32 + 1, values);
                sampler.sde_step_drawn(taken, &noise, &self.device)
            } else {
                let zeros = still.get_or_insert_with(|| self.device.zeros(&[batch, values]));
                let before = image.as_ref().filter(|_| step.history != 0.0);
                sampler.sde_step(taken, before.unwrap_or(zeros))
            };
            let is_read = steps.get(index + 1).is_some_and(|next| next.history != 0.0);
            image = is_read.then(|| {
                let zeros = still.get_or_insert_with(|| self.device.zeros(&[batch, values]));
                self.image((&x, &v), (step.sigma, batch), zeros)
            });
            let x_next = done.x_next.clone();
            if site.stage == Stage::Rollout && keeps(step) {
                records.push(StepRecord::new(step, x, done));
            }
            x = x_next;
            on_step(Stepped {
                done: index + 1,
                velocity: &v,
            });
        }
        Trajectories {
            samples: samples.to_vec(),
            conditions,
            trained: records.iter().map(|record| record.step).collect(),
            records,
            clean: x,
            size: self.size,
        }
    }

    /// The images that velocities `v` at latents `x` of a noise level point at, all `[B, N]`.
    fn image(
        &self,
        (x, v): (&RawTensor, &RawTensor),
        (sigma, batch): (f64, usize),
        zeros: &RawTensor,
    ) -> RawTensor {
        let coefficients = &repeated(&self.device, [1.0, -sigma, 0.0, 0.0, 0.0], batch);
        let sampler = self.kernels.ops().sampler;
        sampler.sde_step(SdeStep { x, v, coefficients }, zeros).x_next
    }

    /// Standard normal values, `[B, N]`, each row addressed by its sample and the step.
    pub fn noise(&self, purpose: Purpose, samples: &[u64], step: u32, values: usize) -> RawTensor {
        let noise = self.addressed(purpose, samples, step, values);
        self.kernels.ops().sampler.noise(&noise, &self.device)
    }

    fn addressed<'a>(&self, purpose: Purpose, samples: &'a [u64], step: u32, values: usize) -> Noise<'a> {
        Noise {
            stream: Stream::new(self.seed, purpose),
            samples,
            step,
            values,
        }
    }
}
