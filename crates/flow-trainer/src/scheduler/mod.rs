//! Sampling schedules of flow matching: the sigma grid, the dynamics of one step and the choice of stochastic steps.
//!
//! Everything here is host arithmetic in f64. A step is reduced to a handful of numbers, [`StepCoefficients`], so the
//! device code needs a single kernel for every dynamics:
//!
//! ```text
//! mean     = mean_x * x + mean_v * v
//! x_next   = mean + noise * eps                                  (then rounded to the storage dtype)
//! log_prob = log_prob.scale * average(-(x_next - mean)^2) + log_prob.offset
//! ```
//!
//! Conventions: `sigma` runs from 1 (noise) to 0 (data), `x = (1 - sigma) * data + sigma * noise`, `v = noise - data`,
//! and a model is called with `timestep = 1000 * sigma`. The log-probability is an average over the elements of a
//! sample, not a sum; the usual clip ranges of about 1e-4 rely on that.

mod after_window;
mod config;
mod dynamics;
mod error;
mod grid;
mod reference;
mod schedule;
mod window;

pub use dynamics::{Dynamics, LogProbCoefficients, StepCoefficients};
pub use error::SchedulerError;
pub use grid::{DynamicShift, SigmaEnds, SigmaGrid, SigmaShift, TIMESTEPS_PER_SIGMA};
pub use reference::{ReferenceStep, reference_log_prob, reference_log_prob_gradient, reference_step};
pub use schedule::{NoiseLevel, Schedule, ScheduleOptions};
pub use window::{Hold, SdeWindow, SdeWindowPlan, WindowEnd};
