//! What every cache does, whatever its policy and whatever it answers for: it asks lane by lane, computes the rows that
//! have to be, keeps what they showed, and forecasts the others.

use crate::policy::{Change, Outcome, Policy};
use crate::round::{LaneState, Round, Row, Snapshot, conditional, pool, pooled_outcomes, row_of, shape_of};
use crate::{LaneStore, Moment, Rules, StepOrder};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::{AttentionLayer, Exec, Lane, Plain};
use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a driver did in a call of a place.
#[derive(Clone, Debug, PartialEq)]
pub struct Tally {
    /// Step of the sampler.
    pub step: u32,
    /// The blocks that it may leave out here, or the block whose attention it may.
    pub blocks: Range<usize>,
    /// Rows asked for.
    pub rows: u64,
    /// Rows that were answered.
    pub answered: u64,
    /// At the last step: the relative error of the final latent that is predicted for each lane, by policies that predict
    /// one.
    pub predicted: Vec<(Lane, f64)>,
}

impl Tally {
    /// Blocks, or attention layers, that were not computed, summed over rows.
    pub fn skipped(&self) -> u64 {
        self.answered * self.blocks.len() as u64
    }
}

/// Called once per call of a place, in steps that are not left alone.
pub type OnCall = Box<dyn Fn(&Tally) + Send + Sync>;

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

/// Decides, keeps and forecasts. Lives as long as one rollout.
pub(crate) struct Engine<P: Policy> {
    pub policy: P,
    pub rules: Rules,
    on_call: OnCall,
    kept: Mutex<HashMap<Place, Lanes<P>>>,
}

