//! The micro-batches of an algorithm that puts images of the whole rollout together anew. Each process computes those of its lanes; latents
//! that another process made are sent to it.
//!
//! Who computes what follows from advantages and groups, which all processes know, so nobody asks for anything.

use super::Parts;
use super::micro_batches::{MicroBatch, PassBatches};
use crate::algorithm::{Algorithm, RowSet};
use crate::error::TrainError;
use crate::rollout::Trajectories;
use flow_accel::Acceleration;
use flow_core::cpu;
use flow_exchange::Lost;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Final latents by image, each with its `N` values.
type Latents = BTreeMap<usize, Vec<f32>>;

impl<A: Algorithm> Parts<A, Acceleration> {
    /// The rows that `arranged` names, per optimizer step; `batches` are those that this process sampled.
    ///
    /// # Errors
    /// If a process is lost.
    pub(super) fn arranged(
        &self,
        batches: &BTreeMap<usize, Trajectories>,
        advantages: &[f32],
        arranged: &[Vec<RowSet>],
    ) -> Result<PassBatches<'static>, TrainError> {
        let sets: Vec<&RowSet> = arranged.iter().flatten().collect();
        let (mut steps, mut weights): (Vec<Range<usize>>, Vec<f32>) = (Vec::new(), Vec::new());
        for of_step in arranged {
            let rows: usize = of_step.iter().map(|set| set.rows.len()).sum();
            steps.push(weights.len()..weights.len() + of_step.len());
            let weight = |set: &RowSet| (set.rows.len() * of_step.len()) as f32 / rows as f32;
            weights.extend(of_step.iter().map(weight));
        }
        let latents = self.latents(batches, &sets, &steps)?;
        let (drawn, history) = (self.drawn(), self.prompt_sampler.history());
        let id = |image: &usize| history.sample_id(self.state.iteration, *image);
        let prompt = |image: &usize| &drawn[self.settings.geometry.slot(*image).0].prompt;
        let width = self.latent_values();
        let micro_batch = |number: usize| {
            let RowSet { rows, noise } = sets[number];
            let values: Vec<f32> = rows
                .iter()
                .flat_map(|image| latents[image].iter().copied())
                .collect();
            let batch = Trajectories {
                samples: rows.iter().map(id).collect(),
                conditions: self.conditioner.conditions(rows.iter().map(prompt)),
                records: Vec::new(),
                trained: Vec::new(),
                clean: self.sampler.device.plain(values, &[rows.len(), width]),
                size: 0,
            };
            let micro_batch = MicroBatch {
                batch: Cow::Owned(batch),
                advantages: rows.iter().map(|image| advantages[*image]).collect(),
                credits: Vec::new(),
                gates: Vec::new(),
                noise_of: noise.iter().map(id).collect(),
                weight: weights[number],
            };
            (number, micro_batch)
        };
        let mine = steps.iter().flat_map(|step| self.distribution.of_update(step));
        let micro_batches = mine.map(micro_batch).collect();
        Ok(PassBatches {
            micro_batches,
            steps,
            arranged: true,
        })
    }

    /// Values of one latent.
    fn latent_values(&self) -> usize {
        self.sampler.policy.model.spec().latent.values()
    }

    /// The latents of all rows that this process computes with, and of those that it sends.
    fn latents(
        &self,
        batches: &BTreeMap<usize, Trajectories>,
        sets: &[&RowSet],
        steps: &[Range<usize>],
    ) -> Result<Latents, TrainError> {
        let world = self.distribution.exchange.world();
        let (geometry, width) = (&self.settings.geometry, self.latent_values());
        let size = geometry.micro_batch_size();
        let needed_by = |rank: usize| -> BTreeSet<usize> {
            let numbers = steps
                .iter()
                .flat_map(|step| self.distribution.of_rank(step, rank));
            numbers
                .flat_map(|number| sets[number].rows.iter().copied())
                .collect()
        };
        let needed: Vec<BTreeSet<usize>> = (0..world.ranks).map(needed_by).collect();
        let sent_by = |rank: usize| -> BTreeSet<usize> {
            let made = self.distribution.micro_batches_of(geometry, rank);
            let images = made
                .into_iter()
                .flat_map(|number| number * size..(number + 1) * size);
            let others = |image: &usize| {
                let mut others = needed.iter().enumerate().filter(|(other, _)| *other != rank);
                others.any(|(_, images)| images.contains(image))
            };
            images.filter(others).collect()
        };
        let (mine, sent) = (&needed[world.rank], sent_by(world.rank));
        let mut latents = Latents::new();
        for (number, batch) in batches {
            let images = number * size..(number + 1) * size;
            let wanted = images.filter(|image| mine.contains(image) || sent.contains(image));
            let wanted: Vec<usize> = wanted.collect();
            if wanted.is_empty() {
                continue;
            }
            let values = cpu::to_host(&batch.clean);
            let row = |image: usize| values[image % size * width..][..width].to_vec();
            latents.extend(wanted.into_iter().map(|image| (image, row(image))));
        }
        if !world.is_several() {
            return Ok(latents);
        }
        let values = sent.iter().flat_map(|image| &latents[image]);
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        for (rank, theirs) in self.distribution.exchange.gather(&bytes)?.iter().enumerate() {
            if rank == world.rank {
                continue;
            }
            let images = sent_by(rank);
            if theirs.len() != 4 * width * images.len() {
                return Err(TrainError::Lost(Lost::OutOfStep {
                    rank,
                    own: world.rank,
                    problem: format!(
                        "it sends {} bytes of latents where {} images of {width} values are due",
                        theirs.len(),
                        images.len()
                    ),
                }));
            }
            let words = theirs.as_chunks::<4>().0;
            for (image, words) in images.into_iter().zip(words.chunks(width)) {
                if mine.contains(&image) {
                    let values = words.iter().map(|word| f32::from_le_bytes(*word));
                    latents.insert(image, values.collect());
                }
            }
        }
        Ok(latents)
    }
}
