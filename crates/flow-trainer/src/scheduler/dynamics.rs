//! The four dynamics of one sampling step, reduced to the coefficients of a linear update.

use std::f64::consts::{FRAC_PI_2, PI};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{SchedulerError, SigmaGrid, TIMESTEPS_PER_SIGMA};

/// How a step moves a latent from `sigma` to `sigma_next`.
///
/// Formulas as in Flow-Factory `scheduler/flow_match_euler_discrete.py` (a0b2bc5, lines 306 to 422).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dynamics {
    /// The reverse SDE of Flow-GRPO (Liu et al. 2025, arXiv 2505.05470, equation 9).
    FlowSde,
    /// The SDE of DanceGRPO (Xue et al. 2025, arXiv 2505.07818): constant diffusion.
    DanceSde,
    /// Coefficients-preserving sampling (Wang and Yu 2025, arXiv 2509.05952): the noise put in replaces predicted
    /// noise, so the latent keeps the variance that its sigma promises.
    Cps,
    /// Euler's step of the probability-flow ODE. Deterministic, hence without a log-probability.
    Ode,
}

impl Dynamics {
    /// All dynamics, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::FlowSde, Self::DanceSde, Self::Cps, Self::Ode];

    /// The name used in configs.
    pub fn name(self) -> &'static str {
        match self {
            Self::FlowSde => "flow-sde",
            Self::DanceSde => "dance-sde",
            Self::Cps => "cps",
            Self::Ode => "ode",
        }
    }

    /// Whether a step with a positive noise level has a log-probability.
    pub fn is_stochastic(self) -> bool {
        self != Self::Ode
    }

    /// Coefficients of step `step` on `grid` at `noise_level` (eta).
    ///
    /// A noise level of 0 gives exactly Euler's step under every dynamics, and so does every noise level under
    /// [`Dynamics::Ode`]. Flow-SDE divides by `1 - sigma`; at `sigma = 1` it takes the grid's second sigma there, as
    /// the original does.
    ///
    /// # Errors
    /// If the step does not exist, or the noise level is negative, not finite, so extreme that a coefficient is not
    /// finite, or above 1 under CPS.
    pub fn coefficients(
        self,
        grid: &SigmaGrid,
        step: usize,
        noise_level: f64,
    ) -> Result<StepCoefficients, SchedulerError> {
        let sigma = grid.sigma(step)?;
        let (most, allowed) = match self {
            Self::Cps => (1.0, "0 to 1"),
            _ => (f64::MAX, "0 and above"),
        };
        if !(0.0..=most).contains(&noise_level) {
            return Err(SchedulerError::NoiseLevel {
                dynamics: self,
                step,
                level: noise_level,
                allowed,
            });
        }
        let sigma_next = grid.sigmas()[step + 1];
        let dt = sigma_next - sigma;
        if noise_level == 0.0 || self == Self::Ode {
            return Ok(StepCoefficients {
                step,
                sigma,
                sigma_next,
                dt,
                std_dev: 0.0,
                mean_x: 1.0,
                mean_v: dt,
                noise: 0.0,
                history: 0.0,
                log_prob: None,
            });
        }
        let (std_dev, mean_x, mean_v, noise) = match self {
            Self::FlowSde => {
                let sigma_below_one = if sigma == 1.0 { grid.sigmas()[1] } else { sigma };
                let std_dev = noise_level * (sigma / (1.0 - sigma_below_one)).sqrt();
                let (mean_x, mean_v) = drifted(std_dev * std_dev, sigma, dt);
                (std_dev, mean_x, mean_v, std_dev * (-dt).sqrt())
            }
            Self::DanceSde => {
                // x - x0 (1 - sigma) with x0 = x - sigma v is sigma x + sigma (1 - sigma) v: the same drift as
                // Flow-SDE's, with eta in the place of its diffusion.
                let (mean_x, mean_v) = drifted(noise_level * noise_level, sigma, dt);
                (noise_level, mean_x, mean_v, noise_level * (-dt).sqrt())
            }
            Self::Cps => {
                let std_dev = sigma_next * libm::sin(noise_level * FRAC_PI_2);
                // x0 (1 - sigma') + x1 kept with x0 = x - sigma v and x1 = x + (1 - sigma) v.
                let kept = sigma_next * libm::cos(noise_level * FRAC_PI_2);
                let data = 1.0 - sigma_next;
                (std_dev, data + kept, (1.0 - sigma) * kept - sigma * data, std_dev)
            }
            Self::Ode => unreachable!("returned above"),
        };
        let log_prob = match self {
            Self::Cps => LogProbCoefficients {
                scale: 1.0,
                offset: 0.0,
            },
            _ => LogProbCoefficients {
                scale: 1.0 / (2.0 * noise * noise),
                offset: -libm::log(noise) - 0.5 * libm::log(2.0 * PI),
            },
        };
        // CPS adds no noise at the last step, whose sigma_next is 0.
        let log_prob = (sigma_next > 0.0 || self != Self::Cps).then_some(log_prob);
        let numbers = [
            mean_x,
            mean_v,
            noise,
            log_prob.map_or(0.0, |l| l.scale + l.offset.abs()),
        ];
        if numbers.iter().any(|number| !number.is_finite()) {
            let allowed = "values whose squares are neither 0 nor infinite";
            return Err(SchedulerError::NoiseLevel {
                dynamics: self,
                step,
                level: noise_level,
                allowed,
            });
        }
        Ok(StepCoefficients {
            step,
            sigma,
            sigma_next,
            dt,
            std_dev,
            mean_x,
            mean_v,
            noise,
            history: 0.0,
            log_prob,
        })
    }
}

