//! What a call is for: stage, step, and whose latents its batch rows are.

use std::sync::Arc;

/// The part of an iteration a call belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Sampling trajectories to learn from.
    Rollout,
    /// Computing a loss.
    Training,
    /// Sampling pictures to look at and score.
    Evaluation,
}

/// Identity of one batch row, the key of any state kept between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrajectoryId {
    /// The sample, unique within a run.
    pub sample: u64,
    /// Whether the row carries the condition, or is the unconditional branch of classifier-free guidance.
    pub conditional: bool,
}

/// Describes one call of a model. Host data for bookkeeping; nothing of it enters the arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub struct CallContext {
    /// The stage.
    pub stage: Stage,
    /// Iteration of the run.
    pub iteration: u64,
    /// Step of the sampler.
    pub step: u32,
    /// Steps of the sampler.
    pub steps: u32,
    /// Noise level of all rows in `[0, 1]`, for rules that depend on it; absent where rows differ or it is not known.
    /// Models read [`ModelInput::sigma`](crate::ModelInput::sigma).
    pub sigma: Option<f64>,
    /// Whether the step is stochastic, so that a coupled loss has a term for it.
    pub stochastic: bool,
    /// One entry per batch row; empty where nothing is kept between steps.
    pub trajectories: Arc<[TrajectoryId]>,
}

impl CallContext {
    /// A call outside of any trajectory, for instance in pretraining.
    pub fn single(stage: Stage) -> Self {
        Self {
            stage,
            iteration: 0,
            step: 0,
            steps: 1,
            sigma: None,
            stochastic: false,
            trajectories: Arc::from([]),
        }
    }
}

/// What a row of a call is computed from, as host data. Absent where whoever opened the call does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RowKey {
    /// Bytes that determine the condition, for instance its tokens.
    pub condition: Option<Arc<[u8]>>,
    /// The bits of the noise level in f32.
    pub sigma: Option<u32>,
    /// Rows of the call with the same number hold the same latent, bit for bit.
    pub latent: Option<u64>,
}
