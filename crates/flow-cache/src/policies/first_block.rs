//! First-block cache: where the first block changes a sample as it did before, so do the others.
//!
//! With `H_i` the tokens after block `i`, `r = H_1 - H_0`, and `r_ref` that of the last step whose blocks were computed:
//! a step is answered if `m|r - r_ref| <= threshold · m|r_ref|`, with `m` the mean of absolute values, and its result is
//! `H_1 + (H_L - H_1)` with the difference of that computed step (diffusers `hooks/first_block_cache.py`; ParaAttention).
//! Unlike there, the decision is each sample's and branch's own, and a value that is not a number means computing.

use crate::drivers::{StackPolicy, StackProbe, StackShape};
use crate::policy::{Compares, Policy, Situation};

/// The policy `first_block`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstBlock {
    /// Largest relative change of the first block's residual, above 0. ParaAttention and diffusers: 0.05 to 0.2.
    pub threshold: f64,
}

impl Policy for FirstBlock {
    type State = ();

    fn name(&self) -> &'static str {
        "first_block"
    }

    fn compares(&self) -> Compares {
        Compares {
            computed: true,
            ..Compares::default()
        }
    }

    fn answers(&self, now: &Situation<'_>, (): &mut ()) -> bool {
        now.since_computed
            .is_some_and(|change| change.relative() <= self.threshold)
    }
}

impl StackPolicy for FirstBlock {
    fn shape(&self) -> StackShape {
        StackShape {
            front: 1,
            back: 0,
            probe: StackProbe::FrontResidual,
        }
    }
}
