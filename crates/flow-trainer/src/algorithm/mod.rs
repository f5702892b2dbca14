//! Reinforcement learning algorithms, behind one trait.
//!
//! The loop in [`crate::trainer`] knows none of them: it rolls out, asks for a loss at each position, steps the
//! optimizer. A new algorithm is a file here, or anywhere, that registers itself: settings, rules, loss.

mod arrangement;
mod awm;
mod crd;
mod dgpo;
mod dmd2;
mod dpo;
mod dppo;
mod fake;
mod forward;
mod gardo;
mod grpo;
mod guard;
mod idle_keys;
mod network;
mod nft;
mod offline_dpo;
mod opd;
mod records;
mod reference;
mod registry;
mod rewarded;
mod row_times;
mod rows;
mod sft;
mod slow;
mod step_weights;
mod tdm;
mod tdm_r1;
mod teacher;
mod times;

pub use arrangement::{RolledOut, RowSet};
pub use awm::{Awm, AwmSettings, ErrorWeighting};
pub use crd::{
    Baseline, Centre, CentreWeights, Crd, CrdLoss, CrdOldConfig, CrdSamplingConfig, CrdSettings,
    CrdTimesConfig,
};
pub use dgpo::{Dgpo, DgpoCopyConfig, DgpoSettings, DgpoTimesConfig};
pub use dmd2::{Dmd2, Dmd2Settings};
pub use dpo::{Dpo, DpoSettings, DpoTimesConfig};
pub use dppo::{Dppo, MaskKind};
pub use fake::FakeScoreConfig;
pub use gardo::{Gardo, GardoSettings, GateConfig, RenewalConfig, Suspects};
pub use grpo::Grpo;
pub use guard::GrpoGuard;
pub use network::{NetworkPlan, NetworkRole};
pub use nft::{AdvantageMode, Nft, NftSettings};
pub use offline_dpo::{OfflineDpo, OfflineDpoSettings};
pub use opd::{LossTarget, Opd, OpdSettings, TeacherConfig};
pub use records::RecordKind;
pub use reference::{KlConfig, KlKind, ReferenceWeights};
pub use registry::{AlgorithmContext, AlgorithmFactory, AlgorithmRegistry};
pub use rewarded::{Memory, RewardedRows, RowWeights};
pub use row_times::{RowTimeSampling, RowTimesConfig};
pub use rows::StepRows;
pub use sft::{Sft, SftSettings};
pub use slow::{Moment, SamplingWeights, SlowCopy};
pub use step_weights::StepWeights;
pub use tdm::{QueryDistribution, QueryInterval, Tdm, TdmDistance, TdmSettings};
pub use tdm_r1::{SurrogateConfig, TdmR1, TdmR1FakeScoreConfig, TdmR1Settings};
pub use teacher::{TEACHER_KEY, Taught, Teacher, TeacherSource, teacher_of};
pub use times::{OldPolicyConfig, TimeSampling, TrainTimestepsConfig};

use crate::audit::ReplayedStep;
use crate::error::TrainError;
use crate::policy::{CallSite, Policy};
use crate::rollout::Trajectories;
use crate::scheduler::{Schedule, StepCoefficients};
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_core::device::ComputeDevice;
use flow_core::{InferencePass, Kernels, RawTensor, TrainingPass};

/// Where on a trajectory a loss is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossPoint {
    /// At a recorded step, by its place among the records: a stochastic one, or one that [`Algorithm::keeps_step`] asks for.
    Recorded(usize),
    /// On the straight path between image and fresh noise.
    Time {
        /// Noise level in `(0, 1]`.
        sigma: f64,
        /// Number of the position in its iteration, the address of its noise.
        draw: u32,
    },
    /// On the same path, each row at a time of its own, which the algorithm draws.
    EachRow {
        /// Seed of the times.
        seed: u64,
        /// Number of the position in its iteration, the address of its times and noise.
        draw: u32,
    },
    /// At a recorded step, with noise of the position's own.
    Step {
        /// Its place among the records.
        index: usize,
        /// Address of the noise.
        draw: u32,
    },
}

