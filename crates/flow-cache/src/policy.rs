//! What a policy is: it decides for one trajectory at a time, from host data only.

use crate::{Forecast, Moment};
use flow_core::ops::PairSums;
use flow_core::{AttentionLayer, TrajectoryId};
use std::fmt::Debug;
use std::ops::Add;

/// Decides which steps of a trajectory are computed, and how the others are forecast.
///
/// A policy holds parameters, never state: what a trajectory remembers is a [`State`](Self::State), which the driver keeps
/// by sample and branch. The driver has measured what the policy [`compares`](Self::compares), obeys the
/// [`Rules`](crate::Rules) before it asks, gathers the rows to be computed, and forecasts the others.
pub trait Policy: Debug + Send + Sync + 'static {
    /// What a trajectory remembers besides features; new where nothing is known.
    type State: Clone + Debug + Default + Send;

    /// Name in configs, logs and manifests.
    fn name(&self) -> &'static str;

    /// What the driver has to measure.
    fn compares(&self) -> Compares {
        Compares::default()
    }

    /// Whether a trajectory with features in store is answered now.
    fn answers(&self, now: &Situation<'_>, state: &mut Self::State) -> bool;

    /// Whether what a trajectory shows when it is computed is kept. Not for trajectories that are never answered: a feature has the size of what
    /// it answers for.
    fn keeps(&self, _lane: &TrajectoryId) -> bool {
        true
    }

    /// Called after a trajectory was computed. `outcome` is there if the policy compares outcomes and the trajectory was computed
    /// before.
    fn computed(&self, _now: &Situation<'_>, _outcome: Option<Outcome>, _state: &mut Self::State) {}

    /// How an answer is made of what is kept.
    fn forecast(&self, _state: &Self::State) -> Forecast {
        Forecast::Latest
    }

    /// The relative L1 error that the answers so far are predicted to put into the final latent; `None` for a policy that
    /// predicts nothing.
    fn predicted_error(&self, _state: &Self::State) -> Option<f64> {
        None
    }

    /// Whether an unconditional trajectory does what the conditional trajectory of its sample does, if that is in the same call.
    fn follows_conditional(&self) -> bool {
        false
    }
}

/// Comparisons that a policy wants; each costs a tensor of memory per trajectory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compares {
    /// The probe with that of the step before.
    pub previous: bool,
    /// The probe with that of the last computed step.
    pub computed: bool,
    /// The output of a computed step with that of the computed step before.
    pub outcomes: bool,
    /// At computed steps, what would have been answered with what was computed.
    pub forecasts: bool,
}

impl Compares {
    /// Whether a probe is needed at all.
    pub fn probes(self) -> bool {
        self.previous || self.computed || self.outcomes || self.forecasts
    }
}

/// What is known of a trajectory when it is decided about.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Where in the trajectory.
    pub moment: Moment,
    /// The trajectory.
    pub trajectory: TrajectoryId,
    /// The attention layer, in a driver of layers.
    pub layer: Option<&'a AttentionLayer>,
    /// Whether the other branch of the sample is in the call, too.
    pub has_partner: bool,
    /// How the probe changed since the step before.
    pub since_previous: Option<Change>,
    /// How the probe changed since the last computed step.
    pub since_computed: Option<Change>,
}

/// How a tensor changed: sums of absolute values, in f64 and in order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    /// `Σ |a - b|`.
    pub change: f64,
    /// `Σ |b|`, of what it is compared with.
    pub size: f64,
}

impl Change {
    /// From `b` to `a` of a pair of rows.
    pub fn of(sum: &PairSums) -> Self {
        Self {
            change: sum.change,
            size: sum.of_b,
        }
    }

    /// `Σ |a - b| / Σ |b|`: the relative L1 distance; not a number if both are 0.
    pub fn relative(&self) -> f64 {
        self.change / self.size
    }
}

impl Add for Change {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            change: self.change + other.change,
            size: self.size + other.size,
        }
    }
}

/// What a computed step showed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// How the probe changed since the computed step before.
    pub probe: Change,
    /// How the output did.
    pub output: Change,
    /// `Σ |output|` now.
    pub output_size: f64,
    /// `Σ |feature - forecast|` of the first feature, if forecasts are compared.
    pub forecast_error: Option<f64>,
}
