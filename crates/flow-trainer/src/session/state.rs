//! What a run carries from iteration to iteration, and how it is saved and put back bit for bit.

use super::record::Tally;
use super::{Parts, Session};
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::observer::Observer;
use crate::optimizer::{AdamW, Moments};
use flow_core::device::ComputeDevice;
use flow_core::{Changing, Kernels, ParamLayout, ParamSpec, Plain, Weights, cpu};
use flow_report::{CheckpointReader, CheckpointWriter, MetricsPosition, RunDirectory};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

/// Weights whose averages are formed at once: what is put together from halves for them is in memory meanwhile.
const AT_ONCE: usize = 16;

/// The weight sets of a run. All but the first are there only if something reads them.
#[derive(Clone, Debug)]
pub struct PolicyWeights {
    /// The trained weights.
    pub current: Weights,
    /// Their moving average.
    pub average: Option<Weights>,
    /// The slower sampling weights of a decoupled algorithm.
    pub old: Option<Weights>,
    /// The weights at the start.
    pub reference: Option<Weights>,
}

/// Weights, moments and counters.
#[derive(Clone, Debug)]
pub struct TrainState {
    /// Iterations done.
    pub iteration: u64,
    /// The weight sets.
    pub weights: PolicyWeights,
    /// The optimizer.
    pub optimizer: AdamW,
}

impl PolicyWeights {
    /// The old sampling weights.
    ///
    /// # Panics
    /// If the run was assembled without them although its algorithm samples with them.
    pub fn old(&self) -> &Weights {
        self.old
            .as_ref()
            .expect("an algorithm that samples with old weights is given them")
    }

    /// The weights at the start.
    ///
    /// # Panics
    /// If the run was assembled without them although its algorithm compares with them.
    pub fn reference(&self) -> &Weights {
        self.reference
            .as_ref()
            .expect("an algorithm that compares with the start is given it")
    }

    pub(super) fn follow(
        &mut self,
        kernels: &dyn Kernels,
        device: &ComputeDevice,
        trained: &[bool],
        average: Option<f64>,
        old: Option<f64>,
    ) {
        for (set, decay) in [(&mut self.average, average), (&mut self.old, old)] {
            let (Some(set), Some(decay)) = (set.as_mut(), decay) else {
                continue;
            };
            let decay = device.plain(vec![decay as f32], &[1]);
            let mut set = set.update();
            let slow = set.each().enumerate().filter(|(index, _)| trained[*index]);
            let mut slow: Vec<(usize, Changing<'_>)> = slow.collect();
            // Some at a time: those stored in halves are put together on the way.
            for some in slow.chunks_mut(AT_ONCE) {
                let indices: Vec<usize> = some.iter().map(|(index, _)| *index).collect();
                let values = self.current.values(&indices, kernels);
                let pairs = some.iter_mut().zip(&values);
                let pairs = pairs
                    .map(|((_, slow), value)| (&mut *slow.value, value))
                    .collect();
                device.lasting(|| kernels.average_all(pairs, &decay));
            }
            let copies = slow.into_iter();
            let copies = copies.filter_map(|(_, slow)| Some((slow.copy?, &*slow.value)));
            device.lasting(|| kernels.copy_all(copies.collect()));
        }
    }
}

/// The part of a checkpoint that is not tensors.
#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    algorithm: String,
    iteration: u64,
    optimizer_steps: u64,
    weights: Vec<(String, Vec<usize>)>,
    metrics: MetricsPosition,
    tally: Tally,
    /// What accelerators have learned, by name.
    #[serde(default)]
    accelerators: BTreeMap<String, Vec<u64>>,
}

/// What a checkpoint says beside the state.
#[derive(Debug)]
pub(super) struct Restored {
    pub metrics: MetricsPosition,
    pub tally: Tally,
    pub path: String,
}

