//! What every cache does, whatever its policy and whatever it answers for: it asks trajectory by trajectory, computes the rows that
//! have to be, keeps what they showed, and forecasts the others.

use crate::policy::{Change, Outcome, Policy};
use crate::round::{Feature, LaneState, Place, Round, Row, Snapshot, conditional, pool, pooled_outcomes};
use crate::{Moment, Rules, StepOrder, TrajectoryStore};
use burn::backend::{DispatchTensor, TensorMetadata};
use flow_core::ops::{PairSums, TensorRow};
use flow_core::{Exec, FeatureCacheOps, RawTensor, RowSource, TrajectoryId};
use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a driver did in a call of a place.
#[derive(Clone, Debug, PartialEq)]
pub struct CallCounters {
    /// Step of the sampler.
    pub step: u32,
    /// The blocks that it may leave out here, or the block whose attention it may.
    pub blocks: Range<usize>,
    /// Rows asked for.
    pub rows: u64,
    /// Rows that were answered.
    pub answered: u64,
    /// At the last step, and where the steps of a window begin that are left alone: the relative error of the final latent that
    /// is predicted of the answers so far, or since such steps, for each trajectory, by policies that predict one. A trajectory's add up.
    pub predicted: Vec<(TrajectoryId, f64)>,
}

impl CallCounters {
    /// Blocks, or attention layers, that were not computed, summed over rows.
    pub fn skipped(&self) -> u64 {
        self.answered * self.blocks.len() as u64
    }
}

/// Called once per call of a place, in steps that are not left alone; in others, without rows, if anything was predicted.
pub type OnCall = Box<dyn Fn(&CallCounters) + Send + Sync>;

/// Decides, keeps and forecasts. Lives as long as one rollout.
pub(crate) struct Engine<P: Policy> {
    pub policy: P,
    pub rules: Rules,
    on_call: OnCall,
    kept: Mutex<HashMap<Place, Trajectories<P>>>,
}

type Trajectories<P> = TrajectoryStore<LaneState<<P as Policy>::State>>;

