//! One step of one sample on the host, in f64: the oracle for device kernels, and the sampler of tests.

use super::{SchedulerError, StepCoefficients};

/// The outcome of a step. Vectors have one value per element of the latent.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceStep {
    /// `mean_x * x + mean_v * v`.
    pub mean: Vec<f64>,
    /// The next latent as it is stored.
    pub next: Vec<f64>,
    /// Log-probability of `next` as stored, averaged over elements; `None` for a deterministic step.
    pub log_prob: Option<f64>,
}

/// Takes one step of one sample.
///
/// `round` maps a value to the nearest one of the storage dtype. It is applied to the next latent before the
/// log-probability is taken, so that a replay of the stored latent sees the value that the rollout saw.
///
/// # Errors
/// If `v` or `noise` has another length than `x`.
pub fn reference_step(
    coefficients: &StepCoefficients,
    x: &[f64],
    v: &[f64],
    noise: &[f64],
    round: impl Fn(f64) -> f64,
) -> Result<ReferenceStep, SchedulerError> {
    same_length("the noise", noise, x)?;
    let mean = mean_of(coefficients, x, v)?;
    let next: Vec<f64> = mean
        .iter()
        .zip(noise)
        .map(|(m, eps)| round(m + coefficients.noise * eps))
        .collect();
    let log_prob = reference_log_prob(coefficients, x, v, &next)?;
    Ok(ReferenceStep { mean, next, log_prob })
}

/// Log-probability of arriving at `next`, averaged over elements; `None` for a deterministic step.
///
/// # Errors
/// If `v` or `next` has another length than `x`.
pub fn reference_log_prob(
    coefficients: &StepCoefficients,
    x: &[f64],
    v: &[f64],
    next: &[f64],
) -> Result<Option<f64>, SchedulerError> {
    same_length("the next latent", next, x)?;
    let mean = mean_of(coefficients, x, v)?;
    let squares: f64 = next.iter().zip(&mean).map(|(n, m)| (n - m) * (n - m)).sum();
    Ok(coefficients
        .log_prob
        .map(|log_prob| log_prob.offset - log_prob.scale * squares / x.len() as f64))
}

/// Gradient of [`reference_log_prob`] with respect to `v`; `next` is a constant, as in the losses.
///
/// # Errors
/// If `v` or `next` has another length than `x`.
pub fn reference_log_prob_gradient(
    coefficients: &StepCoefficients,
    x: &[f64],
    v: &[f64],
    next: &[f64],
) -> Result<Option<Vec<f64>>, SchedulerError> {
    same_length("the next latent", next, x)?;
    let mean = mean_of(coefficients, x, v)?;
    Ok(coefficients.log_prob.map(|log_prob| {
        let factor = 2.0 * log_prob.scale * coefficients.mean_v / x.len() as f64;
        next.iter().zip(&mean).map(|(n, m)| factor * (n - m)).collect()
    }))
}

fn mean_of(coefficients: &StepCoefficients, x: &[f64], v: &[f64]) -> Result<Vec<f64>, SchedulerError> {
    same_length("the model's output", v, x)?;
    Ok(x.iter()
        .zip(v)
        .map(|(x, v)| coefficients.mean_x * x + coefficients.mean_v * v)
        .collect())
}

fn same_length(what: &'static str, given: &[f64], x: &[f64]) -> Result<(), SchedulerError> {
    if given.len() == x.len() {
        Ok(())
    } else {
        Err(SchedulerError::Length {
            what,
            given: given.len(),
            expected: x.len(),
        })
    }
}
