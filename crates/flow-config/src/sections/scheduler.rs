//! `[scheduler]`: the path from noise to image: dynamics, steps, noise, sigma shift, and which steps are random.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// `[scheduler]`: the sampling path of rollouts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerConfig {
    /// How a step goes from one sigma to the next.
    pub dynamics: Dynamics,
    /// Number of denoising steps, T; sigmas before the shift are `linspace(1, sigma_min, T)`, then 0.
    #[schemars(range(min = 1, max = 1000))]
    pub steps: usize,
    /// The last sigma before the shift; without it `1/T`, as FLUX.1 has it. SD3's scheduler takes the shifted sigma of its last
    /// training step, `s/1000 / (1 + (s - 1)/1000)`.
    #[schemars(range(min = 0.000_001, max = 1.0))]
    pub sigma_min: Option<f64>,
    /// The last sigma behind the shift: all are stretched so that it is this one, and the first stays 1. Qwen-Image has 0.02.
    #[schemars(range(min = 0.000_001, max = 0.999_999))]
    pub shift_terminal: Option<f64>,
    /// Strength of the noise, eta: one value for all steps or one per step. Steps outside `window` have 0. For
    /// `cps` at most 1.
    pub noise_level: NoiseLevel,
    /// Where along the path sigmas are dense.
    pub shift: Shift,
    /// Which steps are random and trained.
    pub window: Window,
    /// How the steps behind the window are taken.
    // Written where it is another, as records of runs from before it could be chosen have it.
    #[serde(skip_serializing_if = "AfterWindow::is_default")]
    pub after_window: AfterWindow,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            dynamics: Dynamics::FlowSde,
            steps: 10,
            sigma_min: None,
            shift_terminal: None,
            noise_level: NoiseLevel::Constant(0.7),
            shift: Shift::default(),
            window: Window::default(),
            after_window: AfterWindow::default(),
        }
    }
}

impl SchedulerConfig {
    /// The noise level of step `step`, not regarding the window; `None` past the end of a list.
    pub fn noise_level_at(&self, step: usize) -> Option<f64> {
        match &self.noise_level {
            NoiseLevel::Constant(value) => Some(*value),
            NoiseLevel::PerStep(values) => values.get(step).copied(),
        }
    }
}

impl SchedulerConfig {
    /// The most deterministic steps in a row that a trajectory can have: those outside the window, and all of them under
    /// `ode`. For windows that are drawn or move this is the bound at which they leave all other steps together.
    pub fn longest_deterministic_run(&self) -> usize {
        if self.dynamics == Dynamics::Ode {
            return self.steps;
        }
        let random = |step: usize| match &self.window {
            Window::List(list) => list.steps.contains(&step),
            _ => step + 1 < self.steps,
        };
        match &self.window {
            Window::Random(random) => self.steps.saturating_sub(random.count),
            Window::Sliding(sliding) => self.steps.saturating_sub(sliding.size),
            Window::Contiguous(contiguous) => self.steps.saturating_sub(contiguous.size),
            Window::All(_) | Window::List(_) => {
                // A step of the window whose noise level is 0 is as certain as one outside it.
                let certain = |step: &usize| !random(*step) || self.noise_level_at(*step) == Some(0.0);
                let runs = (0..self.steps).map(|first| (first..self.steps).take_while(certain).count());
                runs.max().unwrap_or(0)
            }
        }
    }
}

/// How a step goes from one sigma to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dynamics {
    /// The SDE of Flow-GRPO (Liu et al. 2025, arXiv 2505.05470).
    #[default]
    FlowSde,
    /// The SDE of DanceGRPO (Xue et al. 2025, arXiv 2505.07818).
    DanceSde,
    /// Coefficients-preserving sampling (Wang and Yu 2025, arXiv 2509.05952): no excess noise.
    Cps,
    /// Deterministic Euler steps. Has no log-probability, so no coupled algorithm can train on it.
    Ode,
}

/// Strength of the noise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum NoiseLevel {
    /// One value for all steps.
    Constant(#[schemars(range(min = 0.0, max = 10.0))] f64),
    /// One value per step.
    PerStep(#[schemars(inner(range(min = 0.0, max = 10.0)), length(min = 1, max = 1000))] Vec<f64>),
}

/// `[scheduler.shift]`: where along the path sigmas are dense: `sigma <- s sigma / (1 + (s - 1) sigma)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum Shift {
    /// A given `s`.
    Static(StaticShift),
    /// `s = exp(mu)`, with `mu` linear in the number of image tokens (diffusers' `calculate_shift`).
    Dynamic(DynamicShift),
}

impl Default for Shift {
    fn default() -> Self {
        Self::Static(StaticShift::default())
    }
}

/// `kind = "static"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StaticShift {
    /// The shift `s`; 1 leaves sigmas as they are, SD3 uses 3.
    #[schemars(range(min = 0.01, max = 100.0))]
    pub value: f64,
}

impl Default for StaticShift {
    fn default() -> Self {
        Self { value: 1.0 }
    }
}

/// `kind = "dynamic"`: `mu` is `base_shift` at `base_tokens` image tokens and `max_shift` at `max_tokens`, and goes on
/// linearly outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DynamicShift {
    /// Image tokens at which `mu = base_shift`; below `max_tokens`.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub base_tokens: usize,
    /// Image tokens at which `mu = max_shift`.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_tokens: usize,
    /// `mu` at `base_tokens`.
    #[schemars(range(min = -10.0, max = 10.0))]
    pub base_shift: f64,
    /// `mu` at `max_tokens`.
    #[schemars(range(min = -10.0, max = 10.0))]
    pub max_shift: f64,
}

