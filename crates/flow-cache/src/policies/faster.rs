//! FasterCache: attention is extrapolated from two computed steps, and the unconditional branch is the conditional one
//! plus a difference that is kept as its low and its high frequencies.
//!
//! Attention within an image or frame is computed every `every` steps within a range of timesteps; in between it is
//! `A_0 + weight · (A_0 - A_1)` with the two latest computed outputs, in the conditional branch and where the
//! unconditional one is not computed. The unconditional velocity is computed at step 0, outside of a range of
//! timesteps, and every `every` steps; in between it is `v_c + low_weight · L + high_weight · H`, where `L` and `H` are
//! the frequencies of `v_u - v_c` at the last computed step within and outside of a disc (see
//! [`split_frequencies`](crate::split_frequencies)). A weight starts at 1 and is multiplied by its factor at every
//! answered step in its range, so it compounds, there as here. Source: Lv et al. 2024, arXiv:2410.19355, equations 9
//! to 11; diffusers `hooks/faster_cache.py`.
//!
//! Unlike in diffusers, extrapolations do not enter the history that later ones are made from, and whether a branch is
//! computed is known from the trajectories of a call, not from the size of its batch.

use crate::drivers::LayerPolicy;
use crate::policies::Timesteps;
use crate::policy::{Policy, Situation};
use crate::{Forecast, Outcome};
use flow_core::{AttentionKind, AttentionLayer, TrajectoryId};

/// The part of the policy `faster` for attention layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FasterAttention {
    /// Every how many steps attention is computed; 1 for always.
    pub every: u32,
    /// Where it is extrapolated.
    pub timesteps: Timesteps,
    /// Factor of the difference of the two latest outputs.
    pub weight: f64,
}

impl Policy for FasterAttention {
    type State = ();

    fn name(&self) -> &'static str {
        "faster"
    }

    fn answers(&self, now: &Situation<'_>, (): &mut ()) -> bool {
        now.trajectory.conditional
            && !now.has_partner
            && self.timesteps.contain(&now.moment)
            && !now.moment.step.is_multiple_of(self.every)
    }

    fn keeps(&self, trajectory: &TrajectoryId) -> bool {
        trajectory.conditional
    }

    fn forecast(&self, (): &()) -> Forecast {
        Forecast::Extrapolated { weight: self.weight }
    }
}

impl LayerPolicy for FasterAttention {
    fn covers(&self, layer: &AttentionLayer) -> bool {
        self.every > 1 && layer.kind != AttentionKind::Cross
    }
}

/// The part of the policy `faster` for the unconditional branch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FasterGuidance {
    /// Every how many steps the unconditional branch is computed; 1 for always.
    pub every: u32,
    /// Where it is predicted.
    pub timesteps: Timesteps,
    /// Where the weight of the low frequencies grows, and its factor (the paper's `α_1`).
    pub low: (Timesteps, f64),
    /// The same of the high frequencies (`α_2`).
    pub high: (Timesteps, f64),
}

/// What an unconditional trajectory remembers: the weights of its low and its high frequencies.
#[derive(Clone, Copy, Debug)]
pub struct GuidanceState {
    weights: [f64; 2],
}

impl Default for GuidanceState {
    fn default() -> Self {
        Self { weights: [1.0; 2] }
    }
}

impl Policy for FasterGuidance {
    type State = GuidanceState;

    fn name(&self) -> &'static str {
        "faster"
    }

    fn answers(&self, now: &Situation<'_>, state: &mut GuidanceState) -> bool {
        let answered = !now.trajectory.conditional
            && now.has_partner
            && self.timesteps.contain(&now.moment)
            && !now.moment.step.is_multiple_of(self.every);
        if answered {
            for (weight, (range, factor)) in state.weights.iter_mut().zip([self.low, self.high]) {
                if range.contain(&now.moment) {
                    *weight *= factor;
                }
            }
        }
        answered
    }

    fn computed(&self, _: &Situation<'_>, _: Option<Outcome>, state: &mut GuidanceState) {
        *state = GuidanceState::default();
    }

    fn forecast(&self, state: &GuidanceState) -> Forecast {
        Forecast::Parts(state.weights)
    }
}