impl<A: Algorithm> Session<A> {
    /// Writes a checkpoint of the current iteration, durably, then prunes old ones.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        self.files.metrics.sync()?;
        if let Some(events) = &mut self.files.events {
            events.sync()?;
        }
        let state = &self.parts.state;
        let layout = state.weights.current.layout();
        let meta = Meta {
            algorithm: A::NAME.into(),
            iteration: state.iteration,
            optimizer_steps: state.optimizer.steps(),
            weights: layout_of(layout),
            metrics: self.files.metrics.position(),
            tally: self.tally.clone(),
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
        let store = self
            .files
            .directory
            .checkpoints(self.parts.settings.checkpoints_kept);
        let saved = store.save(&writer)?;
        self.tally.saved(&saved);
        Ok(())
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

fn layout_of(layout: &ParamLayout) -> Vec<(String, Vec<usize>)> {
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

/// Puts the state of a checkpoint into `parts`.
pub(super) fn restore<A: Algorithm>(
    parts: &mut Parts<A>,
    directory: &RunDirectory,
    from: Option<&Path>,
    observer: &mut dyn Observer,
) -> Result<Restored, TrainError> {
    let reader = match from {
        Some(path) => CheckpointReader::open(path)?,
        None => {
            let store = directory.checkpoints(parts.settings.checkpoints_kept);
            let latest = store.latest()?;
            for skipped in &latest.skipped {
                observer.notice(&format!("a checkpoint was passed over: {skipped}"));
            }
            let skipped: String = latest
                .skipped
                .iter()
                .map(|error| format!("; passed over: {error}"))
                .collect();
            let directory = store.directory().to_owned();
            latest
                .found
                .ok_or(TrainError::NoCheckpoint { directory, skipped })?
        }
    };
    let mismatch = |problem: String, help: &str| TrainError::CheckpointMismatch {
        path: reader.path().to_owned(),
        problem,
        help: help.into(),
    };
    let meta: Meta = serde_json::from_value(reader.meta().clone()).map_err(|error| {
        mismatch(
            format!("its description cannot be read: {error}"),
            "Use another checkpoint",
        )
    })?;
    if meta.algorithm != A::NAME {
        let problem = format!(
            "it was written by algorithm `{}`, this run uses `{}`",
            meta.algorithm,
            A::NAME
        );
        return Err(mismatch(
            problem,
            "Set `algorithm.kind` back, or start a new run from the exported weights",
        ));
    }
    let layout = parts.state.weights.current.layout().clone();
    let ours = layout_of(&layout);
    if let Some(((name, shape), (other, other_shape))) = ours.iter().zip(&meta.weights).find(|(a, b)| a != b)
    {
        let problem =
            format!("the model has weight `{name}` {shape:?} where it has `{other}` {other_shape:?}");
        return Err(mismatch(
            problem,
            "Set `[model]` and `[lora]` back to what the run was started with",
        ));
    }
    if ours.len() != meta.weights.len() {
        let problem = format!(
            "the model has {} weights, it has {}",
            ours.len(),
            meta.weights.len()
        );
        return Err(mismatch(
            problem,
            "Set `[model]` and `[lora]` back to what the run was started with",
        ));
    }

    let device = parts.sampler.device.clone();
    let read = |section: String, shape: &[usize]| -> Result<Plain, TrainError> {
        let bytes = reader.section(&section)?;
        let count: usize = shape.iter().product();
        if bytes.len() != count * 4 {
            let problem = format!("section `{section}` has {} bytes for {count} values", bytes.len());
            return Err(mismatch(problem, "Use another checkpoint"));
        }
        let values = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        Ok(device.lasting(|| device.plain(values, shape)))
    };
    let kernels = parts.sampler.kernels.clone();
    let fill = |set: &str, weights: &mut Weights| -> Result<(), TrainError> {
        for (index, spec) in layout.specs().iter().enumerate() {
            weights.set(index, read(format!("{set}/{}", spec.name), &spec.shape)?)?;
        }
        weights.settle(&*kernels);
        Ok(())
    };
    let weights = &mut parts.state.weights;
    fill("current", &mut weights.current)?;
    let optional = [
        ("average", &mut weights.average),
        ("old", &mut weights.old),
        ("reference", &mut weights.reference),
    ];
    for (set, weights) in optional {
        if let Some(weights) = weights {
            fill(set, weights)?;
        }
    }
    let moments = layout
        .specs()
        .iter()
        .zip(parts.state.optimizer.trained())
        .map(|(spec, trained)| {
            let moment = |kind: &str| read(format!("{kind}/{}", spec.name), &spec.shape);
            trained
                .then(|| {
                    Ok(Moments {
                        first: moment("first")?,
                        second: moment("second")?,
                    })
                })
                .transpose()
        });
    let moments = moments.collect::<Result<Vec<_>, TrainError>>()?;
    let optimizer = &mut parts.state.optimizer;
    device.lasting(|| optimizer.restore(meta.optimizer_steps, moments));
    parts.acceleration.restore(&meta.accelerators);
    parts.state.iteration = meta.iteration;
    Ok(Restored {
        metrics: meta.metrics,
        tally: meta.tally,
        path: reader.path().display().to_string(),
    })
}
