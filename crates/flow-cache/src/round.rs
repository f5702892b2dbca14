//! A call, decided about: its rows, what is kept of their trajectories, and the forecasts of those that are answered.

use crate::Moment;
use crate::policy::{Change, Outcome, Situation};
use burn::backend::TensorMetadata;
use flow_core::ops::TensorRow;
use flow_core::{AttentionLayer, FeatureCacheOps, RawTensor, RowSource, TrajectoryId};
use std::collections::VecDeque;
use std::sync::Arc;

/// What is answered for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Blocks of the stack of this name.
    Stack(String),
    /// An attention layer.
    Layer(AttentionLayer),
    /// The whole model.
    Velocity,
}

/// What is kept of a trajectory at a place.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneState<S> {
    pub policy: S,
    /// Steps answered since the last computed one.
    pub answered: u32,
    /// The probe of the step before.
    pub previous: Option<RawTensor>,
    /// The probe of the last computed step.
    pub reference: Option<RawTensor>,
    /// The first output of the last computed step.
    pub output: Option<RawTensor>,
    /// Features of computed steps, latest first.
    pub history: VecDeque<Snapshot>,
}

/// Features of a computed step: what is added to the base, or whole outputs; one per output.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub moment: Moment,
    pub features: Vec<Feature>,
}

/// A row of a tensor that several trajectories may share, which lives until the last of them has let go of it.
#[derive(Clone, Debug)]
pub(crate) struct Feature {
    tensor: Arc<RawTensor>,
    row: usize,
}

impl Feature {
    /// A tensor `[1, …]`.
    pub fn alone(tensor: RawTensor) -> Self {
        Self {
            tensor: Arc::new(tensor),
            row: 0,
        }
    }

    /// The first `count` rows of a tensor.
    pub fn rows(tensor: RawTensor, count: usize) -> impl Iterator<Item = Self> {
        let tensor = Arc::new(tensor);
        (0..count).map(move |row| Self {
            tensor: tensor.clone(),
            row,
        })
    }

    /// Where it is.
    pub fn place(&self) -> TensorRow<'_> {
        (&self.tensor, self.row)
    }

    /// The shape of a tensor of `rows` such rows.
    pub fn shape(&self, rows: usize) -> Vec<usize> {
        let shape = self.tensor.shape();
        std::iter::once(rows)
            .chain(shape.to_vec().into_iter().skip(1))
            .collect()
    }

    fn shares(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tensor, &other.tensor)
    }
}

/// A row of a call, decided about.
pub(crate) struct Row<S> {
    pub trajectory: TrajectoryId,
    pub state: LaneState<S>,
    pub answered: bool,
    pub has_partner: bool,
    pub since_previous: Option<Change>,
    pub since_computed: Option<Change>,
    pub weights: Vec<f64>,
}

/// A call, decided about. What it took out of the store comes back with [`Engine::close`]; after a panic in between
/// nothing is kept of its trajectories.
pub(crate) struct Round<S> {
    pub place: Place,
    pub moment: Moment,
    pub rows: Vec<Row<S>>,
}

impl<S> Row<S> {
    pub fn situation<'a>(&self, place: &'a Place, moment: Moment) -> Situation<'a> {
        Situation {
            moment,
            trajectory: self.trajectory,
            layer: match place {
                Place::Layer(layer) => Some(layer),
                _ => None,
            },
            has_partner: self.has_partner,
            since_previous: self.since_previous,
            since_computed: self.since_computed,
        }
    }

    /// What output `at` is made of if this row is answered.
    pub fn answer(&self, at: usize) -> RowSource<'_> {
        RowSource::Forecast(self.terms(&self.weights, at))
    }

    /// The kept features of output `at`, with these weights.
    pub fn terms(&self, weights: &[f64], at: usize) -> Vec<(f32, TensorRow<'_>)> {
        (weights.iter().zip(&self.state.history))
            .map(|(weight, snapshot)| (*weight as f32, snapshot.features[at].place()))
            .collect()
    }
}

