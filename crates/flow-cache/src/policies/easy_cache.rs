//! EasyCache: how fast the velocity changes with the latent, measured at computed steps, bounds what is reused.
//!
//! With `x` the latent and `v` the velocity, at a computed step `k = m|v - v_ref| / m|x - x_ref|` against the computed
//! step before, and `c = v - x` is kept. At the steps after it `a += k · m|x_t - x_{t-1}| / m|v_ref|`; a step is
//! answered with `x_t + c` while `a < threshold`, and `a` is 0 again after a computed one. The unconditional branch does
//! what the conditional one does. The first ten steps and the last are computed. Source: Zhou et al. 2025,
//! arXiv:2507.02860; `EasyCache4Wan2.1/easycache_generate.py`.
//!
//! Along a deterministic Euler step `m|x_t - x_{t-1}| = |Δσ| m|v|`, so `a` grows by about `k |Δσ|`: a bound on the local
//! Lipschitz constant. Noise added by a stochastic step makes `a` grow faster, so it answers less there.

use crate::Outcome;
use crate::drivers::VelocityPolicy;
use crate::policy::{Compares, Policy, Situation};

/// The policy `easycache`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EasyCache {
    /// Accumulated relative change from which a step is computed.
    pub threshold: f64,
}

/// What a trajectory of EasyCache remembers.
#[derive(Clone, Copy, Debug, Default)]
pub struct EasyCacheState {
    accumulated: f64,
    /// `k`, and `Σ |v_ref|`.
    rate: Option<(f64, f64)>,
}

impl Policy for EasyCache {
    type State = EasyCacheState;

    fn name(&self) -> &'static str {
        "easycache"
    }

    fn compares(&self) -> Compares {
        Compares {
            previous: true,
            computed: true,
            outcomes: true,
            forecasts: false,
        }
    }

    fn answers(&self, now: &Situation<'_>, state: &mut EasyCacheState) -> bool {
        let (Some(latent), Some((rate, size))) = (now.since_previous, state.rate) else {
            return false;
        };
        state.accumulated += rate * latent.change / size;
        state.accumulated < self.threshold
    }

    fn computed(&self, _: &Situation<'_>, outcome: Option<Outcome>, state: &mut EasyCacheState) {
        *state = EasyCacheState {
            accumulated: 0.0,
            rate: outcome.map(|outcome| {
                let rate = outcome.output.change / outcome.probe.change;
                (rate, outcome.output_size)
            }),
        };
    }

    fn follows_conditional(&self) -> bool {
        true
    }
}

impl VelocityPolicy for EasyCache {
    fn adds_to_latent(&self) -> bool {
        true
    }
}