/// What a loss is computed from.
#[derive(Debug)]
pub struct LossContext<'a, 'w> {
    /// The pass to differentiate.
    pub pass: &'a TrainingPass<'w>,
    /// The trained weights, not differentiated.
    pub current: &'a InferencePass<'w>,
    /// The sampling weights, not differentiated. Where rollouts are an update behind (`sampling.staleness`) these are the weights before the
    /// update: all that is known there of the policy that sampled is what the rollout recorded.
    pub sampling: &'a InferencePass<'w>,
    /// The reference weights, if the algorithm asked for some.
    pub reference: Option<&'a InferencePass<'w>>,
    /// The slower copy [`SlowCopy::Old`], if the algorithm keeps it ([`Algorithm::keeps`]).
    pub old: Option<&'a InferencePass<'w>>,
    /// The fake score's weights, not differentiated, if the algorithm has one ([`NetworkRole::FakeScore`]).
    pub fake: Option<&'a InferencePass<'w>>,
    /// Those of the surrogate of the reward, if the algorithm has one ([`NetworkRole::Surrogate`]).
    pub surrogate: Option<&'a InferencePass<'w>>,
    /// Those of its slower copy, if that is kept ([`NetworkPlan::keeps_slow`]).
    pub surrogate_slow: Option<&'a InferencePass<'w>>,
    /// The teachers of the micro-batch's rows, if the algorithm has some ([`Algorithm::teachers`]).
    pub teachers: Vec<Taught<'w>>,
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
    /// Gates of [`Algorithm::weigh`], `[B]`: how much each row is pulled towards the reference; none if it gave none.
    pub gates: Option<Tensor<1>>,
    /// Noise for [`LossPoint::Time`], [`LossPoint::EachRow`] and [`LossPoint::Step`], `[B, N]`; drawn by the loop.
    pub noise: Option<RawTensor>,
    /// What [`Algorithm::before`] gave for this micro-batch and position, `[B]`.
    pub before: Option<RawTensor>,
    /// What [`Algorithm::compare`] gave for the rows of this micro-batch and position, each `[B]`.
    pub compared: Vec<RawTensor>,
    /// Stage, iteration and number of steps.
    pub site: CallSite,
}

/// A loss and what is worth logging about it.
#[derive(Debug)]
pub struct PointLoss {
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

    /// The records of the data set from which it learns instead of rollouts: rewards then score evaluations alone. The rows of a record
    /// stand beside one another in a micro-batch. None: it learns from rollouts.
    fn records(&self) -> Option<RecordKind> {
        None
    }

    /// Which weights sample, after `steps` optimizer steps of the run.
    fn sampling_weights(&self, _steps: u64) -> SamplingWeights {
        SamplingWeights::Current
    }

    /// Which reference it needs.
    fn reference(&self) -> Option<ReferenceWeights>;

    /// Passes over one rollout.
    fn inner_epochs(&self) -> usize;

    /// Bound on advantages, applied by the loop: `±`.
    fn advantage_clip(&self) -> f32;

