//! TeaCache: the modulated input of the first block says how much the output changes.
//!
//! With `m_t` what the first block's attention reads, `a += p(mean|m_t - m_{t-1}| / mean|m_{t-1}|)` at every step, with
//! `p` a polynomial fitted per model; a step is answered while `a < threshold`, and `a` is 0 again after a computed one.
//! The first and the last step are computed. An answer is `H_0 + (H_L - H_0)` with the difference of the last computed
//! step. Source: Liu et al. 2024, arXiv:2411.19108; `TeaCache4FLUX/teacache_flux.py` and `TeaCache4Wan2.1`, whose
//! variant compares the conditioning instead.

use crate::drivers::{StackPolicy, StackProbe, StackShape};
use crate::policy::{Compares, Policy, Situation};

/// The policy `teacache`.
#[derive(Clone, Debug, PartialEq)]
pub struct TeaCache {
    /// Accumulated change from which a step is computed.
    pub threshold: f64,
    /// The polynomial that turns a change of the input into one of the output, highest power first.
    pub coefficients: Vec<f64>,
    /// Whether the conditioning is compared (Wan) rather than the modulated input (FLUX).
    pub compare_conditioning: bool,
}

impl TeaCache {
    /// The polynomial of FLUX.1-dev.
    pub const FLUX: [f64; 5] = [498.651651, -283.781631, 55.8554382, -3.82021401, 0.264230861];
}

/// What a trajectory of TeaCache remembers.
#[derive(Clone, Copy, Debug, Default)]
pub struct TeaCacheState {
    accumulated: f64,
}

impl Policy for TeaCache {
    type State = TeaCacheState;

    fn name(&self) -> &'static str {
        "teacache"
    }

    fn compares(&self) -> Compares {
        Compares {
            previous: true,
            ..Compares::default()
        }
    }

    fn answers(&self, now: &Situation<'_>, state: &mut TeaCacheState) -> bool {
        let Some(change) = now.since_previous else {
            return false;
        };
        let horner = |sum: f64, coefficient: &f64| sum * change.relative() + coefficient;
        state.accumulated += self.coefficients.iter().fold(0.0, horner);
        state.accumulated < self.threshold
    }

    fn computed(&self, _: &Situation<'_>, _: Option<crate::Outcome>, state: &mut TeaCacheState) {
        state.accumulated = 0.0;
    }
}

impl StackPolicy for TeaCache {
    fn shape(&self) -> StackShape {
        StackShape {
            front: 0,
            back: 0,
            probe: if self.compare_conditioning {
                StackProbe::Conditioning
            } else {
                StackProbe::ModulatedInput
            },
        }
    }
}
