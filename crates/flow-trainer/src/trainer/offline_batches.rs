//! An iteration of a run that learns from records of the data set: read, learn, average, write down. There is no rollout.

use super::mean::Mean;
use super::micro_batches::Counted;
use super::tally::DRIVER;
use super::{Parts, Session};
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::geometry::PromptSampler;
use crate::observer::{IterationSummary, Observer};
use crate::records::Records;
use crate::rollout::Trajectories;
use flow_accel::Acceleration;
use flow_data::Prompt;
use flow_report::Stopwatch;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::collections::BTreeMap;
use std::ops::Range;

/// The rows of an iteration.
struct Acquired {
    /// By micro-batch; those of this rank.
    batches: BTreeMap<usize, Trajectories>,
    /// Group of each row of all ranks, in order: its record.
    groups: Vec<u64>,
}

impl<A: Algorithm> Session<A> {
    /// Runs the next iteration on records, and writes its metrics.
    pub(super) fn iterate_on_records(
        &mut self,
        observer: &mut dyn Observer,
    ) -> Result<IterationSummary, TrainError> {
        let mut watch = Stopwatch::start();
        // What was done before does not count.
        self.parts.acceleration.take_activity();
        let Acquired { batches, groups } = self.parts.acquire()?;
        let acquire_s = watch.lap_s();

        let images = groups.len();
        let advantages = vec![0.0; images];
        let counted = Counted {
            advantages: &advantages,
            ..Counted::default()
        };
        let outcome = (self.parts).update(&batches, counted, &groups, None, observer)?;
        self.parts.follow(&outcome);
        let activity = self.activity(&[], observer)?;
        self.name_kernels()?;
        let update_s = watch.lap_s();
        let device = &self.parts.sampler.device;
        self.tally.device_memory("updates", device.taken_bytes());
        self.tally.device_memory(DRIVER, device.driver_bytes());

        self.parts.state.iteration += 1;
        self.tally.add(images, None, &self.parts.state);
        self.record_iteration(None, &outcome, &activity, None, None, None)?;
        self.record_timing(&[("acquire_s", acquire_s), ("update_s", update_s)])?;
        self.record_throughput(images, acquire_s + update_s)?;
        Ok(IterationSummary {
            done: self.parts.state.iteration,
            total: self.parts.settings.iterations,
            reward: f64::NAN,
            loss: outcome.loss.value(),
            gradient_norm: outcome.steps.last().map_or(0.0, |step| step.gradient_norm),
            kl: outcome.terms.get("kl").map(Mean::value),
            clip_fraction: outcome.terms.get("clip_fraction").map(Mean::value),
            learning_rate: outcome.steps.last().map_or(0.0, |step| step.learning_rate),
            max_ratio_deviation: None,
            images,
            wall_s: acquire_s + update_s,
        })
    }
}

impl<A: Algorithm> Parts<A, Acceleration> {
    /// Reads the records of this iteration: each comes once before any comes again, in an order that is drawn anew each time.
    fn acquire(&self) -> Result<Acquired, TrainError> {
        let records = self.records.as_ref().ok_or_else(|| {
            TrainError::Setting(format!(
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
        Ok(Acquired {
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
                false => Err(TrainError::Setting(format!(
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
