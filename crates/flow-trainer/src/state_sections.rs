//! Weights and moments as sections of a checkpoint, of a run and of a pretraining alike: `current/NAME`, `first/NAME`, each f32 in
//! little-endian order. A run whose frozen weights are of a file leaves those out.

use crate::algorithm::NetworkRole;
use crate::error::TrainError;
use crate::optimizer::{AdamW, Moments};
use crate::state_of_ranks::{self, Which};
use crate::trainer::TrainedNetwork;
use flow_core::device::ComputeDevice;
use flow_core::{Kernels, ParamLayout, ParamSpec, RawTensor, Weights, cpu};
use flow_exchange::Exchange;
use flow_report::{CheckpointError, CheckpointReader, CheckpointWriter};
use std::io::{self, Write};

/// The sections of a run's moments.
pub(crate) const MOMENTS: [&str; 2] = ["first", "second"];

/// The sections of a network that is trained beside the student.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkSections {
    /// Of its weights.
    pub weights: &'static str,
    /// Of its moments.
    pub moments: [&'static str; 2],
    /// Of its slower copy, if it has one.
    pub slow: &'static str,
}

impl NetworkSections {
    /// Those of the network that plays this part.
    pub const fn of(role: NetworkRole) -> Self {
        match role {
            NetworkRole::FakeScore => Self {
                weights: FAKE_WEIGHTS,
                moments: ["fake-first", "fake-second"],
                slow: "fake-slow",
            },
            NetworkRole::Surrogate => Self {
                weights: SURROGATE_WEIGHTS,
                moments: ["surrogate-first", "surrogate-second"],
                slow: "surrogate-slow",
            },
        }
    }
}

/// The section of the weights of [`NetworkRole::FakeScore`].
pub(crate) const FAKE_WEIGHTS: &str = "fake";

/// The section of the weights of [`NetworkRole::Surrogate`].
pub(crate) const SURROGATE_WEIGHTS: &str = "surrogate";

/// The section of the trained weights before the last update, of a run whose rollouts are an update behind.
pub(crate) const PREVIOUS_WEIGHTS: &str = "previous";

/// What a checkpoint is written of: an optimizer, and to the ranks that have the rest of what is shared out.
pub(crate) type Holders<'a> = (&'a AdamW, &'a dyn Exchange);

/// Adds the weights of a set that are to be `held`, by their place in the layout; `number` is that of the set. Each comes to the host when its
/// turn to be written has come: all at once would be the whole state a second time. Parts of other ranks, and values whose lower half another
/// rank has, are asked for then; these are in [`state_of_ranks::give`] meanwhile, until [`state_of_ranks::end`].
pub(crate) fn add_weights<'a>(
    writer: &mut CheckpointWriter<'a>,
    (set, number): (&str, usize),
    weights: &'a Weights,
    held: impl Fn(usize) -> bool,
    (optimizer, exchange): Holders<'a>,
) -> Result<(), CheckpointError> {
    let specs = weights.layout().specs().iter().enumerate();
    for (index, spec) in specs.filter(|(index, _)| held(*index)) {
        let name = format!("{set}/{}", spec.name);
        let counts = counts_of(optimizer, index).filter(|_| weights.is_in_parts(index));
        let owner = optimizer.shards().and_then(|shards| shards.owner(index));
        let owner = owner.filter(|_| weights.lacks_lower_half(index));
        writer.section_streamed(&name, bytes(spec), move |out| {
            let of = (index, Which::Value(number));
            let values = match (counts, owner) {
                (Some(counts), _) => state_of_ranks::ask_all(exchange, of, counts, weights.own_host(index)),
                (None, Some(owner)) => state_of_ranks::ask(exchange, owner, of, spec.shape.iter().product()),
                (None, None) => Ok(weights.host(index)),
            };
            write_values(out, &values.map_err(io::Error::other)?)
        })?;
    }
    Ok(())
}

/// How many values each rank has of a weight that is trained and in parts.
fn counts_of(optimizer: &AdamW, index: usize) -> Option<&[usize]> {
    optimizer.shards().and_then(|shards| shards.counts(index))
}

