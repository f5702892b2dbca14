//! TaylorSeer: features are computed every few steps and extrapolated in between.
//!
//! With the first `first` steps computed, step `s` is computed if `(s - first - 1) mod interval = 0` or `s >= last`,
//! and forecast otherwise: with `first = 3`, `interval = 5` the computed steps are 0, 1, 2, 4, 9, 14, … Source: Liu et
//! al. 2025, arXiv:2503.06923; diffusers `hooks/taylorseer_cache.py`, where what is forecast is the output of every
//! attention layer or, in its lite mode, the model's output.
//!
//! As published the forecast is [`Forecast::Taylor`]; [`Forecast::Newton`] in the noise level costs the same and is
//! exact on polynomials. Factors are kept in f32, not rounded to bf16 as diffusers does by default.

use crate::Forecast;
use crate::drivers::{LayerPolicy, VelocityPolicy};
use crate::policy::{Policy, Situation};
use flow_core::AttentionLayer;

/// The policy `taylorseer`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaylorSeer {
    /// Every how many steps one is computed, above 0.
    pub interval: u32,
    /// Steps at the start that are computed.
    pub first: u32,
    /// The step from which all are computed; none if absent.
    pub last: Option<u32>,
    /// How the others are forecast.
    pub forecast: Forecast,
}

impl Policy for TaylorSeer {
    type State = ();

    fn name(&self) -> &'static str {
        "taylorseer"
    }

    fn answers(&self, now: &Situation<'_>, (): &mut ()) -> bool {
        let (step, first) = (i64::from(now.moment.step), i64::from(self.first));
        let due = (step - first - 1).rem_euclid(i64::from(self.interval)) == 0;
        let late = self.last.is_some_and(|last| now.moment.step >= last);
        step >= first && !due && !late
    }

    fn forecast(&self, (): &()) -> Forecast {
        self.forecast
    }
}

impl LayerPolicy for TaylorSeer {
    fn covers(&self, _: &AttentionLayer) -> bool {
        true
    }
}

impl VelocityPolicy for TaylorSeer {
    fn adds_to_latent(&self) -> bool {
        false
    }
}
