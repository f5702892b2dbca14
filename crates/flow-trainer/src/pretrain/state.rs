//! The state of a pretraining on disk, so that one that was stopped goes on to the same bits.

use crate::error::TrainError;
use crate::optimizer::AdamW;
use crate::state_of_ranks;
use crate::state_sections::{MOMENTS, Sections, add_moments, add_weights};
use flow_core::Weights;
use flow_core::device::ComputeDevice;
use flow_exchange::Exchange;
use flow_report::{CheckpointReader, CheckpointWriter, Stopwatch, flatten};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the checkpoint of a pretraining calls itself.
const WHAT: &str = "pretraining";

/// Where a pretraining keeps its state, and from what it goes on.
#[derive(Debug)]
pub struct Keeping {
    /// The file, replaced at each saving, whole at every moment.
    pub path: PathBuf,
    /// Time between two savings, the most that is lost to a kill; it is saved when the observer interrupts and after the last
    /// step, too. Whatever it is, the pretraining is the same.
    pub every: Duration,
    /// What tells the time.
    pub clock: Box<dyn Clock>,
    /// What the pretraining is: everything that decides its bits.
    pub description: Value,
    /// What it goes on from; nothing if it begins.
    pub from: Option<PretrainCheckpoint>,
}

/// What tells the time.
pub trait Clock: Debug + Send + Sync {
    /// The time since some moment, the same one at each call.
    fn elapsed(&self) -> Duration;
}

impl Clock for Stopwatch {
    fn elapsed(&self) -> Duration {
        Duration::from_secs_f64(self.wall_s())
    }
}

/// The state of a pretraining as it was read.
#[derive(Debug)]
pub struct PretrainCheckpoint {
    reader: CheckpointReader,
    optimizer_steps: u64,
    contents: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Meta {
    what: String,
    optimizer_steps: u64,
    description: Value,
    /// Of the examples, where they are files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contents: Option<String>,
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
        Self::of(CheckpointReader::open(path)?, description)
    }

