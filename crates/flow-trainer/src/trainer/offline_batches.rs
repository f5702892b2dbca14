//! The rows of an iteration that learns from records of the data set. There is no rollout.

use super::Trainer;
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::geometry::PromptSampler;
use crate::records::Records;
use crate::rollout::Trajectories;
use flow_accel::Acceleration;
use flow_data::Prompt;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::collections::BTreeMap;
use std::ops::Range;

/// The rows of an iteration.
pub(super) struct OfflineBatches {
    /// By micro-batch; those of this rank.
    pub batches: BTreeMap<usize, Trajectories>,
    /// Group of each row of all ranks, in order: its record.
    pub groups: Vec<u64>,
}

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Reads the records of this iteration: each comes once before any comes again, in an order that is drawn anew each time.
    pub(super) fn offline_batches(&self) -> Result<OfflineBatches, TrainError> {
        let records = self.records.as_ref().ok_or_else(|| {
            TrainError::setting(format!(
                "the run was assembled without the records that the algorithm `{}` learns from",
                self.algorithm.name()
            ))
        })?;
        let (iteration, geometry) = (self.state.iteration, &self.settings.geometry);
        let history = self.prompt_sampler.history().clone();
        let order = PromptSampler::with_repeats(records.count(), geometry.prompts(), self.settings.seed)?;
        let drawn = order.following(history).draw(iteration);
        let rows_of_record = records.kind().rows() as u64;
        let row = |sample: usize| {
            let (record, member) = geometry.slot(sample);
            drawn[record].prompt as u64 * rows_of_record + member as u64
        };
        let ranges: Vec<Range<usize>> = geometry.micro_batch_samples().collect();
        let mine = self.distribution.micro_batches(geometry).into_iter();
        let batches = mine.map(|index| Ok((index, self.batch_of(records, ranges[index].clone(), row)?)));
        Ok(OfflineBatches {
            batches: batches.collect::<Result<_, TrainError>>()?,
            groups: (0..geometry.samples())
                .map(|sample| drawn[geometry.slot(sample).0].group)
                .collect(),
        })
    }

    /// The samples of a micro-batch; `row` is the row of the records that each of them is.
    fn batch_of(
        &self,
        records: &Records,
        samples: Range<usize>,
        row: impl Fn(usize) -> u64 + Sync,
    ) -> Result<Trajectories, TrainError> {
        let first = self.prompt_sampler.history().first_sample(self.state.iteration);
        let wanted = self.sampler.policy.model.spec().latent.values();
        // Beside one another, because pictures lie on a disk or behind a network.
        let read = samples.clone().into_par_iter().map(|sample| {
            let (values, caption) = records.row(row(sample))?;
            match values.len() == wanted {
                true => Ok((values, caption)),
                false => Err(TrainError::setting(format!(
                    "an image of the data set `{}` has {} values, and the model makes {wanted}",
                    self.dataset.name(),
                    values.len()
                ))),
            }
        });
        let read: Vec<(Vec<f32>, Prompt)> = read.collect::<Result<_, TrainError>>()?;
        let values = read.iter().flat_map(|(values, _)| values).copied().collect();
        Ok(Trajectories {
            samples: samples.clone().map(|sample| first + sample as u64).collect(),
            conditions: self
                .conditioner
                .conditions(read.iter().map(|(_, caption)| caption)),
            trained: Vec::new(),
            records: Vec::new(),
            clean: self.sampler.device.plain(values, &[samples.len(), wanted]),
            size: 0,
        })
    }
}