impl<S> Round<S> {
    /// The rows that are computed.
    pub fn computed(&self) -> Vec<usize> {
        (0..self.rows.len())
            .filter(|row| !self.rows[*row].answered)
            .collect()
    }

    /// Whether all rows of which something is kept are computed, and were at the same steps before, with this batch: then what is
    /// kept of them is rows of one tensor. Trajectories that part later keep what they share until each has computed anew.
    pub fn is_in_step(&self, kept: impl Fn(&TrajectoryId) -> bool) -> bool {
        let mut rows = self.rows.iter().filter(|row| kept(&row.trajectory)).peekable();
        let Some(first) = rows.peek().copied() else {
            return false;
        };
        let shared =
            |(a, b): (&Snapshot, &Snapshot)| (a.features.iter().zip(&b.features)).all(|(a, b)| a.shares(b));
        rows.all(|row| {
            let (history, of_first) = (&row.state.history, &first.state.history);
            !row.answered && history.len() == of_first.len() && history.iter().zip(of_first).all(shared)
        })
    }

    /// Outputs of the computed rows and forecasts of the others, in one tensor each.
    pub fn assemble(
        &self,
        ops: &dyn FeatureCacheOps,
        outputs: &[RawTensor],
        base: Option<&[RawTensor]>,
    ) -> Vec<RawTensor> {
        let features = (self.rows.iter())
            .find(|row| row.answered)
            .map(|row| &row.state.history[0].features)
            .expect("assembled only if a row is answered");
        (features.iter().enumerate())
            .map(|(at, feature)| {
                let shape = feature.shape(self.rows.len());
                let base = base.map(|base| &base[at]);
                ops.assemble(&shape, outputs.get(at), base, &self.sources(at))
            })
            .collect()
    }

    /// Where each row of output `at` comes from.
    pub fn sources(&self, at: usize) -> Vec<RowSource<'_>> {
        let mut computed = 0;
        let source = |row: &'_ Row<S>| -> Option<usize> {
            let place = (!row.answered).then_some(computed);
            computed += usize::from(!row.answered);
            place
        };
        let places: Vec<Option<usize>> = self.rows.iter().map(source).collect();
        (self.rows.iter().zip(places))
            .map(|(row, place)| place.map_or_else(|| row.answer(at), RowSource::Computed))
            .collect()
    }
}

pub(crate) fn conditional(trajectory: TrajectoryId) -> TrajectoryId {
    TrajectoryId {
        conditional: true,
        ..trajectory
    }
}

/// Gives every row the sum over the rows of its branch, or nothing if one of them has nothing.
pub(crate) fn pool<S>(rows: &mut [Row<S>], of: impl Fn(&mut Row<S>) -> &mut Option<Change>) {
    for branch in [true, false] {
        let mut mine: Vec<&mut Option<Change>> = (rows.iter_mut())
            .filter(|row| row.trajectory.conditional == branch)
            .map(&of)
            .collect();
        let sum = (mine.iter()).try_fold(Change::default(), |sum, change| Some(sum + (**change)?));
        mine.iter_mut().for_each(|change| **change = sum);
    }
}

pub(crate) fn pooled_outcomes(outcomes: &[Option<Outcome>], branches: &[bool]) -> Vec<Option<Outcome>> {
    let sum = |branch: &bool| {
        let mut mine = outcomes.iter().zip(branches).filter(|(_, of)| *of == branch);
        let none = Outcome {
            forecast_error: Some(0.0),
            ..Outcome::default()
        };
        mine.try_fold(none, |sum, (outcome, _)| {
            let outcome = (*outcome)?;
            Some(Outcome {
                probe: sum.probe + outcome.probe,
                output: sum.output + outcome.output,
                output_size: sum.output_size + outcome.output_size,
                forecast_error: sum.forecast_error.zip(outcome.forecast_error).map(|(a, b)| a + b),
            })
        })
    };
    branches.iter().map(sum).collect()
}
