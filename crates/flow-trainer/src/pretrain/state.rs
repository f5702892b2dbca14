//! The state of a pretraining on disk, so that one that was stopped goes on to the same bits.

use crate::error::TrainError;
use crate::optimizer::{AdamW, Moments};
use flow_core::device::ComputeDevice;
use flow_core::{ParamSpec, Plain, Weights, cpu};
use flow_report::{CheckpointReader, CheckpointWriter};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What the checkpoint of a pretraining calls itself.
const WHAT: &str = "pretraining";

/// Where a pretraining keeps its state, and from what it goes on.
#[derive(Debug)]
pub struct Keeping {
    /// The file, replaced at each saving, whole at every moment.
    pub path: PathBuf,
    /// Steps between two savings; it is saved when the observer interrupts, too.
    pub every: u64,
    /// What the pretraining is: everything that decides its bits.
    pub description: Value,
    /// What it goes on from; nothing if it begins.
    pub from: Option<PretrainCheckpoint>,
}

/// The state of a pretraining as it was read.
#[derive(Debug)]
pub struct PretrainCheckpoint {
    reader: CheckpointReader,
    optimizer_steps: u64,
}

#[derive(Serialize, Deserialize)]
struct Meta {
    what: String,
    optimizer_steps: u64,
    description: Value,
}

/// All that changes from step to step.
pub(super) struct State {
    pub step: u64,
    pub weights: Weights,
    pub average: Weights,
    pub optimizer: AdamW,
    pub losses: Vec<f32>,
}

impl PretrainCheckpoint {
    /// Reads and verifies the checkpoint at `path`, which must be of the pretraining that `description` says.
    ///
    /// # Errors
    /// If it is no whole checkpoint, one of a run, or one of another pretraining; the key that differs is named.
    pub fn open(path: &Path, description: &Value) -> Result<Self, TrainError> {
        let reader = CheckpointReader::open(path)?;
        let mismatch = |problem: String, help: &str| TrainError::CheckpointMismatch {
            path: path.to_owned(),
            problem,
            help: help.into(),
        };
        let meta = serde_json::from_value::<Meta>(reader.meta().clone())
            .ok()
            .filter(|meta| meta.what == WHAT);
        let Some(meta) = meta else {
            return Err(mismatch(
                "it is not the state of a pretraining".into(),
                "Checkpoints of runs are for `flow-train train CONFIG --resume PATH`",
            ));
        };
        if let Some((key, then, now)) = difference(&meta.description, description, "") {
            let help = format!("Set `{key}` back to {then}, or begin anew with `--on-exists overwrite`");
            return Err(mismatch(
                format!("it was begun with `{key}` = {then}, and the config has {now}"),
                &help,
            ));
        }
        Ok(Self {
            optimizer_steps: meta.optimizer_steps,
            reader,
        })
    }

    /// Steps that were taken.
    pub fn steps(&self) -> u64 {
        self.reader.step()
    }

    /// Puts what was saved into `state`.
    pub(super) fn restore(&self, state: &mut State, device: &ComputeDevice) -> Result<(), TrainError> {
        let layout = state.weights.layout().clone();
        let read = |section: String, spec: &ParamSpec| -> Result<Plain, TrainError> {
            let count = spec.shape.iter().product::<usize>();
            let values = self.values(&section, count)?;
            Ok(device.lasting(|| device.plain(values, &spec.shape)))
        };
        for (index, spec) in layout.specs().iter().enumerate() {
            let (name, weights) = (&spec.name, &mut state.weights);
            weights.set(index, read(format!("current/{name}"), spec)?)?;
            state.average.set(index, read(format!("average/{name}"), spec)?)?;
        }
        let moments = layout.specs().iter().zip(state.optimizer.moments());
        let moments = moments.map(|(spec, moments)| {
            let read = |kind: &str| read(format!("{kind}/{}", spec.name), spec);
            let both = || {
                Ok(Moments {
                    first: read("first")?,
                    second: read("second")?,
                })
            };
            moments.as_ref().map(|_| both()).transpose()
        });
        let moments = moments.collect::<Result<Vec<_>, TrainError>>()?;
        device.lasting(|| state.optimizer.restore(self.optimizer_steps, moments));
        state.step = self.steps();
        state.losses = self.values("losses", self.steps() as usize)?;
        Ok(())
    }

    fn values(&self, section: &str, count: usize) -> Result<Vec<f32>, TrainError> {
        let bytes = self.reader.section(section)?;
        if bytes.len() != count * 4 {
            return Err(TrainError::CheckpointMismatch {
                path: self.reader.path().to_owned(),
                problem: format!("section `{section}` has {} bytes for {count} values", bytes.len()),
                help: "Begin anew with `--on-exists overwrite`".into(),
            });
        }
        let values = bytes.chunks_exact(4);
        Ok(values
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect())
    }
}

impl Keeping {
    /// Writes the state, durably, in the place of the one before.
    pub(super) fn save(&self, state: &State) -> Result<(), TrainError> {
        let meta = Meta {
            what: WHAT.into(),
            optimizer_steps: state.optimizer.steps(),
            description: self.description.clone(),
        };
        let meta = serde_json::to_value(meta).map_err(|error| TrainError::Setting(error.to_string()))?;
        let mut writer = CheckpointWriter::new(state.step, meta);
        let mut sections = || -> Result<(), flow_report::CheckpointError> {
            let layout = state.weights.layout();
            // Each comes to the host when its turn to be written has come.
            for (set, weights) in [("current", &state.weights), ("average", &state.average)] {
                for (index, spec) in layout.specs().iter().enumerate() {
                    let name = format!("{set}/{}", spec.name);
                    writer
                        .section_streamed(&name, bytes(spec), move |out| write(out, &weights.host(index)))?;
                }
            }
            for (spec, moments) in layout.specs().iter().zip(state.optimizer.moments()) {
                let Some(moments) = moments else { continue };
                for (which, moment) in [("first", &moments.first), ("second", &moments.second)] {
                    let name = format!("{which}/{}", spec.name);
                    writer
                        .section_streamed(&name, bytes(spec), move |out| write(out, &cpu::to_host(moment)))?;
                }
            }
            let losses: Vec<u8> = state.losses.iter().copied().flat_map(f32::to_le_bytes).collect();
            writer.section("losses", losses)?;
            Ok(())
        };
        sections()?;
        writer.write_to(&self.path)?;
        Ok(())
    }
}

/// Of a weight's values in f32.
fn bytes(spec: &ParamSpec) -> u64 {
    4 * spec.shape.iter().product::<usize>() as u64
}

/// Some at a time, so that their bytes are not all there beside them.
fn write(out: &mut dyn Write, values: &[f32]) -> io::Result<()> {
    for some in values.chunks(1 << 14) {
        let bytes: Vec<u8> = some.iter().copied().flat_map(f32::to_le_bytes).collect();
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// The first key whose values differ, with both.
fn difference<'a>(then: &'a Value, now: &'a Value, key: &str) -> Option<(String, &'a Value, &'a Value)> {
    const ABSENT: &Value = &Value::Null;
    if let (Value::Object(a), Value::Object(b)) = (then, now) {
        let names = a.keys().chain(b.keys().filter(|name| !a.contains_key(*name)));
        let under = |name: &str| match key {
            "" => name.to_owned(),
            key => format!("{key}.{name}"),
        };
        return names.into_iter().find_map(|name| {
            let (then, now) = (a.get(name).unwrap_or(ABSENT), b.get(name).unwrap_or(ABSENT));
            difference(then, now, &under(name))
        });
    }
    (then != now).then(|| (key.to_owned(), then, now))
}
