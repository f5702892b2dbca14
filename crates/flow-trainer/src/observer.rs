//! Who watches a run: progress bars, plain lines, tests.

use flow_report::Interval;

/// The part of an iteration under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Sampling candidates, of which some are chosen.
    Exploration,
    /// Sampling.
    Rollout,
    /// Waiting for rewards that are not in yet.
    Rewards,
    /// Loss, backward, optimizer.
    Update,
    /// Sampling and scoring held-out prompts.
    Evaluation,
    /// Flow-matching pretraining.
    Pretraining,
}

/// What an iteration came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IterationSummary {
    /// Iterations done.
    pub done: u64,
    /// Iterations in all.
    pub total: u64,
    /// Mean weighted reward of the rollout; not a number where there was none.
    pub reward: f64,
    /// Mean loss.
    pub loss: f64,
    /// Gradient norm of the last optimizer step.
    pub gradient_norm: f64,
    /// `max |ratio - 1|` before the first optimizer step, if audited.
    pub max_ratio_deviation: Option<f32>,
    /// Distance from the reference, if the loss has one.
    pub kl: Option<f64>,
    /// Share of rows in which the clip decides, if the algorithm clips.
    pub clip_fraction: Option<f64>,
    /// Learning rate of the last optimizer step.
    pub learning_rate: f64,
    /// Images sampled, or read of records.
    pub images: usize,
    /// Seconds.
    pub wall_s: f64,
}

/// Called by a run as it goes, from whichever thread has something to say. All methods do nothing unless overridden.
pub trait Observer: Send {
    /// A phase begins, of `units` steps.
    fn phase(&mut self, _phase: Phase, _units: usize) {}
    /// Some more units of the current phase are done.
    fn advance(&mut self, _units: usize) {}
    /// An iteration is done.
    fn iteration(&mut self, _summary: &IterationSummary) {}
    /// An evaluation is done: the name of each reward, and its mean with the 95 % interval.
    fn evaluation(&mut self, _step: u64, _rewards: &[(String, Interval)]) {}
    /// Something a person should know.
    fn notice(&mut self, _text: &str) {}
    /// Whether to finish the iteration, save and stop.
    fn interrupted(&self) -> bool {
        false
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}
