//! Noise levels of a pipeline's sampler, as diffusers 0.42.1 makes them
//! (`schedulers/scheduling_flow_match_euler_discrete.py`, `schedulers/scheduling_unipc_multistep.py`), in f64.

use crate::PipelineError;
use flow_diffusers::{Family, FlowMatchEuler, Scheduler, ShiftKind, UniPc};

/// The noise levels of `steps` steps of a sample of `tokens` tokens: one for each step, falling from 1, and a final 0.
///
/// # Errors
/// [`PipelineError::Setting`] for no steps, or more than the model was trained with.
pub fn sigmas(
    family: Family,
    scheduler: &Scheduler,
    steps: usize,
    tokens: usize,
) -> Result<Vec<f64>, PipelineError> {
    let most = match scheduler {
        Scheduler::FlowMatchEuler(euler) => euler.num_train_timesteps,
        Scheduler::UniPc(unipc) => unipc.num_train_timesteps,
    };
    if steps == 0 || steps > most {
        return Err(PipelineError::Setting {
            setting: "steps",
            problem: format!("is {steps}; it must be between 1 and {most}"),
        });
    }
    let mut sigmas = match scheduler {
        Scheduler::FlowMatchEuler(euler) => euler_sigmas(family, euler, steps, tokens),
        Scheduler::UniPc(unipc) => unipc_sigmas(unipc, steps),
    };
    sigmas.push(0.0);
    Ok(sigmas)
}

/// `count` numbers from `first` to `last`, with both.
fn evenly(first: f64, last: f64, count: usize) -> Vec<f64> {
    let step = |at: usize| match count {
        1 => first,
        _ => first + (last - first) * at as f64 / (count - 1) as f64,
    };
    (0..count).map(step).collect()
}

/// `s σ / (1 + (s - 1) σ)`.
fn shifted(sigma: f64, shift: f64) -> f64 {
    shift * sigma / (1.0 + (shift - 1.0) * sigma)
}

fn euler_sigmas(family: Family, euler: &FlowMatchEuler, steps: usize, tokens: usize) -> Vec<f64> {
    let trained = euler.num_train_timesteps as f64;
    // FLUX and Qwen-Image give the levels that are shifted; without them the scheduler takes its own, which end at its least,
    // and that has been shifted once.
    let given = matches!(family, Family::Flux | Family::QwenImage);
    let least = match (given, euler.dynamic) {
        (true, _) => 1.0 / steps as f64,
        (false, Some(_)) => 1.0 / trained,
        (false, None) => shifted(1.0 / trained, euler.shift),
    };
    let shift = |sigma: f64| match euler.dynamic {
        None => shifted(sigma, euler.shift),
        Some(dynamic) => {
            let mu = dynamic.mu(tokens);
            let factor = match dynamic.kind {
                ShiftKind::Exponential => mu.exp(),
                ShiftKind::Linear => mu,
            };
            factor / (factor + (1.0 / sigma - 1.0))
        }
    };
    let mut sigmas: Vec<f64> = evenly(1.0, least, steps).into_iter().map(shift).collect();
    if let Some(terminal) = euler.shift_terminal {
        // A single level is 1, which nothing stretches.
        let last = 1.0 - sigmas[steps - 1];
        if last > 0.0 {
            let stretch = (1.0 - terminal) / last;
            for sigma in &mut sigmas {
                *sigma = 1.0 - (1.0 - *sigma) * stretch;
            }
        }
    }
    sigmas
}

fn unipc_sigmas(unipc: &UniPc, steps: usize) -> Vec<f64> {
    let least = 1.0 / unipc.num_train_timesteps as f64;
    let mut sigmas = evenly(1.0, least, steps + 1);
    sigmas.truncate(steps);
    for sigma in &mut sigmas {
        *sigma = shifted(*sigma, unipc.flow_shift);
    }
    // A first level of 1 has no signal, whose logarithm the solver takes.
    if (sigmas[0] - 1.0).abs() < 1e-6 {
        sigmas[0] -= 1e-6;
    }
    sigmas
}
