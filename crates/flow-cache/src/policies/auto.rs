//! Error as the input: velocities are extrapolated as long as the error that this is predicted to put into the final latent
//! stays below a target. No threshold, no plan, nothing to fit.
//!
//! A step is answered by the polynomial in the noise level through the last `order + 1` computed velocities. Its error is
//! `v⁽ⁿ⁾(ξ) / n! · Π |σ - σ_i|` with `n = order + 1` (the remainder of interpolation). Every computed step measures that
//! derivative for nothing: what would have been answered is held against what was computed. So with `e` the sum of the
//! absolute errors there, `c = e / Π |σ - σ_i|`, and an answer puts `c · Π |σ - σ_i| · |Δσ|` into the latent, for
//! `x' = x + Δσ v`. The budget is the target times the size of the latent, and becomes free in proportion to the path covered,
//! so that early steps do not spend it all. `factor` corrects the prediction by what an audit of finished trajectories found.

use crate::drivers::VelocityPolicy;
use crate::policy::{Compares, Outcome, Policy, Situation};
use crate::{Forecast, Moment};

/// The policy `auto`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Auto {
    /// Relative L1 error of the final latent that a trajectory may have.
    pub target_error: f64,
    /// By how much audited errors exceed predicted ones; 1 if that is not known.
    pub factor: f64,
    /// Highest power of the extrapolation.
    pub order: usize,
}

/// What a trajectory of `auto` remembers.
#[derive(Clone, Debug, Default)]
pub struct AutoState {
    /// Noise levels of computed steps, latest first.
    computed: Vec<f64>,
    /// Noise levels of the first and of the last step.
    path: Option<(f64, f64)>,
    /// `c`, from the last computed step that had enough before it.
    rate: Option<f64>,
    /// Predicted relative error so far.
    spent: f64,
}

impl AutoState {
    /// The product of the distances from `sigma` to the latest `count` computed noise levels; `None` with fewer.
    fn distances(&self, sigma: f64, count: usize) -> Option<f64> {
        let latest = self.computed.get(..count)?;
        Some(latest.iter().map(|of| (sigma - of).abs()).product())
    }

    fn step(&mut self, moment: &Moment) -> f64 {
        let (start, before) = self.path.unwrap_or((moment.sigma, moment.sigma));
        self.path = Some((start, moment.sigma));
        // What lies before a step is close to what lies behind it; behind the last one is the whole rest.
        if moment.step + 1 == moment.steps {
            moment.sigma
        } else {
            (before - moment.sigma).abs()
        }
    }
}

impl Policy for Auto {
    type State = AutoState;

    fn name(&self) -> &'static str {
        "auto"
    }

    fn compares(&self) -> Compares {
        Compares {
            computed: true,
            forecasts: true,
            ..Compares::default()
        }
    }

    fn answers(&self, now: &Situation<'_>, state: &mut AutoState) -> bool {
        let moment = now.moment;
        let width = state.step(&moment);
        let (Some(rate), Some(latent), Some(distances)) = (
            state.rate,
            now.since_computed,
            state.distances(moment.sigma, self.order + 1),
        ) else {
            return false;
        };
        let added = self.factor * rate * distances * width / latent.size;
        let start = state.path.map_or(1.0, |(start, _)| start);
        let free = self.target_error * ((start - moment.sigma + width) / start).min(1.0);
        // Not so if anything is not a number.
        let answers = state.spent + added <= free;
        if answers {
            state.spent += added;
        }
        answers
    }

    fn computed(&self, now: &Situation<'_>, outcome: Option<Outcome>, state: &mut AutoState) {
        let moment = now.moment;
        let error = outcome.and_then(|outcome| outcome.forecast_error);
        if let (Some(error), Some(distances)) = (error, state.distances(moment.sigma, self.order + 1))
            && distances > 0.0
        {
            state.rate = Some(error / distances);
        }
        state.computed.insert(0, moment.sigma);
        state.computed.truncate(self.order + 1);
        if state.path.is_none_or(|(_, last)| last != moment.sigma) {
            state.step(&moment);
        }
    }

    fn forecast(&self, _: &AutoState) -> Forecast {
        Forecast::Newton { order: self.order }
    }

    fn predicted_error(&self, state: &AutoState) -> Option<f64> {
        Some(state.spent)
    }
}

impl VelocityPolicy for Auto {
    fn adds_to_latent(&self) -> bool {
        false
    }
}