impl<P: Policy> Debug for Engine<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("policy", &self.policy)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl<P: Policy> Engine<P> {
    /// With nothing kept.
    pub fn new(policy: P, rules: Rules, on_call: OnCall) -> Self {
        Self {
            policy,
            rules,
            on_call,
            kept: Mutex::default(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<Place, Trajectories<P>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this call is to be computed as if there were no cache: it belongs to no trajectory, or its step is
    /// stochastic and the rules leave such steps alone. What was kept of its trajectories is then dropped.
    pub fn stands_aside(&self, exec: &Exec<'_>, place: &Place) -> bool {
        let call = exec.call();
        let outside = self.rules.outside_sde_window && call.stochastic;
        // What answers before the window were predicted to do is done, whatever comes after it.
        let mut predicted = Vec::new();
        if outside && let Some(store) = self.kept().get_mut(place) {
            for trajectory in call.trajectories.iter() {
                let states = store.forget(*trajectory);
                let errors = states
                    .iter()
                    .filter_map(|state| self.policy.predicted_error(&state.policy));
                predicted.extend(errors.map(|error| (*trajectory, error)));
            }
        }
        if !predicted.is_empty() {
            (self.on_call)(&CallCounters {
                step: call.step,
                blocks: 0..0,
                rows: 0,
                answered: 0,
                predicted,
            });
        }
        outside || call.trajectories.is_empty()
    }

    /// Takes the trajectories of a call out of the store and decides about each. `probe` has the batch as its first axis.
    ///
    /// # Panics
    /// With [`StepOrder`] if the steps of a trajectory do not come once and in order.
    pub fn open(&self, exec: &Exec<'_>, place: Place, probe: Option<&RawTensor>) -> Round<P::State> {
        let call = exec.call();
        let (moment, trajectories) = (Moment::of(call), &call.trajectories);
        let states: Result<Vec<_>, StepOrder> = {
            let mut kept = self.kept();
            let store = kept.entry(place.clone()).or_default();
            let take = |trajectory: &TrajectoryId| {
                let taken = store.take(call.iteration, *trajectory, 0, call.step)?;
                match taken {
                    // A layer is not asked where its block is answered for.
                    Some((after, _)) if after + 1 != call.step && !matches!(place, Place::Layer(_)) => {
                        let (trajectory, step) = (*trajectory, call.step);
                        Err(StepOrder {
                            trajectory,
                            after,
                            step,
                        })
                    }
                    taken => Ok(taken),
                }
            };
            trajectories.iter().map(take).collect()
        };
        let states = states.unwrap_or_else(|error| panic!("{error}"));
        let mut rows: Vec<Row<P::State>> = (states.into_iter().enumerate())
            .map(|(row, taken)| {
                let state = taken.map(|(_, state)| state).unwrap_or_default();
                let trajectory = trajectories[row];
                let other = TrajectoryId {
                    conditional: !trajectory.conditional,
                    ..trajectory
                };
                Row {
                    has_partner: trajectories.contains(&other),
                    since_previous: None,
                    since_computed: None,
                    trajectory,
                    state,
                    answered: false,
                    weights: Vec::new(),
                }
            })
            .collect();
        let ops = exec.backends().kernels.ops().feature_cache;
        if let Some(probe) = probe {
            let kept = |row: usize| [&rows[row].state.previous, &rows[row].state.reference];
            let changes = self.compared(ops, probe, &(0..rows.len()).map(kept).collect::<Vec<_>>());
            for (row, [previous, computed]) in rows.iter_mut().zip(changes) {
                (row.since_previous, row.since_computed) = (previous, computed);
            }
        }
        if self.rules.per_batch {
            pool(&mut rows, |row| &mut row.since_previous);
            pool(&mut rows, |row| &mut row.since_computed);
        }
        // Conditional trajectories first: the others may follow them.
        let order = |conditional| {
            (0..trajectories.len()).filter(move |row| trajectories[*row].conditional == conditional)
        };
        for index in order(true).chain(order(false)).collect::<Vec<_>>() {
            let leader = (self.policy.follows_conditional() && !trajectories[index].conditional)
                .then(|| {
                    rows.iter()
                        .find(|row| row.trajectory == conditional(trajectories[index]))
                })
                .flatten()
                .map(|row| row.answered);
            self.decide(&place, moment, &mut rows[index], leader);
        }
        let compares = self.policy.compares();
        if let Some(probe) = probe {
            for (row, probe) in rows.iter_mut().zip(ops.features(probe, None)) {
                if compares.computed && !row.answered {
                    row.state.reference = Some(probe.clone());
                }
                row.state.previous = compares.previous.then_some(probe);
            }
        }
        Round { place, moment, rows }
    }

    /// How the rows of `probe` differ from what is kept of each, as far as it is.
    fn compared(
        &self,
        ops: &dyn FeatureCacheOps,
        probe: &RawTensor,
        kept: &[[&Option<RawTensor>; 2]],
    ) -> Vec<[Option<Change>; 2]> {
        let each = (kept.iter().enumerate()).flat_map(|(row, kept)| kept.map(|kept| (row, kept)));
        let pairs: Vec<(TensorRow<'_>, TensorRow<'_>)> = each
            .filter_map(|(row, kept)| Some(((probe, row), (kept.as_ref()?, 0))))
            .collect();
        if pairs.is_empty() {
            return vec![[None; 2]; kept.len()];
        }
        let mut sums = ops.changes(&pairs).read().into_iter();
        let mut next = |kept: &Option<RawTensor>| {
            kept.as_ref()
                .and_then(|_| sums.next())
                .map(|sum| Change::of(&sum))
        };
        kept.iter().map(|kept| kept.map(&mut next)).collect()
    }

    fn decide(&self, place: &Place, moment: Moment, row: &mut Row<P::State>, leader: Option<bool>) {
        if row.state.history.is_empty() || self.rules.force(&moment, row.state.answered) {
            return;
        }
        let situation = row.situation(place, moment);
        let answers = leader.unwrap_or_else(|| self.policy.answers(&situation, &mut row.state.policy));
        if answers {
            let history: Vec<Moment> = row.state.history.iter().map(|snapshot| snapshot.moment).collect();
            row.weights = self.policy.forecast(&row.state.policy).weights(&moment, &history);
            // A forecast from a noise level that is not known, or twice from the same, is none.
            row.answered = row.weights.iter().all(|weight| weight.is_finite());
        }
    }

    /// Keeps what the computed rows showed. `outputs` holds those rows only; `base` holds all.
    pub fn learn(
        &self,
        ops: &dyn FeatureCacheOps,
        round: &mut Round<P::State>,
        outputs: &[RawTensor],
        base: Option<&[RawTensor]>,
    ) {
        let computed = round.computed();
        let keeps = |trajectory: &TrajectoryId| self.policy.keeps(trajectory);
        // Of the computed rows those that are kept, and where they are in the batch.
        let kept: Vec<usize> = (0..computed.len())
            .filter(|at| keeps(&round.rows[computed[*at]].trajectory))
            .collect();
        let of_batch: Vec<usize> = kept.iter().map(|at| computed[*at]).collect();
        let mut snapshots: Vec<Vec<Snapshot>> = computed.iter().map(|_| Vec::new()).collect();
        for at in &kept {
            snapshots[*at].push(Snapshot {
                moment: round.moment,
                features: Vec::with_capacity(outputs.len()),
            });
        }
        let together = round.is_in_step(keeps);
        for (at, output) in outputs.iter().enumerate().filter(|_| !kept.is_empty()) {
            let base = base.map(|base| (&base[at], &*of_batch));
            let some = (kept.len() < computed.len()).then(|| rows_of(ops, output, &kept));
            let output = some.as_ref().unwrap_or(output);
            let features: Vec<Feature> = if together {
                Feature::rows(ops.together(output, base), kept.len()).collect()
            } else {
                let apart = ops.features(output, base);
                apart.into_iter().map(Feature::alone).collect()
            };
            for (at, feature) in kept.iter().zip(features) {
                snapshots[*at][0].features.push(feature);
            }
        }
        self.keep(ops, round, snapshots, &outputs[0]);
    }

    /// Keeps the snapshots of the computed rows, latest first, in the order of those rows, which is that of the rows of
    /// `output`.
    pub fn keep(
        &self,
        ops: &dyn FeatureCacheOps,
        round: &mut Round<P::State>,
        snapshots: Vec<Vec<Snapshot>>,
        output: &RawTensor,
    ) {
        let (moment, place, computed) = (round.moment, round.place.clone(), round.computed());
        let compares = self.policy.compares();
        let wanted = compares.outcomes;
        let mut outcomes: Vec<Option<Outcome>> = vec![None; computed.len()];
        if wanted || compares.forecasts {
            let rows: Vec<&Row<P::State>> = computed.iter().map(|row| &round.rows[*row]).collect();
            let (changes, errors) = self.compared_with_computed(ops, &rows, &moment, &snapshots, output);
            let outcome = |index: usize| {
                let mut outcome = Outcome {
                    probe: rows[index].since_computed?,
                    forecast_error: errors[index],
                    ..Outcome::default()
                };
                if wanted {
                    let change = changes[index]?;
                    outcome.output = Change::of(&change);
                    outcome.output_size = change.of_a;
                }
                Some(outcome)
            };
            outcomes = (0..computed.len()).map(outcome).collect();
            if self.rules.per_batch {
                let branch: Vec<bool> = (computed.iter())
                    .map(|row| round.rows[*row].trajectory.conditional)
                    .collect();
                outcomes = pooled_outcomes(&outcomes, &branch);
            }
        }
        let mut outputs = if wanted {
            ops.features(output, None)
        } else {
            Vec::new()
        }
        .into_iter();
        for ((index, row), kept) in computed.iter().enumerate().zip(snapshots) {
            let row = &mut round.rows[*row];
            let mut policy = std::mem::take(&mut row.state.policy);
            self.policy
                .computed(&row.situation(&place, moment), outcomes[index], &mut policy);
            let depth = self.policy.forecast(&policy).depth();
            row.state.policy = policy;
            row.state.answered = 0;
            row.state.output = outputs.next();
            kept.into_iter()
                .rev()
                .for_each(|snapshot| row.state.history.push_front(snapshot));
            row.state.history.truncate(depth);
        }
    }

    /// How the output of each computed row changed since the computed step before, as far as the policy compares it, and
    /// `Σ |feature - forecast|` where there is something to forecast from. Asks the device once.
    fn compared_with_computed(
        &self,
        ops: &dyn FeatureCacheOps,
        rows: &[&Row<P::State>],
        now: &Moment,
        snapshots: &[Vec<Snapshot>],
        output: &RawTensor,
    ) -> (Vec<Option<PairSums>>, Vec<Option<f64>>) {
        let compares = self.policy.compares();
        let forecast = |(row, kept): (&&Row<P::State>, &Vec<Snapshot>)| {
            let history: Vec<Moment> = (row.state.history.iter())
                .map(|snapshot| snapshot.moment)
                .collect();
            let feature = kept.first()?.features.first()?.clone();
            if !compares.forecasts || history.is_empty() {
                return None;
            }
            let weights = self.policy.forecast(&row.state.policy).weights(now, &history);
            let source = RowSource::Forecast(row.terms(&weights, 0));
            let forecast = ops.assemble(&feature.shape(1), None, None, &[source]);
            Some((feature, forecast))
        };
        let forecasts: Vec<Option<(Feature, RawTensor)>> = rows.iter().zip(snapshots).map(forecast).collect();
        let before: Vec<Option<&RawTensor>> = (rows.iter())
            .map(|row| row.state.output.as_ref().filter(|_| compares.outcomes))
            .collect();
        let outputs = before.iter().enumerate();
        let outputs = outputs.filter_map(|(index, before)| Some(((output, index), ((*before)?, 0))));
        let forecasted = forecasts.iter().flatten();
        let forecasted = forecasted.map(|(feature, forecast)| (feature.place(), (forecast, 0)));
        let pairs: Vec<(TensorRow<'_>, TensorRow<'_>)> = outputs.chain(forecasted).collect();
        let sums = match pairs.len() {
            0 => Vec::new(),
            _ => ops.changes(&pairs).read(),
        };
        let mut sums = sums.into_iter();
        let changes = before.iter().map(|before| before.and_then(|_| sums.next()));
        let changes = changes.collect();
        let error = |pair: &Option<_>| pair.as_ref().and_then(|_| Some(sums.next()?.change));
        (changes, forecasts.iter().map(error).collect())
    }

    /// Puts the trajectories back, and tells how many rows were answered, each for `blocks`.
    pub fn close(&self, exec: &Exec<'_>, round: Round<P::State>, blocks: Range<usize>) {
        let call = exec.call();
        let last = call.step + 1 == call.steps;
        let predicted = |row: &Row<P::State>| {
            let error = self.policy.predicted_error(&row.state.policy)?;
            Some((row.trajectory, error))
        };
        let predicted = round.rows.iter().filter(|_| last).filter_map(predicted).collect();
        let counters = CallCounters {
            predicted,
            step: call.step,
            blocks,
            rows: round.rows.len() as u64,
            answered: round.rows.iter().filter(|row| row.answered).count() as u64,
        };
        let mut kept = self.kept();
        let store = kept.entry(round.place).or_default();
        for mut row in round.rows {
            row.state.answered += u32::from(row.answered);
            // Nothing of a trajectory outlives it.
            if call.step + 1 < call.steps {
                store.put(call.iteration, row.trajectory, 0, call.step, row.state);
            }
        }
        drop(kept);
        (self.on_call)(&counters);
    }

    /// The outputs of a call: `compute` for the rows that need it (`None` for all of them), forecasts for the others,
    /// added to `base` if there is one.
    pub fn fill(
        &self,
        exec: &Exec<'_>,
        place: Place,
        probe: Option<&RawTensor>,
        base: Option<&[DispatchTensor]>,
        blocks: Range<usize>,
        compute: impl FnOnce(&Exec<'_>, Option<&[usize]>) -> Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let ops = exec.backends().kernels.ops().feature_cache;
        let mut round = self.open(exec, place, probe);
        let computed = round.computed();
        let outputs = if computed.len() == round.rows.len() {
            compute(exec, None)
        } else if computed.is_empty() {
            Vec::new()
        } else {
            let trajectories = computed.iter().map(|row| round.rows[*row].trajectory).collect();
            compute(&exec.on_trajectories(trajectories), Some(&computed))
        };
        if !computed.is_empty() {
            self.learn(ops, &mut round, &outputs, base);
        }
        let all = if computed.len() == round.rows.len() {
            outputs
        } else {
            round.assemble(ops, &outputs, base)
        };
        self.close(exec, round, blocks);
        all
    }
}

/// These rows of `output`, in a tensor of their own.
fn rows_of(ops: &dyn FeatureCacheOps, output: &RawTensor, rows: &[usize]) -> RawTensor {
    let mut shape = output.shape().to_vec();
    shape[0] = rows.len();
    let rows: Vec<RowSource<'_>> = rows.iter().map(|row| RowSource::Computed(*row)).collect();
    ops.assemble(&shape, Some(output), None, &rows)
}
