//! Pyramid attention broadcast: attention outputs change slowly in the middle of a trajectory, those that look farther
//! more slowly, so each kind of attention is computed every so many steps and its output repeated in between.
//!
//! A layer is computed at step `s` if nothing is kept, if the timestep is outside of the range, or if `s` is a multiple
//! of the number for its kind. What is repeated is the output before gate and residual. Source: Zhao et al. 2024,
//! arXiv:2408.12588; diffusers `hooks/pyramid_attention_broadcast.py`.
//!
//! Unlike in diffusers, steps are counted, not calls, and the branches of guidance have outputs of their own: there the
//! unconditional call that follows a conditional one is answered with the conditional output.

use crate::drivers::LayerPolicy;
use crate::policies::Timesteps;
use crate::policy::{Policy, Situation};
use flow_core::{AttentionKind, AttentionLayer};

/// The policy `pyramid`. Of each kind of attention every how many steps it is computed; 1 for always.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pyramid {
    /// Attention within an image or frame.
    pub spatial: u32,
    /// Attention between frames.
    pub temporal: u32,
    /// Attention to the condition.
    pub cross: u32,
    /// Where outputs are repeated.
    pub timesteps: Timesteps,
}

impl Pyramid {
    fn every(&self, kind: AttentionKind) -> u32 {
        match kind {
            AttentionKind::Spatial => self.spatial,
            AttentionKind::Temporal => self.temporal,
            AttentionKind::Cross => self.cross,
        }
    }
}

impl Policy for Pyramid {
    type State = ();

    fn name(&self) -> &'static str {
        "pyramid"
    }

    fn answers(&self, now: &Situation<'_>, (): &mut ()) -> bool {
        let every = now.layer.map_or(1, |layer| self.every(layer.kind));
        self.timesteps.contain(&now.moment) && !now.moment.step.is_multiple_of(every)
    }
}

impl LayerPolicy for Pyramid {
    fn covers(&self, layer: &AttentionLayer) -> bool {
        self.every(layer.kind) > 1
    }
}
