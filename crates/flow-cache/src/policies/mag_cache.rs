//! MagCache: the ratio of magnitudes of successive residuals, measured once per model, says how far one may reuse.
//!
//! With `R_s = H_L - H_0` and `γ_s` the mean over tokens of `‖R_s‖ / ‖R_{s-1}‖`: at every step asked about, `A` is
//! multiplied by `γ_s` and `E` grows by `|1 - A|`; the step is answered with the last computed `R` while
//! `E <= threshold` and at most `max_consecutive` (`K`) in a row. After a computed step `A = 1`, `E = 0`. The share
//! `retention` at the start is computed. Source: Ma et al. 2025, arXiv:2506.09045; diffusers `hooks/mag_cache.py`.
//!
//! The decision depends on the step only, so it is the same for all samples.

use crate::drivers::{StackPolicy, StackProbe, StackShape};
use crate::policy::{Policy, Situation};
use crate::{Moment, Outcome};

/// The policy `magcache`.
#[derive(Clone, Debug, PartialEq)]
pub struct MagCache {
    /// Accumulated error up to which a step is answered.
    pub threshold: f64,
    /// Share of the steps at the start that are computed.
    pub retention: f64,
    /// `γ` per step, measured at some number of steps; the nearest one is taken for another number.
    pub ratios: Vec<f64>,
}

/// What a trajectory of MagCache remembers.
#[derive(Clone, Copy, Debug)]
pub struct MagCacheState {
    ratio: f64,
    error: f64,
}

impl Default for MagCacheState {
    fn default() -> Self {
        Self {
            ratio: 1.0,
            error: 0.0,
        }
    }
}

impl MagCache {
    /// `γ` of a step. Half-way cases go to the even index and the arithmetic is in f32, as diffusers'
    /// `nearest_interp` has it.
    pub fn ratio(&self, moment: &Moment) -> f64 {
        let (count, steps) = (self.ratios.len(), moment.steps);
        let index = if steps <= 1 {
            count.saturating_sub(1)
        } else {
            let scale = (count.saturating_sub(1)) as f32 / (steps - 1) as f32;
            (moment.step as f32 * scale).round_ties_even() as usize
        };
        self.ratios.get(index).copied().unwrap_or(f64::NAN)
    }
}

impl Policy for MagCache {
    type State = MagCacheState;

    fn name(&self) -> &'static str {
        "magcache"
    }

    fn answers(&self, now: &Situation<'_>, state: &mut MagCacheState) -> bool {
        let retained = (self.retention * f64::from(now.moment.steps) + 0.5).floor();
        if f64::from(now.moment.step) < retained {
            return false;
        }
        state.ratio *= self.ratio(&now.moment);
        state.error += (1.0 - state.ratio).abs();
        state.error <= self.threshold
    }

    fn computed(&self, _: &Situation<'_>, _: Option<Outcome>, state: &mut MagCacheState) {
        *state = MagCacheState::default();
    }
}

impl StackPolicy for MagCache {
    fn shape(&self) -> StackShape {
        StackShape {
            front: 0,
            back: 0,
            probe: StackProbe::Nothing,
        }
    }
}
