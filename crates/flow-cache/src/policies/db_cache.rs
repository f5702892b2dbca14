//! DBCache: some first blocks decide, some last blocks mend, those between are reused.
//!
//! With `r = H_F - H_0` and `r_ref` that of the last computed step, a step is answered if
//! `m|r - r_ref| < threshold · m|r_ref|` (never at 0 or below, always at 1 or above); its result is `H_F + Δ` with `Δ`
//! what the middle blocks added, as it was or forecast from several computed steps, and then the last `B` blocks run.
//! Before the threshold a mask may speak, and a bound on answered steps per trajectory. Source: cache-dit,
//! `caching/cache_contexts/cache_manager.py` (`can_cache`), `cache_blocks/pattern_base.py`.
//!
//! Unlike there, the steps answered in a row are counted from the last computed one: the original clears its counter
//! only when the bound is reached, and then refuses steps that it could answer.

use super::Mask;
use crate::drivers::{StackPolicy, StackProbe, StackShape};
use crate::policy::{Compares, Policy, Situation};
use crate::{Forecast, Outcome};

/// The policy `db_cache`.
#[derive(Clone, Debug, PartialEq)]
pub struct DbCache {
    /// Largest relative change of the first blocks' residual.
    pub threshold: f64,
    /// `F`: blocks at the start that are always computed, at least 1.
    pub front_blocks: usize,
    /// `B`: blocks at the end that are always computed.
    pub back_blocks: usize,
    /// Most answered steps in a trajectory; 0 for any number.
    pub max_answered: u32,
    /// Steps that are computed in any case, and whether the others are answered in any case.
    pub mask: Option<(Mask, bool)>,
    /// How the middle blocks' part is forecast.
    pub forecast: Forecast,
}

/// What a trajectory of DBCache remembers.
#[derive(Clone, Copy, Debug, Default)]
pub struct DbCacheState {
    answered: u32,
}

impl Policy for DbCache {
    type State = DbCacheState;

    fn name(&self) -> &'static str {
        "db_cache"
    }

    fn compares(&self) -> Compares {
        Compares {
            computed: true,
            ..Compares::default()
        }
    }

    fn answers(&self, now: &Situation<'_>, state: &mut DbCacheState) -> bool {
        let near = || {
            let change = now.since_computed.map(|change| change.relative());
            match change {
                // What is not a number is never near.
                Some(change) if !change.is_nan() => {
                    self.threshold > 0.0 && (self.threshold >= 1.0 || change < self.threshold)
                }
                _ => false,
            }
        };
        let answered = match &self.mask {
            Some((mask, _)) if mask.computes(&now.moment) => false,
            Some((_, true)) => true,
            _ => (self.max_answered == 0 || state.answered < self.max_answered) && near(),
        };
        state.answered += u32::from(answered);
        answered
    }

    fn computed(&self, _: &Situation<'_>, _: Option<Outcome>, _: &mut DbCacheState) {}

    fn forecast(&self, _: &DbCacheState) -> Forecast {
        self.forecast
    }
}

impl StackPolicy for DbCache {
    fn shape(&self) -> StackShape {
        StackShape {
            front: self.front_blocks,
            back: self.back_blocks,
            probe: StackProbe::FrontResidual,
        }
    }
}