    /// Where the loss of each micro-batch is taken in this pass.
    fn positions(&self, schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<LossPoint>;

    /// The loss at one position.
    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss;

    /// Whether a slower copy of the weights is kept: to sample with, or to compare with.
    fn keeps(&self, copy: SlowCopy) -> bool {
        self.sampling_weights(0) == SamplingWeights::Slow(copy)
    }

    /// How a slower copy follows at a moment: the share of it that survives, `copy <- share copy + (1 - share) current`. None leaves it as
    /// it is.
    fn survives(&self, _copy: SlowCopy, _moment: Moment) -> Option<f64> {
        None
    }

    /// The algorithm's own advantages, in the place of those of `[advantage]`, and its gates: which images the loss pulls towards the
    /// reference. Both come from the rewards of all images of an iteration. `None` leaves `[advantage]` in force. Called once in each
    /// iteration, before the first optimizer step.
    ///
    /// # Errors
    /// If it needs a reward that is not there.
    fn weigh(
        &self,
        _rows: &RewardedRows<'_>,
        _memory: &mut Memory,
    ) -> Result<Option<RowWeights>, TrainError> {
        Ok(None)
    }

    /// Whether the trained weights replace this slower copy after an iteration; `logged` has the mean of each term of its losses by
    /// name. Called once in each iteration, after [`weigh`](Self::weigh).
    fn renews(&self, _copy: SlowCopy, _logged: &dyn Fn(&str) -> Option<f64>, _memory: &mut Memory) -> bool {
        false
    }

    /// Guidance scales of its calls of the model beside that of the rollout: where one is not 1, conditions have the empty prompt.
    fn guidance_scales(&self) -> Vec<f64> {
        Vec::new()
    }

    /// The frozen models that it learns from. With several each prompt names its own ([`TEACHER_KEY`]).
    fn teachers(&self) -> &[Teacher] {
        &[]
    }

    /// How a network of this part learns, if there is one: trained beside the student, from the same weights, with an optimizer of its own.
    /// It takes its steps before each of the student's.
    fn network(&self, _role: NetworkRole) -> Option<NetworkPlan> {
        None
    }

    /// Where such a network's loss is taken in its step number `turn` before a step of the student, of the student's positions.
    fn network_positions(
        &self,
        _role: NetworkRole,
        _positions: &[LossPoint],
        _turn: usize,
    ) -> Vec<LossPoint> {
        Vec::new()
    }

    /// Its loss at one position: its weights are those of [`LossContext::pass`], the student's [`LossContext::current`].
    fn network_loss(
        &self,
        _role: NetworkRole,
        context: &LossContext<'_, '_>,
        position: LossPoint,
    ) -> PointLoss {
        self.loss(context, position)
    }

    /// The share of its slower copy that survives its optimizer step number `steps` of the run, counted from 1: `copy <- share copy +
    /// (1 - share) network`. None leaves the copy as it is.
    fn network_survives(&self, _role: NetworkRole, _steps: u64) -> Option<f64> {
        None
    }

    /// Whether a rollout records a step for the loss: one with a log-probability, unless the algorithm says otherwise.
    fn keeps_step(&self, step: &StepCoefficients) -> bool {
        step.log_prob.is_some()
    }

    /// Whether images of a group have the same noise at drawn times.
    fn shares_noise(&self) -> bool {
        false
    }

    /// Whether losses read [`LossContext::before`]. Costs a pass of [`before`](Self::before) over all loss terms.
    fn looks_before(&self) -> bool {
        false
    }

    /// One number per row, `[B]`, computed at every micro-batch and position before the first optimizer step of a pass, for
    /// instance the log-probability under the weights that sampled. Not differentiated.
    fn before(&self, _context: &LossContext<'_, '_>, _position: LossPoint) -> Option<RawTensor> {
        None
    }

    /// Whether losses of the student, or of the network of a part, read [`LossContext::compared`]. Costs a pass of
    /// [`row_numbers`](Self::row_numbers) before each of its optimizer steps.
    fn compares_rows(&self, _role: Option<NetworkRole>) -> bool {
        false
    }

    /// Some numbers per row, each `[B]`, under the weights from which the optimizer step is taken. Not differentiated.
    fn row_numbers(&self, _context: &LossContext<'_, '_>, _position: LossPoint) -> Vec<RawTensor> {
        Vec::new()
    }

    /// What becomes of these numbers where all rows of an optimizer step are looked at together: others, each with one value per row.
    fn compare(&self, _rows: &StepRows<'_>) -> Vec<Vec<f32>> {
        Vec::new()
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

    fn records(&self) -> Option<RecordKind> {
        (**self).records()
    }

    fn sampling_weights(&self, steps: u64) -> SamplingWeights {
        (**self).sampling_weights(steps)
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        (**self).reference()
    }

    fn inner_epochs(&self) -> usize {
        (**self).inner_epochs()
    }

    fn advantage_clip(&self) -> f32 {
        (**self).advantage_clip()
    }

    fn positions(&self, schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<LossPoint> {
        (**self).positions(schedule, seed, iteration, pass)
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        (**self).loss(context, position)
    }

    fn keeps(&self, copy: SlowCopy) -> bool {
        (**self).keeps(copy)
    }

    fn survives(&self, copy: SlowCopy, moment: Moment) -> Option<f64> {
        (**self).survives(copy, moment)
    }

    fn weigh(&self, rows: &RewardedRows<'_>, memory: &mut Memory) -> Result<Option<RowWeights>, TrainError> {
        (**self).weigh(rows, memory)
    }

    fn renews(&self, copy: SlowCopy, logged: &dyn Fn(&str) -> Option<f64>, memory: &mut Memory) -> bool {
        (**self).renews(copy, logged, memory)
    }

    fn guidance_scales(&self) -> Vec<f64> {
        (**self).guidance_scales()
    }

    fn teachers(&self) -> &[Teacher] {
        (**self).teachers()
    }

    fn network(&self, role: NetworkRole) -> Option<NetworkPlan> {
        (**self).network(role)
    }

    fn network_positions(&self, role: NetworkRole, positions: &[LossPoint], turn: usize) -> Vec<LossPoint> {
        (**self).network_positions(role, positions, turn)
    }

    fn network_loss(
        &self,
        role: NetworkRole,
        context: &LossContext<'_, '_>,
        position: LossPoint,
    ) -> PointLoss {
        (**self).network_loss(role, context, position)
    }

    fn network_survives(&self, role: NetworkRole, steps: u64) -> Option<f64> {
        (**self).network_survives(role, steps)
    }

    fn keeps_step(&self, step: &StepCoefficients) -> bool {
        (**self).keeps_step(step)
    }

    fn shares_noise(&self) -> bool {
        (**self).shares_noise()
    }

    fn looks_before(&self) -> bool {
        (**self).looks_before()
    }

    fn before(&self, context: &LossContext<'_, '_>, position: LossPoint) -> Option<RawTensor> {
        (**self).before(context, position)
    }

    fn compares_rows(&self, role: Option<NetworkRole>) -> bool {
        (**self).compares_rows(role)
    }

    fn row_numbers(&self, context: &LossContext<'_, '_>, position: LossPoint) -> Vec<RawTensor> {
        (**self).row_numbers(context, position)
    }

    fn compare(&self, rows: &StepRows<'_>) -> Vec<Vec<f32>> {
        (**self).compare(rows)
    }

    fn arrange(&self, rollout: &RolledOut<'_>) -> Option<Vec<Vec<RowSet>>> {
        (**self).arrange(rollout)
    }
}

/// Mean over the rows of `[B]`, in a fixed order.
pub(crate) fn mean_over_rows(values_b: Tensor<1>) -> Tensor<1> {
    values_b.mean_dim(0)
}
