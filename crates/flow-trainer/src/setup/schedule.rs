//! Sigma grid, dynamics, windows, averages.

use crate::ema::EmaPlan;
use crate::error::TrainError;
use crate::scheduler::{Dynamics, NoiseLevel, Schedule, ScheduleOptions, SdeWindow, SigmaShift};
use flow_config::{AfterWindow, Config};

/// The schedule of rollouts; `tokens` is the model's sequence length.
///
/// # Errors
/// A window or noise level that does not fit the steps.
pub fn schedule(config: &Config, tokens: usize) -> Result<Schedule, TrainError> {
    let schedule = Schedule::new(&ScheduleOptions::from_config(&config.scheduler, tokens))?;
    match &config.scheduler.after_window {
        AfterWindow::Euler(_) => Ok(schedule),
        AfterWindow::DpmSolver(solver) => {
            let shift = SigmaShift::from_config(&config.scheduler.shift, tokens);
            Ok(schedule.with_solver_after_window(solver.share, shift)?)
        }
    }
}

/// The sigma at the start of each step of rollouts; empty if the config has no schedule.
pub fn step_sigmas(config: &Config, tokens: usize) -> Vec<f64> {
    let grid = schedule(config, tokens).map(|schedule| schedule.grid().clone());
    grid.map_or(Vec::new(), |grid| grid.sigmas()[..grid.steps()].to_vec())
}

/// The schedule of evaluations: deterministic.
///
/// # Errors
/// If there is no step.
pub fn deterministic(config: &Config, tokens: usize) -> Result<Schedule, TrainError> {
    euler(config, tokens, config.eval_steps())
}

/// `steps` Euler steps of the ODE between the ends of the config's grid, under its shift.
///
/// # Errors
/// If there is no step.
pub(super) fn euler(config: &Config, tokens: usize, steps: usize) -> Result<Schedule, TrainError> {
    let options = ScheduleOptions {
        steps,
        ends: (&config.scheduler).into(),
        shift: SigmaShift::from_config(&config.scheduler.shift, tokens),
        dynamics: Dynamics::Ode,
        noise_level: NoiseLevel::Constant(0.0),
        window: SdeWindow::All,
        seed: 0,
    };
    Ok(Schedule::new(&options)?)
}

/// The moving average, if the config keeps one.
///
/// # Errors
/// A constant outside its range.
pub fn average(config: &Config) -> Result<Option<EmaPlan>, TrainError> {
    let plan = || EmaPlan::new((&config.ema.schedule).into(), config.ema.update_every as u64);
    config
        .ema
        .enabled
        .then(plan)
        .transpose()
        .map_err(TrainError::setting)
}
