//! A checkpoint of a run: what stands in it, and how it is written.

use super::Session;
use super::state::PolicyWeights;
use super::tally::Tally;
use crate::algorithm::{Algorithm, Memory, NetworkRole};
use crate::description::Description;
use crate::error::TrainError;
use crate::frozen::FrozenSaved;
use crate::geometry_history::GeometryHistory;
use crate::moments_of_ranks;
use crate::state_sections::{MOMENTS, NetworkSections, PREVIOUS_WEIGHTS, add_moments, add_weights};
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
    pub tally: Tally,
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

impl<A: Algorithm> Session<A> {
    /// Writes a checkpoint of the current iteration, durably, then prunes old ones. All ranks call this: one that writes nothing gives
    /// what it alone has.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        self.saved_at = Some(self.parts.state.iteration);
        let exchange = &*self.parts.distribution.exchange;
        let Some(files) = &mut self.files else {
            return Ok(moments_of_ranks::give(exchange, &self.parts.state.optimizer)?);
        };
        let watch = Stopwatch::start();
        files.metrics.sync()?;
        files.timing.sync()?;
        self.tally.process_memory();
        if let Some(events) = &mut files.events {
            events.sync()?;
        }
        let state = &self.parts.state;
        let layout = state.weights.current.layout();
        let steps_of = |role: NetworkRole| state.networks.get(&role).map(|network| network.optimizer.steps());
        let meta = Meta {
            run: Some(files.run.clone()),
            algorithm: self.parts.algorithm.name().into(),
            iteration: state.iteration,
            optimizer_steps: state.optimizer.steps(),
            weights: layout_of(layout),
            metrics: files.metrics.position(),
            timing: Some(files.timing.position()),
            tally: self.tally.clone(),
            description: Some(self.parts.description.clone()),
            geometry: Some(self.parts.prompt_sampler.history().clone()),
            lanes: self.parts.distribution.lanes.count(),
            accelerators: self.parts.acceleration.learned(),
            frozen: Some(self.parts.frozen.saved()),
            fake_steps: steps_of(NetworkRole::FakeScore),
            surrogate_steps: steps_of(NetworkRole::Surrogate),
            evaluation_due: self.evaluation_due,
            memory: state.memory.clone(),
        };
        let meta = serde_json::to_value(&meta).map_err(|error| TrainError::Setting(error.to_string()))?;
        let mut writer = CheckpointWriter::new(state.iteration, meta);
        let (frozen, trained) = (self.parts.frozen, state.optimizer.trained());
        for (set, weights) in sets(&state.weights) {
            add_weights(&mut writer, set, weights, |index| frozen.is_held(trained[index]))?;
        }
        if let Some(previous) = &state.weights.previous {
            // The rest is that of the trained weights.
            add_weights(&mut writer, PREVIOUS_WEIGHTS, previous, |index| trained[index])?;
        }
        add_moments(&mut writer, MOMENTS, layout, (&state.optimizer, exchange))?;
        for (role, network) in &state.networks {
            let names = NetworkSections::of(*role);
            // The rest is the run's.
            add_weights(&mut writer, names.weights, &network.weights, |index| {
                trained[index]
            })?;
            if let Some(slow) = &network.slow {
                add_weights(&mut writer, names.slow, slow, |index| trained[index])?;
            }
            add_moments(&mut writer, names.moments, layout, (&network.optimizer, exchange))?;
        }
        let saved = files.checkpoints.save(&writer);
        // If a rank is lost, its words say more than those of a file that was not written.
        moments_of_ranks::end(exchange, &state.optimizer)?;
        let saved = saved?;
        let iteration = state.iteration;
        drop(writer);
        self.tally.saved(&saved);
        let save_s = watch.wall_s();
        self.tally.add_wall("checkpoints", save_s);
        let record = MetricRecord::new(iteration, CHECKPOINT_RECORD).with("checkpoint_s", save_s);
        Ok(files.timing.append(&record)?)
    }
}

fn sets(weights: &PolicyWeights) -> Vec<(&'static str, &Weights)> {
    let optional = [
        ("average", &weights.average),
        ("old", &weights.old),
        ("sampling", &weights.sampling),
        ("reference", &weights.reference),
    ];
    let optional = optional
        .into_iter()
        .filter_map(|(name, set)| Some((name, set.as_ref()?)));
    std::iter::once(("current", &weights.current))
        .chain(optional)
        .collect()
}

pub(super) fn layout_of(layout: &ParamLayout) -> Vec<(String, Vec<usize>)> {
    layout
        .specs()
        .iter()
        .map(|spec| (spec.name.clone(), spec.shape.clone()))
        .collect()
}