/// `(mean_x, mean_v)` of an SDE with squared diffusion `diffusion2`.
fn drifted(diffusion2: f64, sigma: f64, dt: f64) -> (f64, f64) {
    let drift = diffusion2 / (2.0 * sigma);
    (1.0 + drift * dt, (1.0 + drift * (1.0 - sigma)) * dt)
}

impl fmt::Display for Dynamics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dynamics {
    type Err = String;

    /// Reads a config name, or the original's spelling of it (`Flow-SDE`).
    fn from_str(text: &str) -> Result<Self, String> {
        let plain = text.to_ascii_lowercase().replace('_', "-");
        Self::ALL
            .into_iter()
            .find(|dynamics| dynamics.name() == plain)
            .ok_or_else(|| {
                let known = Self::ALL.map(Self::name).join(", ");
                format!("unknown dynamics `{text}`; known are {known}")
            })
    }
}

/// Coefficients of the log-probability of a step, an average over elements:
/// `log_prob = scale * average(-(x_next - mean)^2) + offset`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LogProbCoefficients {
    /// `1 / (2 noise^2)`; 1 under CPS, whose original leaves the constants out.
    pub scale: f64,
    /// `-ln(noise) - ln(2 pi) / 2`; 0 under CPS.
    pub offset: f64,
}

/// Everything a device needs to take one step. Dimensionless, f64; device code rounds each to f32 once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepCoefficients {
    /// Number of the step in its trajectory, from 0.
    pub step: usize,
    /// Sigma the step starts from.
    pub sigma: f64,
    /// Sigma the step arrives at.
    pub sigma_next: f64,
    /// `sigma_next - sigma`, negative.
    pub dt: f64,
    /// `std_dev_t` of the originals: the diffusion for Flow-SDE and Dance-SDE (without `sqrt(-dt)`), the standard
    /// deviation of the noise put in for CPS, 0 for a deterministic step.
    pub std_dev: f64,
    /// Coefficient of the latent in the mean.
    pub mean_x: f64,
    /// Coefficient of the model's output in the mean.
    pub mean_v: f64,
    /// Standard deviation of `x_next` around the mean; 0 for a deterministic step.
    pub noise: f64,
    /// Coefficient of the image that the step before pointed at, `x - sigma v`, in the next latent; 0 but for steps of a solver of second
    /// order.
    pub history: f64,
    /// The log-probability's coefficients, `None` where the step is deterministic and has none.
    pub log_prob: Option<LogProbCoefficients>,
}

impl StepCoefficients {
    /// What the model is called with, `1000 * sigma`.
    pub fn timestep(&self) -> f64 {
        self.sigma * TIMESTEPS_PER_SIGMA
    }

    /// Whether the step draws noise.
    pub fn is_stochastic(&self) -> bool {
        self.noise > 0.0
    }

    /// `q = sqrt(-dt) * std_dev`, by which GRPO-Guard scales a log-ratio so that its variance does not depend on the
    /// step. Source: Flow-Factory `trainers/grpo.py:501`; Wang et al. 2025 (arXiv 2510.22319).
    pub fn guard_scale(&self) -> f64 {
        (-self.dt).sqrt() * self.std_dev
    }

    /// How long the gradient of the log-probability with respect to the model's output is, per length of the step's standard normal noise
    /// and times the number of elements: `d log p / d v = (next - mean) 2 scale mean_v / N`, so `2 scale noise |mean_v|`. 0 for a
    /// deterministic step.
    ///
    /// Under the SDEs it is `sqrt(-dt) / s + s sqrt(-dt) (1 - sigma) / (2 sigma)` with the diffusion `s`, which Flash-GRPO divides a loss
    /// by (arXiv 2605.15980; `coe` of its `wan2_1_pipeline_with_logprob2.py`, 4211013, is the inverse).
    pub fn velocity_gradient(&self) -> f64 {
        self.log_prob.map_or(0.0, |log_prob| {
            2.0 * log_prob.scale * self.noise * self.mean_v.abs()
        })
    }
}
