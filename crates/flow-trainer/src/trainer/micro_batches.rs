//! The micro-batches of an update: those of the rollout, or rows that the algorithm arranged anew.

use crate::algorithm::LossPoint;
use crate::branching::EdgeCredits;
use crate::geometry::BatchGeometry;
use crate::rollout::Trajectories;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// Advantages, credits and gates of the images of an iteration, in order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted<'a> {
    /// One per image.
    pub advantages: &'a [f32],
    /// What counts in the place of advantages at the recorded steps; empty if these count everywhere.
    pub credits: &'a [EdgeCredits],
    /// How much each image is pulled back; empty if nobody says so.
    pub gates: &'a [f32],
}

/// A micro-batch with what a loss reads of it.
pub(super) struct MicroBatch<'a> {
    pub batch: Cow<'a, Trajectories>,
    /// One per row.
    pub advantages: Vec<f32>,
    /// For each recorded step what counts there in the place of `advantages`; empty if these count everywhere.
    pub credits: Vec<EdgeCredits>,
    /// How much each row is pulled back; empty if nobody says so.
    pub gates: Vec<f32>,
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

impl MicroBatch<'_> {
    /// What a loss at `position` weighs each row by: its advantage there, within `bound`.
    pub(super) fn advantages_at(&self, position: LossPoint, bound: f32) -> Vec<f32> {
        let credits = match position {
            LossPoint::Recorded(record) => self.credits.get(record),
            LossPoint::Time { .. } | LossPoint::EachRow { .. } | LossPoint::Step { .. } => None,
        };
        let clamped = |value: &f32| value.clamp(-bound, bound);
        match credits {
            None => self.advantages.iter().map(clamped).collect(),
            Some(EdgeCredits { advantages, weights }) => {
                let rows = advantages.iter().zip(weights);
                rows.map(|(advantage, weight)| clamped(advantage) * weight)
                    .collect()
            }
        }
    }
}

impl<'a> PassBatches<'a> {
    /// Takes over the credits of `counted` and, unless rows were arranged anew, its gates.
    pub(super) fn count(&mut self, counted: Counted<'_>, geometry: &BatchGeometry) {
        self.credit(counted.credits, geometry);
        if !self.arranged {
            self.gate(counted.gates, geometry);
        }
    }

    /// Lets these credits, with values for all images of the rollout, count in the place of advantages.
    fn credit(&mut self, credits: &[EdgeCredits], geometry: &BatchGeometry) {
        let size = geometry.micro_batch_size();
        for (index, micro_batch) in &mut self.micro_batches {
            let rows = index * size..index * size + micro_batch.advantages.len();
            let of_rows = |credits: &EdgeCredits| EdgeCredits {
                advantages: credits.advantages[rows.clone()].to_vec(),
                weights: credits.weights[rows.clone()].to_vec(),
            };
            micro_batch.credits = credits.iter().map(of_rows).collect();
        }
    }

    /// Takes over `gates`, which has a value for each image of the rollout, or none where the algorithm has no gates.
    fn gate(&mut self, gates: &[f32], geometry: &BatchGeometry) {
        if gates.is_empty() {
            return;
        }
        let size = geometry.micro_batch_size();
        for (index, micro_batch) in &mut self.micro_batches {
            micro_batch.gates = gates[index * size..][..micro_batch.advantages.len()].to_vec();
        }
    }

    /// The number of the size of a micro-batch; of one that another process has the run's own.
    pub(super) fn size(&self, number: usize) -> usize {
        let micro_batch = self.micro_batches.get(&number);
        micro_batch.map_or(0, |micro_batch| micro_batch.batch.size)
    }