type Lanes<P> = LaneStore<LaneState<<P as Policy>::State>>;

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

    fn kept(&self) -> MutexGuard<'_, HashMap<Place, Lanes<P>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this call is to be computed as if there were no cache: it belongs to no trajectory, or its step is
    /// stochastic and the rules leave such steps alone. What was kept of its lanes is then dropped.
    pub fn stands_aside(&self, exec: &Exec<'_>, place: &Place) -> bool {
        let call = exec.call();
        let outside = self.rules.outside_sde_window && call.stochastic;
        if outside && let Some(store) = self.kept().get_mut(place) {
            call.lanes.iter().for_each(|lane| store.forget(*lane));
        }
        outside || call.lanes.is_empty()
    }

    /// Takes the lanes of a call out of the store and decides about each. `probe` holds the same number of values for
    /// every row.
    ///
    /// # Panics
    /// With [`StepOrder`] if the steps of a lane do not come once and in order.
    pub fn open(&self, exec: &Exec<'_>, place: Place, probe: Option<&[f32]>) -> Round<P::State> {
        let call = exec.call();
        let (moment, lanes) = (Moment::of(call), &call.lanes);
        let states: Result<Vec<_>, StepOrder> = {
            let mut kept = self.kept();
            let store = kept.entry(place.clone()).or_default();
            let take = |lane: &Lane| {
                let taken = store.take(call.iteration, *lane, 0, call.step)?;
                match taken {
                    // A layer is not asked where its block is answered for.
                    Some((after, _)) if after + 1 != call.step && !matches!(place, Place::Layer(_)) => {
                        let (lane, step) = (*lane, call.step);
                        Err(StepOrder { lane, after, step })
                    }
                    taken => Ok(taken),
                }
            };
            lanes.iter().map(take).collect()
        };
        let states = states.unwrap_or_else(|error| panic!("{error}"));
        let probe_of = |row: usize| probe.map(|probe| row_of(probe, row, lanes.len()));
        let mut rows: Vec<Row<P::State>> = (states.into_iter().enumerate())
            .map(|(row, taken)| {
                let state = taken.map(|(_, state)| state).unwrap_or_default();
                let lane = lanes[row];
                let change = |kept: &Option<Vec<f32>>| Some(Change::between(probe_of(row)?, kept.as_ref()?));
                let other = Lane {
                    conditional: !lane.conditional,
                    ..lane
                };
                Row {
                    has_partner: lanes.contains(&other),
                    since_previous: change(&state.previous),
                    since_computed: change(&state.reference),
                    lane,
                    state,
                    answered: false,
                    weights: Vec::new(),
                }
            })
            .collect();
        if self.rules.per_batch {
            pool(&mut rows, |row| &mut row.since_previous);
            pool(&mut rows, |row| &mut row.since_computed);
        }
        // Conditional lanes first: the others may follow them.
        let order = |conditional| (0..lanes.len()).filter(move |row| lanes[*row].conditional == conditional);
        for index in order(true).chain(order(false)).collect::<Vec<_>>() {
            let leader = (self.policy.follows_conditional() && !lanes[index].conditional)
                .then(|| rows.iter().find(|row| row.lane == conditional(lanes[index])))
                .flatten()
                .map(|row| row.answered);
            self.decide(&place, moment, &mut rows[index], leader);
        }
        let compares = self.policy.compares();
        for (index, row) in rows.iter_mut().enumerate() {
            let probe = probe_of(index).map(<[f32]>::to_vec);
            if compares.computed && !row.answered {
                row.state.reference.clone_from(&probe);
            }
            row.state.previous = probe.filter(|_| compares.previous);
        }
        Round { place, moment, rows }
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
    pub fn learn(&self, round: &mut Round<P::State>, outputs: &[Plain], base: Option<&[Plain]>) {
        let computed = round.computed();
        let outputs: Vec<CpuTensor> = outputs.iter().map(CpuTensor::read).collect();
        let base: Option<Vec<CpuTensor>> = base.map(|base| base.iter().map(CpuTensor::read).collect());
        let total = round.rows.len();
        let snapshots = (computed.iter().enumerate()).map(|(index, row)| {
            let feature = |(at, output): (usize, &CpuTensor)| {
                let values = row_of(output.values(), index, computed.len());
                let values = match &base {
                    None => values.to_vec(),
                    Some(base) => {
                        let base = row_of(base[at].values(), *row, total);
                        values
                            .iter()
                            .zip(base)
                            .map(|(value, base)| value - base)
                            .collect()
                    }
                };
                from_vec(values, &shape_of(output.shape(), 1))
            };
            let features = outputs.iter().enumerate().map(feature).collect();
            vec![Snapshot {
                moment: round.moment,
                features,
            }]
        });
        let snapshots = snapshots.collect();
        let values = |index| row_of(outputs[0].values(), index, computed.len());
        self.keep(round, snapshots, &values);
    }

    /// Keeps the snapshots of the computed rows, latest first, in the order of those rows; `output` gives the output of
    /// each.
    pub fn keep<'v>(
        &self,
        round: &mut Round<P::State>,
        snapshots: Vec<Vec<Snapshot>>,
        output: &dyn Fn(usize) -> &'v [f32],
    ) {
        let (moment, place, computed) = (round.moment, round.place.clone(), round.computed());
        let compares = self.policy.compares();
        let wanted = compares.outcomes;
        let mut outcomes: Vec<Option<Outcome>> = vec![None; computed.len()];
        if wanted || compares.forecasts {
            let changes = |(index, row): (usize, &usize)| {
                let row = &round.rows[*row];
                let mut outcome = Outcome {
                    probe: row.since_computed?,
                    ..Outcome::default()
                };
                if wanted {
                    let (now, before) = (output(index), row.state.output.as_ref()?);
                    outcome.output = Change::between(now, before);
                    outcome.output_size = now.iter().map(|value| f64::from(value.abs())).sum();
                }
                if compares.forecasts {
                    let feature = snapshots[index].first()?.features.first()?;
                    outcome.forecast_error = self.forecast_error(row, &moment, feature);
                }
                Some(outcome)
            };
            outcomes = computed.iter().enumerate().map(changes).collect();
            if self.rules.per_batch {
                let branch: Vec<bool> = (computed.iter())
                    .map(|row| round.rows[*row].lane.conditional)
                    .collect();
                outcomes = pooled_outcomes(&outcomes, &branch);
            }
        }
        for ((index, row), kept) in computed.iter().enumerate().zip(snapshots) {
            let row = &mut round.rows[*row];
            let mut policy = std::mem::take(&mut row.state.policy);
            self.policy
                .computed(&row.situation(&place, moment), outcomes[index], &mut policy);
            let depth = self.policy.forecast(&policy).depth();
            row.state.policy = policy;
            row.state.answered = 0;
            row.state.output = wanted.then(|| output(index).to_vec());
            kept.into_iter()
                .rev()
                .for_each(|snapshot| row.state.history.push_front(snapshot));
            row.state.history.truncate(depth);
        }
    }

    /// `Σ |feature - forecast|` of a row that was computed; `None` with nothing to forecast from.
    fn forecast_error(&self, row: &Row<P::State>, now: &Moment, feature: &Plain) -> Option<f64> {
        let history: Vec<Moment> = row
            .state
            .history
            .iter()
            .map(|snapshot| snapshot.moment)
            .collect();
        if history.is_empty() {
            return None;
        }
        let feature = CpuTensor::read(feature);
        let mut forecast = vec![0.0f32; feature.values().len()];
        let weights = self.policy.forecast(&row.state.policy).weights(now, &history);
        row.combined(&weights, 0, None, &mut forecast);
        Some(Change::between(feature.values(), &forecast).change)
    }

    /// Puts the lanes back, and tells how many rows were answered, each for `blocks`.
    pub fn close(&self, exec: &Exec<'_>, round: Round<P::State>, blocks: Range<usize>) {
        let call = exec.call();
        let last = call.step + 1 == call.steps;
        let predicted = |row: &Row<P::State>| {
            let error = self.policy.predicted_error(&row.state.policy)?;
            Some((row.lane, error))
        };
        let predicted = round.rows.iter().filter(|_| last).filter_map(predicted).collect();
        let tally = Tally {
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
                store.put(call.iteration, row.lane, 0, call.step, row.state);
            }
        }
        drop(kept);
        (self.on_call)(&tally);
    }

    /// The outputs of a call: `compute` for the rows that need it (`None` for all of them), forecasts for the others,
    /// added to `base` if there is one.
    pub fn fill(
        &self,
        exec: &Exec<'_>,
        place: Place,
        probe: Option<&[f32]>,
        base: Option<&[DispatchTensor]>,
        blocks: Range<usize>,
        compute: impl FnOnce(&Exec<'_>, Option<&[usize]>) -> Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let mut round = self.open(exec, place, probe);
        let computed = round.computed();
        let outputs = if computed.len() == round.rows.len() {
            compute(exec, None)
        } else if computed.is_empty() {
            Vec::new()
        } else {
            let lanes = computed.iter().map(|row| round.rows[*row].lane).collect();
            compute(&exec.on_lanes(lanes), Some(&computed))
        };
        if !computed.is_empty() {
            self.learn(&mut round, &outputs, base);
        }
        let all = if computed.len() == round.rows.len() {
            outputs
        } else {
            round.assemble(&outputs, base)
        };
        self.close(exec, round, blocks);
        all
    }
}
