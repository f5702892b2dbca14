//! The micro-batches of an update: those of the rollout, or rows that the algorithm arranged anew.

use crate::geometry::Geometry;
use crate::rollout::Trajectories;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// A micro-batch with what a loss reads of it.
pub(super) struct MicroBatch<'a> {
    pub batch: Cow<'a, Trajectories>,
    /// One per row.
    pub advantages: Vec<f32>,
    /// The sample whose noise each row takes.
    pub noise_of: Cow<'a, [u64]>,
    /// What makes its loss count by its rows in the mean of its optimizer step.
    pub weight: f32,
}

/// The micro-batches of a pass, and which of them each optimizer step takes.
pub(super) struct PassBatches<'a> {
    /// By number; of a run on several processes, those of this one.
    pub micro_batches: BTreeMap<usize, MicroBatch<'a>>,
    /// Over all processes.
    pub steps: Vec<Range<usize>>,
    /// Whether the algorithm arranged them.
    pub arranged: bool,
}

impl<'a> PassBatches<'a> {
    /// The number of the size of a micro-batch; of one that another process has the run's own.
    pub(super) fn size(&self, number: usize) -> usize {
        let micro_batch = self.micro_batches.get(&number);
        micro_batch.map_or(0, |micro_batch| micro_batch.batch.size)
    }

    /// Those of the rollout; if `shares_noise`, with the noise of the first image of each group.
    pub(super) fn as_rolled_out(
        batches: &'a BTreeMap<usize, Trajectories>,
        advantages: &[f32],
        geometry: &Geometry,
        shares_noise: bool,
    ) -> Self {
        let size = geometry.micro_batch_size();
        let micro_batches = batches.iter().map(|(index, batch)| {
            let samples = Cow::Borrowed(&batch.samples[..]);
            let first_of_group =
                |(row, sample): (usize, &u64)| sample - geometry.slot(index * size + row).1 as u64;
            let micro_batch = MicroBatch {
                advantages: advantages[index * size..][..batch.samples.len()].to_vec(),
                noise_of: match shares_noise {
                    true => samples.iter().enumerate().map(first_of_group).collect(),
                    false => samples,
                },
                batch: Cow::Borrowed(batch),
                weight: 1.0,
            };
            (*index, micro_batch)
        });
        Self {
            micro_batches: micro_batches.collect(),
            steps: geometry.update_micro_batches().collect(),
            arranged: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::GeometryRequest;
    use crate::policy::Conditions;
    use flow_core::Condition;
    use flow_core::device::ComputeDevice;

    #[test]
    fn images_of_a_group_take_the_noise_of_its_first_one_where_they_share_it() {
        let geometry = Geometry::new(GeometryRequest {
            prompts_per_step: 2,
            group_size: 3,
            micro_batch: 2,
            gradient_accumulation: 0,
        });
        let geometry = geometry.expect("everything divides");
        let batch = |index: usize| Trajectories {
            samples: vec![100 + 2 * index as u64, 101 + 2 * index as u64],
            conditions: Conditions {
                conditional: Condition::default(),
                unconditional: None,
                keys: None,
            },
            records: Vec::new(),
            clean: ComputeDevice::cpu().plain(vec![0.0; 2], &[2, 1]),
            size: 0,
        };
        let batches: BTreeMap<usize, Trajectories> = (0..3).map(|index| (index, batch(index))).collect();
        let noise = |shares: bool| -> Vec<u64> {
            let all = PassBatches::as_rolled_out(&batches, &[0.0; 6], &geometry, shares);
            let of = |micro_batch: &MicroBatch<'_>| micro_batch.noise_of.to_vec();
            all.micro_batches.values().flat_map(of).collect()
        };
        assert_eq!(noise(false), [100, 101, 102, 103, 104, 105]);
        assert_eq!(noise(true), [100, 100, 100, 103, 103, 103]);
    }
}
