//! A checkpoint of a run: what stands in it, and how it is written.

use super::Session;
use super::state::PolicyWeights;
use super::tally::Tally;
use crate::algorithm::Algorithm;
use crate::description::Description;
use crate::error::TrainError;
use crate::geometry_history::GeometryHistory;
use flow_core::{ParamLayout, ParamSpec, Weights, cpu};
use flow_report::{CHECKPOINT_RECORD, CheckpointWriter, MetricRecord, MetricsPosition, RunStamp, Stopwatch};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};

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
    /// What accelerators have learned, by name.
    #[serde(default)]
    pub accelerators: BTreeMap<String, Vec<u64>>,
}

impl<A: Algorithm> Session<A> {
    /// Writes a checkpoint of the current iteration, durably, then prunes old ones.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        let watch = Stopwatch::start();
        self.files.metrics.sync()?;
        self.files.timing.sync()?;
        self.tally.process_memory();
        if let Some(events) = &mut self.files.events {
            events.sync()?;
        }
        let state = &self.parts.state;
        let layout = state.weights.current.layout();
        let meta = Meta {
            run: Some(self.run.clone()),
            algorithm: A::NAME.into(),
            iteration: state.iteration,
            optimizer_steps: state.optimizer.steps(),
            weights: layout_of(layout),
            metrics: self.files.metrics.position(),
            timing: Some(self.files.timing.position()),
            tally: self.tally.clone(),
            description: Some(self.parts.description.clone()),
            geometry: Some(self.parts.prompt_sampler.history().clone()),
            accelerators: self.parts.acceleration.learned(),
        };
        let meta = serde_json::to_value(&meta).map_err(|error| TrainError::Setting(error.to_string()))?;
        let mut writer = CheckpointWriter::new(state.iteration, meta);
        // Each comes to the host when its turn to be written has come: all at once would be the whole state a second time.
        for (set, weights) in sets(&state.weights) {
            for (index, spec) in layout.specs().iter().enumerate() {
                let name = format!("{set}/{}", spec.name);
                writer.section_streamed(&name, bytes(spec), move |out| {
                    write_values(out, &weights.host(index))
                })?;
            }
        }
        for (spec, moments) in layout.specs().iter().zip(state.optimizer.moments()) {
            let Some(moments) = moments else { continue };
            for (which, moment) in [("first", &moments.first), ("second", &moments.second)] {
                let name = format!("{which}/{}", spec.name);
                writer.section_streamed(&name, bytes(spec), move |out| {
                    write_values(out, &cpu::to_host(moment))
                })?;
            }
        }
        let saved = self.files.checkpoints.save(&writer)?;
        let iteration = state.iteration;
        drop(writer);
        self.tally.saved(&saved);
        let save_s = watch.wall_s();
        self.tally.add_wall("checkpoints", save_s);
        let record = MetricRecord::new(iteration, CHECKPOINT_RECORD).with("checkpoint_s", save_s);
        Ok(self.files.timing.append(&record)?)
    }
}

fn sets(weights: &PolicyWeights) -> Vec<(&'static str, &Weights)> {
    let optional = [
        ("average", &weights.average),
        ("old", &weights.old),
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

/// Of a weight's values in f32.
fn bytes(spec: &ParamSpec) -> u64 {
    4 * spec.shape.iter().product::<usize>() as u64
}

/// Some at a time, so that their bytes are not all there beside them.
fn write_values(out: &mut dyn Write, values: &[f32]) -> io::Result<()> {
    for some in values.chunks(1 << 14) {
        let bytes: Vec<u8> = some.iter().copied().flat_map(f32::to_le_bytes).collect();
        out.write_all(&bytes)?;
    }
    Ok(())
}
