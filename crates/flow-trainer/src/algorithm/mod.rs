//! Reinforcement learning algorithms, behind one trait.
//!
//! The loop in [`crate::session`] knows none of them: it rolls out, asks for a loss at each position, steps the
//! optimizer. A new algorithm is a file here, or anywhere, that registers itself: settings, rules, loss.

mod arrangement;
mod awm;
mod dpo;
mod dppo;
mod forward;
mod grpo;
mod guard;
mod nft;
mod reference;
mod registry;
mod step_weights;
mod times;

pub use arrangement::{RolledOut, RowSet};
pub use awm::{Awm, AwmSettings, ErrorWeighting};
pub use dpo::{Dpo, DpoSettings, DpoTimesConfig};
pub use dppo::{Dppo, MaskKind};
pub use grpo::Grpo;
pub use guard::GrpoGuard;
pub use nft::{AdvantageMode, Nft, NftSettings};
pub use reference::{KlConfig, KlKind, ReferenceWeights};
pub use registry::{AlgorithmContext, AlgorithmFactory, AlgorithmRegistry};
pub use step_weights::StepWeights;
pub use times::{OldPolicyConfig, TimeSampling, TrainTimestepsConfig};

use crate::audit::ReplayedStep;
use crate::policy::{CallSite, Policy};
use crate::rollout::Trajectories;
use crate::scheduler::Schedule;
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_core::device::ComputeDevice;
use flow_core::{InferencePass, Kernels, RawTensor, TrainingPass};

/// Which weights a rollout samples with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingWeights {
    /// The trained ones.
    Current,
    /// A slower copy, updated after each iteration.
    Old,
}

/// Where on a trajectory a loss is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Position {
    /// At a recorded stochastic step, by its place among the records.
    Recorded(usize),
    /// On the straight path between image and fresh noise.
    Time {
        /// Noise level in `(0, 1]`.
        sigma: f64,
        /// Number of the position in its iteration, the address of its noise.
        draw: u32,
    },
}

/// What a loss is computed from.
#[derive(Debug)]
pub struct LossContext<'a, 'w> {
    /// The pass to differentiate.
    pub pass: &'a TrainingPass<'w>,
    /// The sampling weights, not differentiated.
    pub sampling: &'a InferencePass<'w>,
    /// The reference weights, if the algorithm asked for some.
    pub reference: Option<&'a InferencePass<'w>>,
    /// The slower copy, if the algorithm keeps one ([`Algorithm::keeps_old`]).
    pub old: Option<&'a InferencePass<'w>>,
    /// Model and guidance.
    pub policy: &'a Policy,
    /// Fused operations.
    pub kernels: &'a dyn Kernels,
    /// Where tensors live.
    pub device: &'a ComputeDevice,
    /// The micro-batch, composed as in the rollout, or as the algorithm arranged it.
    pub batch: &'a Trajectories,
    /// One advantage per row, `[B]`.
    pub advantages: Tensor<1>,
    /// Noise for [`Position::Time`], `[B, N]`; drawn by the loop.
    pub noise: Option<RawTensor>,
    /// What [`Algorithm::before`] gave for this micro-batch and position, `[B]`.
    pub before: Option<RawTensor>,
    /// Stage, iteration and number of steps.
    pub site: CallSite,
}

/// A loss and what is worth logging about it.
#[derive(Debug)]
pub struct UnitLoss {
    /// Mean over the micro-batch, `[1]`.
    pub loss: Tensor<1>,
    /// What it computed again of the recorded step, if the algorithm is coupled: the on-policy audit compares it with the
    /// rollout.
    pub replayed: Option<ReplayedStep>,
    /// Other terms by name; their means are logged.
    pub terms: Vec<(&'static str, RawTensor)>,
}

/// A reinforcement learning algorithm for flow-matching models.
pub trait Algorithm: Sync + std::fmt::Debug + Send {
    /// Name in configs and logs.
    fn name(&self) -> &str;

    /// How its loss depends on the rollout; decides which accelerators are safe.
    fn paradigm(&self) -> Paradigm;

    /// Which weights sample.
    fn sampling_weights(&self) -> SamplingWeights {
        SamplingWeights::Current
    }

    /// Which reference it needs.
    fn reference(&self) -> Option<ReferenceWeights>;

    /// The guidance under which it calls its reference, if that is not the policy's: conditions have the empty branch for it.
    fn reference_guidance(&self) -> Option<f64> {
        None
    }

    /// Passes over one rollout.
    fn inner_epochs(&self) -> usize;

    /// Bound on advantages, applied by the loop: `±`.
    fn advantage_clip(&self) -> f32;

    /// Where the loss of each micro-batch is taken in this pass.
    fn positions(&self, schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<Position>;

    /// The loss at one position.
    fn loss(&self, context: &LossContext<'_, '_>, position: Position) -> UnitLoss;

    /// Share of the old sampling weights that survives iteration `iteration`, counted from 1, if there are old weights.
    fn old_policy_decay(&self, _iteration: u64) -> Option<f64> {
        None
    }

    /// Whether a slower copy of the weights is kept: to sample with, or to compare with.
    fn keeps_old(&self) -> bool {
        self.sampling_weights() == SamplingWeights::Old
    }

    /// Whether losses read [`LossContext::before`]. Costs a pass of [`before`](Self::before) over all units.
    fn looks_before(&self) -> bool {
        false
    }

    /// One number per row, `[B]`, computed at every micro-batch and position before the first optimizer step of a pass, for
    /// instance the log-probability under the weights that sampled. Not differentiated.
    fn before(&self, _context: &LossContext<'_, '_>, _position: Position) -> Option<RawTensor> {
        None
    }

    /// The rows that each loss sees: for each optimizer step of the pass its micro-batches. None leaves the micro-batches of the
    /// rollout as they are. Rows that are arranged anew have no recorded steps.
    fn arrange(&self, _rollout: &RolledOut<'_>) -> Option<Vec<Vec<RowSet>>> {
        None
    }
}

impl Algorithm for Box<dyn Algorithm> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn paradigm(&self) -> Paradigm {
        (**self).paradigm()
    }

    fn sampling_weights(&self) -> SamplingWeights {
        (**self).sampling_weights()
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        (**self).reference()
    }

    fn reference_guidance(&self) -> Option<f64> {
        (**self).reference_guidance()
    }

    fn inner_epochs(&self) -> usize {
        (**self).inner_epochs()
    }

    fn advantage_clip(&self) -> f32 {
        (**self).advantage_clip()
    }

    fn positions(&self, schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<Position> {
        (**self).positions(schedule, seed, iteration, pass)
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: Position) -> UnitLoss {
        (**self).loss(context, position)
    }

    fn old_policy_decay(&self, iteration: u64) -> Option<f64> {
        (**self).old_policy_decay(iteration)
    }

    fn keeps_old(&self) -> bool {
        (**self).keeps_old()
    }

    fn looks_before(&self) -> bool {
        (**self).looks_before()
    }

    fn before(&self, context: &LossContext<'_, '_>, position: Position) -> Option<RawTensor> {
        (**self).before(context, position)
    }

    fn arrange(&self, rollout: &RolledOut<'_>) -> Option<Vec<Vec<RowSet>>> {
        (**self).arrange(rollout)
    }
}

/// Mean over the rows of `[B]`, in a fixed order.
pub(crate) fn mean_over_rows(values_b: Tensor<1>) -> Tensor<1> {
    values_b.mean_dim(0)
}
