//! What can be wrong with a schedule, said in the terms of the person who wrote it.

/// An impossible schedule. Every message names the value, what is allowed and a way out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulerError {
    /// A schedule of zero steps.
    #[error("the number of sampling steps is 0; at least 1 is needed")]
    NoSteps,
    /// A shift that is not a positive number.
    #[error("sigma shift {shift} is not a positive finite number; 1 means no shift, SD3 uses 3")]
    Shift {
        /// The value given.
        shift: f64,
    },
    /// Dynamic shift whose line through two points is not defined.
    #[error(
        "dynamic shift needs two different sequence lengths and finite shifts; got {base_shift} at {base_tokens} \
         tokens and {max_shift} at {max_tokens} tokens"
    )]
    DynamicShift {
        /// Sequence length of the first point.
        base_tokens: usize,
        /// Sequence length of the second point.
        max_tokens: usize,
        /// Shift at the first point.
        base_shift: f64,
        /// Shift at the second point.
        max_shift: f64,
    },
    /// Sigmas that are not a descending grid from at most 1 to 0.
    #[error(
        "sigma {index} is {value}: the sigmas must fall strictly from at most 1, stay above 0, and end with a 0 that \
         is listed once"
    )]
    Sigmas {
        /// Position of the first offending value.
        index: usize,
        /// The offending value.
        value: f64,
    },
    /// A noise level outside the range of the dynamics.
    #[error("noise level {level} at step {step} is outside the range of {dynamics}, {allowed}")]
    NoiseLevel {
        /// The dynamics asked for.
        dynamics: super::Dynamics,
        /// The step the value is for.
        step: usize,
        /// The value given.
        level: f64,
        /// The range in words.
        allowed: &'static str,
    },
    /// A list of noise levels of another length than the grid.
    #[error(
        "{given} noise levels are listed, but there are {steps} sampling steps; list one per step or give one number"
    )]
    NoiseLevelCount {
        /// Length of the list.
        given: usize,
        /// Sampling steps.
        steps: usize,
    },
    /// A step that does not exist.
    #[error("step {step} does not exist: with {steps} sampling steps they are numbered 0 to {}", steps - 1)]
    Step {
        /// The step asked for.
        step: usize,
        /// Sampling steps.
        steps: usize,
    },
    /// A step that is listed twice.
    #[error("step {step} is listed twice in the SDE window")]
    DuplicateStep {
        /// The step.
        step: usize,
    },
    /// A window without a step.
    #[error("the SDE window is empty: {why}")]
    EmptyWindow {
        /// Which of the window's numbers makes it so, and how to mend it.
        why: String,
    },
    /// A window larger than what it selects from.
    #[error(
        "the SDE window asks for {wanted} of {available} candidate steps; lower it to at most {available}"
    )]
    WindowTooLarge {
        /// Steps wanted.
        wanted: usize,
        /// Steps to select from.
        available: usize,
    },
    /// A step that may be selected for training but has no log-probability.
    #[error("step {step} can be selected by the SDE window but has no log-probability: {why}")]
    NoLogProb {
        /// The step.
        step: usize,
        /// The reason, and how to mend it.
        why: &'static str,
    },
    /// A share of the points behind the window that leaves none, or makes more.
    #[error(
        "the share of points behind the window is {share}; it must be above 0 and at most 1, MixGRPO-Flash has 0.4"
    )]
    ShareAfterWindow {
        /// The value given.
        share: f64,
    },
    /// Host vectors of different lengths.
    #[error("{what} has {given} elements where {expected} are expected")]
    Length {
        /// The vector.
        what: &'static str,
        /// Its length.
        given: usize,
        /// The length of the latent.
        expected: usize,
    },
}
