//! A checkpoint of a run: what stands in it, and how it is written.

use super::Trainer;
use super::run_counters::RunCounters;
use super::state::PolicyWeights;
use crate::algorithm::{Algorithm, Memory, NetworkRole};
use crate::description::Description;
use crate::error::TrainError;
use crate::frozen::FrozenSaved;
use crate::geometry_history::GeometryHistory;
use crate::state_of_ranks;
use crate::state_sections::{MOMENTS, NetworkSections, PREVIOUS_WEIGHTS, add_moments, add_weights};
use flow_accel::Acceleration;
use flow_core::{ParamLayout, Weights};
use flow_report::{CHECKPOINT_RECORD, CheckpointWriter, MetricRecord, MetricsPosition, RunStamp, Stopwatch};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The part of a checkpoint that is not tensors. What older checkpoints do not have has a default.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Meta {
    /// The run that it is of.
    #[serde(default)]
    pub run: Option<RunStamp>,
    pub algorithm: String,
    pub iteration: u64,
    pub optimizer_steps: u64,
    pub weights: Vec<(String, Vec<usize>)>,
    pub metrics: MetricsPosition,
    #[serde(default)]
    pub timing: Option<MetricsPosition>,
    #[serde(rename = "tally")]
    pub run_counters: RunCounters,
    /// The config and the contents of its files, of the process that wrote the checkpoint.
    #[serde(default)]
    pub description: Option<Description>,
    /// What was drawn before.
    #[serde(default)]
    pub geometry: Option<GeometryHistory>,
    /// Lanes of each sum of gradients.
    #[serde(default = "one")]
    pub lanes: usize,
    /// What accelerators have learned, by name.
    #[serde(default)]
    pub accelerators: BTreeMap<String, Vec<u64>>,
    /// Where the weights are that are not trained.
    #[serde(default)]
    pub frozen: Option<FrozenSaved>,
    /// Optimizer steps of the fake score.
    #[serde(default)]
    pub fake_steps: Option<u64>,
    /// Optimizer steps of the surrogate of the reward.
    #[serde(default)]
    pub surrogate_steps: Option<u64>,
    /// Whether the evaluation of this iteration is still to be done.
    #[serde(default)]
    pub evaluation_due: bool,
    /// What the algorithm remembers.
    #[serde(default)]
    pub memory: Memory,
}

impl Meta {
    /// Optimizer steps of a network that is trained beside the student.
    pub(super) fn network_steps(&self, role: NetworkRole) -> u64 {
        let steps = match role {
            NetworkRole::FakeScore => self.fake_steps,
            NetworkRole::Surrogate => self.surrogate_steps,
        };
        steps.unwrap_or(0)
    }
}

/// The lanes of checkpoints that do not say.
fn one() -> usize {
    1
}

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Writes a checkpoint of the current iteration, durably, then prunes old ones. All ranks call this: one that writes nothing gives
    /// what it alone has.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        self.progress.saved_at = Some(self.state.iteration);
        let exchange = &*self.distribution.exchange;
        let Some(files) = &mut self.files else {
            let sets = sets(&self.state.weights).map(|(_, set)| set);
            return Ok(state_of_ranks::give(exchange, &self.state.optimizer, &sets)?);
        };
        let watch = Stopwatch::start();
        files.metrics.sync()?;
        files.timing.sync()?;
        self.progress.run_counters.process_memory();
        if let Some(events) = &mut files.events {
            events.sync()?;
        }
        let state = &self.state;
        let layout = state.weights.current.layout();
        let steps_of = |role: NetworkRole| state.networks.get(&role).map(|network| network.optimizer.steps());
        let meta = Meta {
            run: Some(files.run.clone()),
            algorithm: self.algorithm.name().into(),
            iteration: state.iteration,
            optimizer_steps: state.optimizer.steps(),
            weights: layout_of(layout),
            metrics: files.metrics.position(),
            timing: Some(files.timing.position()),
            run_counters: self.progress.run_counters.clone(),
            description: Some(self.description.clone()),
            geometry: Some(self.prompt_sampler.history().clone()),
            lanes: self.distribution.lanes.count(),
            accelerators: self.acceleration.learned(),
            frozen: Some(self.frozen.saved()),
            fake_steps: steps_of(NetworkRole::FakeScore),
            surrogate_steps: steps_of(NetworkRole::Surrogate),
            evaluation_due: self.progress.evaluation_due,
            memory: state.memory.clone(),
        };
        let meta = serde_json::to_value(&meta).map_err(|error| TrainError::setting(error.to_string()))?;
        let mut writer = CheckpointWriter::new(state.iteration, meta);
        let (frozen, trained) = (self.frozen, state.optimizer.trained());
        let holders = (&state.optimizer, exchange);
        for (number, (set, weights)) in sets(&state.weights).into_iter().enumerate() {
            // Of those before the last update the rest is that of the trained weights.
            let is_previous = set == PREVIOUS_WEIGHTS;
            let held = |index: usize| trained[index] || (frozen.is_held(false) && !is_previous);
            if let Some(weights) = weights {
                add_weights(&mut writer, (set, number), weights, held, holders)?;
            }
        }
        add_moments(&mut writer, MOMENTS, layout, holders)?;
        for (role, network) in &state.networks {
            let names = NetworkSections::of(*role);
            // The rest is the run's.
            let holders = (&network.optimizer, exchange);
            let held = |index: usize| trained[index];
            // They are whole, so that no other rank is asked for a part of a set.
            add_weights(&mut writer, (names.weights, 0), &network.weights, held, holders)?;
            if let Some(slow) = &network.slow {
                add_weights(&mut writer, (names.slow, 0), slow, held, holders)?;
            }
            add_moments(&mut writer, names.moments, layout, holders)?;
        }
        let saved = files.checkpoints.save(&writer);
        // If a rank is lost, its words say more than those of a file that was not written.
        state_of_ranks::end(exchange, &state.optimizer)?;
        let saved = saved?;
        let iteration = state.iteration;
        drop(writer);
        self.progress.run_counters.saved(&saved);
        let save_s = watch.wall_s();
        self.progress.run_counters.add_wall("checkpoints", save_s);
        let record = MetricRecord::new(iteration, CHECKPOINT_RECORD).with("checkpoint_s", save_s);
        Ok(files.timing.append(&record)?)
    }
}

/// The sets of weights that a checkpoint has, with their names; what a run does not have is absent.
fn sets(weights: &PolicyWeights) -> [(&'static str, Option<&Weights>); 6] {
    [
        ("current", Some(&weights.current)),
        ("average", weights.average.as_ref()),
        ("old", weights.old.as_ref()),
        ("sampling", weights.sampling.as_ref()),
        ("reference", weights.reference.as_ref()),
        (PREVIOUS_WEIGHTS, weights.previous.as_ref()),
    ]
}

pub(super) fn layout_of(layout: &ParamLayout) -> Vec<(String, Vec<usize>)> {
    layout
        .specs()
        .iter()
        .map(|spec| (spec.name.clone(), spec.shape.clone()))
        .collect()
}