    /// As [`open`](Self::open), of a file that was read already.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn of(reader: CheckpointReader, description: &Value) -> Result<Self, TrainError> {
        let path = reader.path().to_owned();
        let mismatch = |problem: String, help: &str| TrainError::CheckpointMismatch {
            path: path.clone(),
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
        if let Some((key, then, now)) = difference(&meta.description, description) {
            let help = format!("Set `{key}` back to {then}, or begin anew with `--on-exists overwrite`");
            return Err(mismatch(
                format!("it was begun with `{key}` = {then}, and the config has {now}"),
                &help,
            ));
        }
        Ok(Self {
            optimizer_steps: meta.optimizer_steps,
            contents: meta.contents,
            reader,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.reader.path()
    }

    /// What was read.
    pub fn reader(&self) -> &CheckpointReader {
        &self.reader
    }

    /// Steps that were taken.
    pub fn steps(&self) -> u64 {
        self.reader.step()
    }

    /// That the examples are those of then: their order is drawn by number, and another picture would have this one's.
    pub(super) fn expect_contents(&self, contents: Option<&str>) -> Result<(), TrainError> {
        match (self.contents.as_deref(), contents) {
            (Some(then), Some(now)) if then != now => Err(TrainError::CheckpointMismatch {
                path: self.reader.path().to_owned(),
                problem: "it was begun with other pictures or captions, in another order or another size"
                    .into(),
                help: "Bring the data back, or begin anew with `--on-exists overwrite`".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Puts what was saved into `state`.
    pub(super) fn restore(
        &self,
        state: &mut State,
        trained: &[bool],
        device: &ComputeDevice,
    ) -> Result<(), TrainError> {
        let sections = Sections {
            reader: &self.reader,
            device,
            help: "Begin anew with `--on-exists overwrite`",
        };
        let is_trained = |index: usize| trained[index];
        sections.weights("current", &mut state.weights, is_trained)?;
        sections.weights("average", &mut state.average, is_trained)?;
        let moments = sections.moments(MOMENTS, state.weights.layout(), &state.optimizer)?;
        device.with_persistent_allocation(|| state.optimizer.restore(self.optimizer_steps, moments));
        state.step = self.steps();
        state.losses = sections.values("losses", self.steps() as usize)?;
        Ok(())
    }
}

impl Keeping {
    /// Writes the state, durably, in the place of the one before. Of weights that are not `trained` their files are the state.
    fn save(
        &self,
        state: &State,
        (trained, exchange): (&[bool], &dyn Exchange),
        contents: Option<&str>,
    ) -> Result<(), TrainError> {
        let meta = Meta {
            contents: contents.map(str::to_owned),
            what: WHAT.into(),
            optimizer_steps: state.optimizer.steps(),
            description: self.description.clone(),
        };
        let meta = serde_json::to_value(meta).map_err(|error| TrainError::setting(error.to_string()))?;
        let mut writer = CheckpointWriter::new(state.step, meta);
        let mut sections = || -> Result<(), flow_report::CheckpointError> {
            let holders = (&state.optimizer, exchange);
            for (set, weights) in [("current", &state.weights), ("average", &state.average)] {
                // Both are whole on every process.
                add_weights(&mut writer, (set, 0), weights, |index| trained[index], holders)?;
            }
            add_moments(&mut writer, MOMENTS, state.weights.layout(), holders)?;
            let losses: Vec<u8> = state.losses.iter().copied().flat_map(f32::to_le_bytes).collect();
            writer.section("losses", losses)?;
            Ok(())
        };
        sections()?;
        writer.write_to(&self.path)?;
        Ok(())
    }
}

/// When a pretraining under way saves its state.
pub(super) struct Savings<'a> {
    keeping: &'a Keeping,
    trained: &'a [bool],
    exchange: &'a dyn Exchange,
    contents: Option<String>,
    /// When the last saving was over, or the pretraining began.
    last: Duration,
}

impl<'a> Savings<'a> {
    /// Begins now.
    pub fn new(
        keeping: &'a Keeping,
        (trained, exchange): (&'a [bool], &'a dyn Exchange),
        contents: Option<String>,
    ) -> Self {
        let last = keeping.clock.elapsed();
        Self {
            keeping,
            trained,
            exchange,
            contents,
            last,
        }
    }

    /// Whether the time to save has come.
    pub fn is_due(&self) -> bool {
        self.keeping.clock.elapsed().saturating_sub(self.last) >= self.keeping.every
    }

    fn save(&mut self, state: &State) -> Result<(), TrainError> {
        let with = (self.trained, self.exchange);
        let saved = self.keeping.save(state, with, self.contents.as_deref());
        // If a rank is lost, its words say more than those of a file that was not written.
        state_of_ranks::end(self.exchange, &state.optimizer)?;
        saved?;
        // A saving that takes long does not make the next one come sooner.
        self.last = self.keeping.clock.elapsed();
        Ok(())
    }
}

/// Saves `state`, which all ranks do together: those that write nothing give what they alone have.
pub(super) fn save(
    savings: Option<&mut Savings<'_>>,
    state: &State,
    exchange: &dyn Exchange,
) -> Result<(), TrainError> {
    match savings {
        Some(savings) => savings.save(state),
        None => Ok(state_of_ranks::give(exchange, &state.optimizer, &[])?),
    }
}

/// The first key whose values differ, with both.
fn difference(then: &Value, now: &Value) -> Option<(String, Value, Value)> {
    let leaves = |value: &Value| flatten(value).into_iter().collect::<BTreeMap<String, Value>>();
    let (mut then, mut now) = (leaves(then), leaves(now));
    let keys: BTreeSet<String> = then.keys().chain(now.keys()).cloned().collect();
    keys.into_iter().find_map(|key| {
        let (then, now) = (
            then.remove(&key).unwrap_or_default(),
            now.remove(&key).unwrap_or_default(),
        );
        (then != now).then_some((key, then, now))
    })
}
