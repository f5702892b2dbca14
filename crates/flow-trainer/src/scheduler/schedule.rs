//! A complete sampling schedule: grid, dynamics, noise levels and window, checked once and then asked per iteration.

use serde::{Deserialize, Serialize};

use super::after_window::AfterWindow;
use super::{
    Dynamics, SchedulerError, SdeWindow, SdeWindowPlan, SigmaEnds, SigmaGrid, SigmaShift, StepCoefficients,
};

/// The noise level (eta) of stochastic steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NoiseLevel {
    /// The same at every step.
    Constant(f64),
    /// One per sampling step; those outside the window are checked but not used.
    PerStep(Vec<f64>),
}

/// What makes a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduleOptions {
    /// Sampling steps (model calls per trajectory).
    pub steps: usize,
    /// Where the sigma grid ends.
    #[serde(default)]
    pub ends: SigmaEnds,
    /// Shift of the sigma grid.
    pub shift: SigmaShift,
    /// Dynamics of the steps in the window; the others are Euler steps of the ODE, unless
    /// [`with_solver_after_window`](Schedule::with_solver_after_window) says otherwise.
    pub dynamics: Dynamics,
    /// Noise level of the steps in the window.
    pub noise_level: NoiseLevel,
    /// Which steps are stochastic. Without meaning, and not looked at, under [`Dynamics::Ode`].
    pub window: SdeWindow,
    /// Decides random draws of the window.
    pub seed: u64,
}

/// A schedule in which every step that can be trained has a log-probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    grid: SigmaGrid,
    dynamics: Dynamics,
    window: Option<SdeWindowPlan>,
    euler: Vec<StepCoefficients>,
    stochastic: Vec<StepCoefficients>,
    pub(super) after_window: Option<AfterWindow>,
}

impl Schedule {
    /// Checks the options against each other and computes the coefficients of every step.
    ///
    /// # Errors
    /// If the grid, a noise level or the window is impossible, or the window can select a step without
    /// log-probability (noise level 0, or the last step under CPS).
    pub fn new(options: &ScheduleOptions) -> Result<Self, SchedulerError> {
        let grid = SigmaGrid::between(options.steps, options.ends, options.shift)?;
        Self::on_grid(grid, options)
    }

    /// As [`Schedule::new`], on a given grid; `steps`, `ends` and `shift` of the options are not looked at.
    ///
    /// # Errors
    /// As [`Schedule::new`].
    pub fn on_grid(grid: SigmaGrid, options: &ScheduleOptions) -> Result<Self, SchedulerError> {
        let steps = grid.steps();
        let level = |step: usize| match &options.noise_level {
            NoiseLevel::Constant(level) => *level,
            NoiseLevel::PerStep(levels) => levels[step],
        };
        if let NoiseLevel::PerStep(levels) = &options.noise_level
            && levels.len() != steps
        {
            return Err(SchedulerError::NoiseLevelCount {
                given: levels.len(),
                steps,
            });
        }
        let euler: Vec<_> = (0..steps)
            .map(|step| Dynamics::Ode.coefficients(&grid, step, 0.0))
            .collect::<Result<_, _>>()?;
        let stochastic: Vec<_> = (0..steps)
            .map(|step| options.dynamics.coefficients(&grid, step, level(step)))
            .collect::<Result<_, _>>()?;
        let window = match options.dynamics {
            Dynamics::Ode => None,
            _ => Some(options.window.plan(steps, options.seed)?),
        };
        let candidates = window.as_ref().map_or(&[][..], SdeWindowPlan::candidates);
        if let Some(&step) = candidates
            .iter()
            .find(|&&step| stochastic[step].log_prob.is_none())
        {
            let why = if level(step) == 0.0 {
                "its noise level is 0; raise it, or leave the step out of the window"
            } else {
                "cps adds no noise at the last step; leave it out of the window"
            };
            return Err(SchedulerError::NoLogProb { step, why });
        }
        Ok(Self {
            grid,
            dynamics: options.dynamics,
            window,
            euler,
            stochastic,
            after_window: None,
        })
    }

    /// Coefficients of a rollout's steps at an iteration: the chosen dynamics inside the window, Euler outside, or behind it the solver of
    /// [`with_solver_after_window`](Self::with_solver_after_window).
    pub fn steps_for(&self, iteration: u64) -> Vec<StepCoefficients> {
        let window = self.trained_steps(iteration);
        self.steps_random_at(&window, &window)
    }

    /// Coefficients of a rollout's steps of which these, of the ascending ones of the `window`, are stochastic.
    pub(crate) fn steps_random_at(&self, random: &[usize], window: &[usize]) -> Vec<StepCoefficients> {
        let mut steps = self.euler.clone();
        for step in random {
            steps[*step] = self.stochastic[*step];
        }
        if let (Some(after), Some(last)) = (self.after_window, window.last()) {
            steps.truncate(last + 1);
            steps.extend(after.steps(*last, self.grid.sigmas()));
        }
        steps
    }

    /// The steps of an iteration that have a log-probability, ascending; none under [`Dynamics::Ode`].
    pub fn trained_steps(&self, iteration: u64) -> Vec<usize> {
        self.window
            .as_ref()
            .map_or_else(Vec::new, |window| window.steps_for(iteration))
    }

    /// The place, among so many trained steps, of the one at which the group with this number in the run is random, where each group has
    /// a step of its own; none under [`Dynamics::Ode`].
    pub(crate) fn place_of_group(&self, group: u64, steps: usize) -> Option<usize> {
        let window = self.window.as_ref()?;
        Some(window.place_of_group(group, steps))
    }

    /// How many steps [`Schedule::trained_steps`] gives at every iteration.
    pub fn trained_steps_per_trajectory(&self) -> usize {
        self.window.as_ref().map_or(0, SdeWindowPlan::size)
    }

    /// Deterministic steps on the same grid, for evaluation.
    pub fn ode_steps(&self) -> &[StepCoefficients] {
        &self.euler
    }

    /// The sigma grid.
    pub fn grid(&self) -> &SigmaGrid {
        &self.grid
    }

    /// The dynamics inside the window.
    pub fn dynamics(&self) -> Dynamics {
        self.dynamics
    }
}
