//! Static step masks: a plan says which steps are computed, whatever the samples look like.
//!
//! An answered step adds what the blocks behind the first ones added at the last computed step: `H_F + (H_L - H_F)`
//! (cache-dit's `steps_computation_mask` with the policy `static`, `caching/cache_contexts/cache_manager.py`).

use super::Mask;
use crate::drivers::{StackPolicy, StackProbe, StackShape};
use crate::policy::{Policy, Situation};

/// The policy `step_mask`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepMask {
    /// Which steps are computed. The first is, in any case.
    pub mask: Mask,
    /// Blocks at the start that run in every step.
    pub front_blocks: usize,
}

impl Policy for StepMask {
    type State = ();

    fn name(&self) -> &'static str {
        "step_mask"
    }

    fn answers(&self, now: &Situation<'_>, (): &mut ()) -> bool {
        !self.mask.computes(&now.moment)
    }
}

impl StackPolicy for StepMask {
    fn shape(&self) -> StackShape {
        StackShape {
            front: self.front_blocks,
            back: 0,
            probe: StackProbe::Nothing,
        }
    }
}
