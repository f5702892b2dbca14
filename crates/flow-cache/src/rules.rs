//! The rules that every policy obeys, and the moment that they are asked about.

use flow_core::CallContext;

/// Where in a trajectory a call stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Step of the sampler, from 0.
    pub step: u32,
    /// Steps of the sampler.
    pub steps: u32,
    /// Noise level in `[0, 1]`; not a number where the call has none, so that every comparison with it fails.
    pub sigma: f64,
}

impl Moment {
    /// The moment of a call.
    pub fn of(call: &CallContext) -> Self {
        Self {
            step: call.step,
            steps: call.steps,
            sigma: call.sigma.unwrap_or(f64::NAN),
        }
    }

    /// The noise level on the scale of 1000 timesteps, on which published ranges are given; rounded to f32, as the
    /// timestep that a model is given, so that 0.1 is 100 and not a little more.
    pub fn timestep(&self) -> f64 {
        f64::from(1000.0 * self.sigma as f32)
    }
}

/// When a step is computed whatever the policy says. The default leaves everything to the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Steps at the start that are computed.
    pub warmup_steps: u32,
    /// Most steps in a row that are answered; 0 for any number.
    pub max_consecutive: u32,
    /// Whether the last step is computed.
    pub compute_last: bool,
    /// Whether stochastic steps are computed, and what is kept is dropped there.
    pub outside_sde_window: bool,
    /// Whether the rows of a call that are of the same branch decide together, by the mean over all of them, as the
    /// originals do. A sample's picture then depends on its batch-mates; for comparison only.
    pub per_batch: bool,
}

impl Rules {
    /// Whether a trajectory that was answered `answered` times in a row must be computed now.
    pub fn force(&self, moment: &Moment, answered: u32) -> bool {
        let last = moment.step + 1 == moment.steps;
        moment.step < self.warmup_steps
            || (last && self.compute_last)
            || (self.max_consecutive > 0 && answered >= self.max_consecutive)
    }
}