    /// Those of the rollout; with the noise of the first address of each group if `shared_noise` has the first of the iteration.
    pub(super) fn as_rolled_out(
        batches: &'a BTreeMap<usize, Trajectories>,
        advantages: &[f32],
        geometry: &BatchGeometry,
        shared_noise: Option<u64>,
    ) -> Self {
        let size = geometry.micro_batch_size();
        let micro_batches = batches.iter().map(|(index, batch)| {
            let samples = Cow::Borrowed(&batch.samples[..]);
            let first_of_group = |first: u64, row: usize| {
                let group = geometry.slot(index * size + row).0;
                first + (group * geometry.candidates()) as u64
            };
            let micro_batch = MicroBatch {
                advantages: advantages[index * size..][..batch.samples.len()].to_vec(),
                credits: Vec::new(),
                gates: Vec::new(),
                noise_of: match shared_noise {
                    Some(first) => (0..samples.len()).map(|row| first_of_group(first, row)).collect(),
                    None => samples,
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

    /// Two images.
    fn batch(index: usize) -> Trajectories {
        Trajectories {
            samples: vec![100 + 2 * index as u64, 101 + 2 * index as u64],
            conditions: Conditions {
                conditional: Condition::default(),
                unconditional: None,
                keys: None,
            },
            records: Vec::new(),
            trained: Vec::new(),
            clean: ComputeDevice::cpu().plain(vec![0.0; 2], &[2, 1]),
            size: 0,
        }
    }

    #[test]
    fn credits_of_a_step_are_clamped_first_and_weighed_then() {
        let micro_batch = MicroBatch {
            batch: Cow::Owned(batch(0)),
            advantages: vec![9.0, -0.5],
            credits: vec![EdgeCredits {
                advantages: vec![-9.0, 2.0],
                weights: vec![0.5, 3.0],
            }],
            gates: Vec::new(),
            noise_of: Cow::Owned(vec![100, 101]),
            weight: 1.0,
        };
        assert_eq!(
            micro_batch.advantages_at(LossPoint::Recorded(0), 4.0),
            [-2.0, 6.0]
        );
        let drawn = LossPoint::Time { sigma: 0.5, draw: 0 };
        assert_eq!(micro_batch.advantages_at(drawn, 4.0), [4.0, -0.5]);
    }

    #[test]
    fn each_image_has_the_gate_that_it_was_given() {
        let geometry = BatchGeometry::new(GeometryRequest {
            prompts_per_step: 2,
            group_size: 3,
            micro_batch: 2,
            gradient_accumulation: 0,
        });
        let geometry = geometry.expect("everything divides");
        // Of a rank that has the last two micro-batches.
        let batches: BTreeMap<usize, Trajectories> = (1..3).map(|index| (index, batch(index))).collect();
        let mut all = PassBatches::as_rolled_out(&batches, &[0.0; 6], &geometry, None);
        all.gate(&[], &geometry);
        assert!(all.micro_batches.values().all(|it| it.gates.is_empty()));
        all.gate(&[0.0, 1.0, 1.0, 0.0, 0.0, 1.0], &geometry);
        let gates: Vec<f32> = all
            .micro_batches
            .values()
            .flat_map(|it| it.gates.clone())
            .collect();
        assert_eq!(gates, [1.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn images_of_a_group_take_the_noise_of_its_first_one_where_they_share_it() {
        let geometry = BatchGeometry::new(GeometryRequest {
            prompts_per_step: 2,
            group_size: 3,
            micro_batch: 2,
            gradient_accumulation: 0,
        });
        let geometry = geometry.expect("everything divides");
        let batches: BTreeMap<usize, Trajectories> = (0..3).map(|index| (index, batch(index))).collect();
        let noise = |shares: bool| -> Vec<u64> {
            let all = PassBatches::as_rolled_out(&batches, &[0.0; 6], &geometry, shares.then_some(100));
            let of = |micro_batch: &MicroBatch<'_>| micro_batch.noise_of.to_vec();
            all.micro_batches.values().flat_map(of).collect()
        };
        assert_eq!(noise(false), [100, 101, 102, 103, 104, 105]);
        assert_eq!(noise(true), [100, 100, 100, 103, 103, 103]);
    }
}