/// Adds the moments of all weights that have some, to `sections`. Those of other ranks are asked for when their turn has come, as parts of
/// weights are.
pub(crate) fn add_moments<'a>(
    writer: &mut CheckpointWriter<'a>,
    sections: [&str; 2],
    layout: &ParamLayout,
    (optimizer, exchange): Holders<'a>,
) -> Result<(), CheckpointError> {
    for (index, spec) in layout.specs().iter().enumerate() {
        let own = optimizer.moments()[index].as_ref();
        let owner = optimizer.shards().and_then(|shards| shards.owner(index));
        let counts = counts_of(optimizer, index);
        if own.is_none() && owner.is_none() && counts.is_none() {
            continue;
        }
        let count: usize = spec.shape.iter().product();
        for (section, which) in sections.into_iter().zip(Which::BOTH) {
            let name = format!("{section}/{}", spec.name);
            writer.section_streamed(&name, bytes(spec), move |out| {
                let of = (index, which);
                let here = || {
                    own.and_then(|own| which.of(own))
                        .map_or_else(Vec::new, cpu::to_host)
                };
                let values = match (counts, own, owner) {
                    (Some(counts), ..) => state_of_ranks::ask_all(exchange, of, counts, here()),
                    (None, None, Some(owner)) => state_of_ranks::ask(exchange, owner, of, count),
                    _ => Ok(here()),
                };
                write_values(out, &values.map_err(io::Error::other)?)
            })?;
        }
    }
    Ok(())
}

/// What a checkpoint holds of weights and moments.
pub(crate) struct Sections<'a> {
    pub reader: &'a CheckpointReader,
    pub device: &'a ComputeDevice,
    /// What to do if a section is not what it should be.
    pub help: &'static str,
}

impl Sections<'_> {
    /// The `count` values of a section.
    pub fn values(&self, section: &str, count: usize) -> Result<Vec<f32>, TrainError> {
        let bytes = self.reader.section(section)?;
        if bytes.len() != count * 4 {
            return Err(TrainError::CheckpointMismatch {
                path: self.reader.path().to_owned(),
                problem: format!("section `{section}` has {} bytes for {count} values", bytes.len()),
                help: self.help.into(),
            });
        }
        let values = bytes.chunks_exact(4);
        Ok(values
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect())
    }

    /// Puts the values of a set that are `held`, by their place in the layout, into `weights`.
    pub fn weights(
        &self,
        set: &str,
        weights: &mut Weights,
        held: impl Fn(usize) -> bool,
    ) -> Result<(), TrainError> {
        let layout = weights.layout().clone();
        let specs = layout.specs().iter().enumerate();
        for (index, spec) in specs.filter(|(index, _)| held(*index)) {
            match weights.is_in_parts(index) {
                // Of which this process takes its own.
                true => weights.set_host(index, self.values_of(set, spec)?)?,
                false => weights.set(index, self.tensor(set, spec)?)?,
            }
        }
        Ok(())
    }

    /// Puts weights, moments, the slower copy and the number of steps into a network that is trained beside the student. What is not trained
    /// is the run's.
    pub fn network(
        &self,
        names: NetworkSections,
        (network, steps): (&mut TrainedNetwork, u64),
        kernels: &dyn Kernels,
    ) -> Result<(), TrainError> {
        let trained = network.optimizer.trained();
        self.weights(names.weights, &mut network.weights, |index| trained[index])?;
        network.weights.settle(kernels);
        if let Some(slow) = &mut network.slow {
            self.weights(names.slow, slow, |index| trained[index])?;
            slow.settle(kernels);
        }
        let layout = network.weights.layout().clone();
        let moments = self.moments(names.moments, &layout, &network.optimizer)?;
        let optimizer = &mut network.optimizer;
        self.device
            .with_persistent_allocation(|| optimizer.restore(steps, moments));
        Ok(())
    }

    /// The moments of each weight in sections of these names, of those alone of which the optimizer has some.
    pub fn moments(
        &self,
        [first, second]: [&str; 2],
        layout: &ParamLayout,
        optimizer: &AdamW,
    ) -> Result<Vec<Option<Moments>>, TrainError> {
        let of = |((index, spec), own): ((usize, &ParamSpec), &Option<Moments>)| {
            let part = optimizer.shards().and_then(|shards| shards.own_part(index));
            let moment = |set: &str| -> Result<RawTensor, TrainError> {
                let Some(part) = &part else {
                    return self.tensor(set, spec);
                };
                let values = self.values_of(set, spec)?[part.clone()].to_vec();
                Ok(self.persistent(values, &[part.len()]))
            };
            let both = || -> Result<Moments, TrainError> {
                Ok(Moments {
                    first: moment(first)?,
                    second: moment(second)?,
                })
            };
            own.is_some().then(both).transpose()
        };
        let specs = layout.specs().iter().enumerate();
        specs.zip(optimizer.moments()).map(of).collect()
    }

    fn tensor(&self, set: &str, spec: &ParamSpec) -> Result<RawTensor, TrainError> {
        Ok(self.persistent(self.values_of(set, spec)?, &spec.shape))
    }

    /// All values of a weight in a set.
    fn values_of(&self, set: &str, spec: &ParamSpec) -> Result<Vec<f32>, TrainError> {
        self.values(&format!("{set}/{}", spec.name), spec.shape.iter().product())
    }

    fn persistent(&self, values: Vec<f32>, shape: &[usize]) -> RawTensor {
        let device = self.device;
        device.with_persistent_allocation(|| device.plain(values, shape))
    }
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