impl Default for DynamicShift {
    fn default() -> Self {
        Self {
            base_tokens: 256,
            max_tokens: 4096,
            base_shift: 0.5,
            max_shift: 1.15,
        }
    }
}

/// `[scheduler.window]`: which steps are random (SDE) and trained; the others are deterministic. Steps count from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum Window {
    /// Every step but the last, `0 ..= steps - 2`, as in Flow-Factory: the last step ends at sigma 0.
    All(AllWindow),
    /// The given steps.
    List(ListWindow),
    /// Some steps, drawn anew in each iteration.
    Random(RandomWindow),
    /// Consecutive steps that move along the path as training goes on (MixGRPO, Li et al. 2025, arXiv 2507.21802).
    Sliding(SlidingWindow),
    /// Consecutive steps whose place is drawn anew in each iteration (Flow-GRPO-Fast, flow_grpo's `sde_window_size`).
    Contiguous(ContiguousWindow),
}

impl Default for Window {
    fn default() -> Self {
        Self::All(AllWindow {})
    }
}

/// `[scheduler.after_window]`: how the steps behind the last random one are taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum AfterWindow {
    /// Those of the grid, by Euler's method.
    Euler(EulerAfterWindow),
    /// Fewer, by DPM-Solver++ of second order (Lu et al. 2022, arXiv 2211.01095): MixGRPO-Flash (Li et al. 2025, arXiv 2507.21802).
    DpmSolver(DpmSolverAfterWindow),
}

impl Default for AfterWindow {
    fn default() -> Self {
        Self::Euler(EulerAfterWindow {})
    }
}

impl AfterWindow {
    /// Whether it is the default, which is not written.
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// `kind = "euler"`; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EulerAfterWindow {}

/// `kind = "dpm-solver"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DpmSolverAfterWindow {
    /// Of the points of the grid from the last random step on, the share that is left. Behind a window that ends with step 3 of 25 there
    /// are 22, of which 0.4 are 8: 7 steps in the place of 21.
    #[schemars(range(min = 0.01, max = 1.0))]
    pub share: f64,
}

impl Default for DpmSolverAfterWindow {
    fn default() -> Self {
        Self { share: 0.4 }
    }
}

/// `kind = "all"`; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AllWindow {}

/// `kind = "list"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListWindow {
    /// The steps: each below `scheduler.steps`, none twice.
    #[schemars(inner(range(max = 999)), length(min = 1, max = 1000), extend("uniqueItems" = true))]
    pub steps: Vec<usize>,
}

/// `kind = "random"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RandomWindow {
    /// How many steps are drawn per iteration, without replacement.
    #[schemars(range(min = 1, max = 1000))]
    pub count: usize,
    /// Steps to draw from; without it, every step but the last.
    #[schemars(inner(range(max = 999)), length(min = 1, max = 1000), extend("uniqueItems" = true))]
    pub from: Option<Vec<usize>>,
    /// Seed of the draw; the iteration is added to the stream, so that each iteration draws anew.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
}

impl Default for RandomWindow {
    fn default() -> Self {
        Self {
            count: 1,
            from: None,
            seed: 42,
        }
    }
}

/// `kind = "sliding"`: the window begins at step 0 and moves by `stride` after `hold` iterations; its last position is
/// moved back so that it ends before the last step, then it begins anew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SlidingWindow {
    /// Steps in the window; at most `scheduler.steps - 1`.
    #[schemars(range(min = 1, max = 1000))]
    pub size: usize,
    /// Steps by which it moves.
    #[schemars(range(min = 1, max = 1000))]
    pub stride: usize,
    /// Iterations it stays in one place; in the first, if they fall.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub hold: usize,
    /// How these iterations fall along the path.
    pub hold_decay: HoldDecay,
    /// Iterations in the last place with `hold_decay = "linear"`; without it a quarter of `hold`, at least 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub hold_least: Option<usize>,
    /// Step behind which they fall with `hold_decay = "exponential"`.
    #[schemars(range(max = 1000))]
    pub decay_from: usize,
    /// How fast they fall then, per step.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub decay_rate: f64,
}

/// How the iterations that a sliding window stays in one place fall along the path (MixGRPO, `grpo_states.py`); `c` is the step at which
/// it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HoldDecay {
    /// Not at all.
    #[default]
    None,
    /// From `hold` in a straight line to `hold_least` at the last step but one.
    Linear,
    /// `hold exp(-decay_rate (c - decay_from))` behind `decay_from`, rounded up.
    Exponential,
}

impl Default for SlidingWindow {
    fn default() -> Self {
        Self {
            size: 4,
            stride: 1,
            hold: 25,
            hold_decay: HoldDecay::None,
            hold_least: None,
            decay_from: 13,
            decay_rate: 0.1,
        }
    }
}

/// `kind = "contiguous"`: `size` steps in a row. Where they begin is drawn anew in each iteration, every place in `range` as often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ContiguousWindow {
    /// Steps in the window.
    #[schemars(range(min = 1, max = 1000))]
    pub size: usize,
    /// `[lo, hi]`: the window lies among the steps `lo ..= hi - 1`; without it among those of the first half, as in flow_grpo.
    #[schemars(inner(range(max = 1000)))]
    pub range: Option<[usize; 2]>,
    /// Seed of the draw; the iteration is added to the stream, so that each iteration draws anew.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
}

impl Default for ContiguousWindow {
    fn default() -> Self {
        Self {
            size: 2,
            range: None,
            seed: 42,
        }
    }
}

impl ContiguousWindow {
    /// The steps among which the window lies, of a path of `steps`.
    pub fn within(&self, steps: usize) -> Range<usize> {
        self.range.map_or(0..steps / 2, |[lo, hi]| lo..hi)
    }
}
