//! Measuring the model: held-out prompts, fixed noise, deterministic sampler.

use super::evaluation_shares::{Share, own_batches};
use super::failed_rewards::of_all_ranks;
use super::rollout::advance;
use super::{EvaluationSettings, Trainer};
use crate::algorithm::Algorithm;
use crate::conditions::Conditioner;
use crate::decoder::{Decoded, ImageDecoder};
use crate::error::TrainError;
use crate::observer::{Observer, Phase};
use crate::policy::CallSite;
use crate::rollout::{NoiseSource, SampleRequest, Sampler, Trajectories};
use crate::scheduler::Schedule;
use crate::sizes::at_size;
use crate::undone::shortfalls;
use flow_accel::Acceleration;
use flow_core::{Backends, InferencePass, Stage, Weights};
use flow_data::{Image, Prompt};
use flow_exchange::Exchange;
use flow_report::{
    ImageGrid, Interval, IntervalMethod, MetricRecord, ReportError, RunStatus, Stopwatch, Tile, ValueRange,
    mean_interval,
};
use flow_rewards::{RewardWorkers, Sample, Ticket};
use std::sync::{Arc, Mutex};

/// What is evaluated, and how it computes.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The weights that sample.
    pub weights: &'a Weights,
    /// Kernels and attention.
    pub plan: &'a Arc<Backends>,
    /// From prompts to what the model takes.
    pub conditioner: &'a Conditioner,
    /// Images per call of the model.
    pub micro_batch: usize,
    /// What scores the images.
    pub rewards: &'a RewardWorkers,
    /// To the other ranks, which measure the same: each does a share of it.
    pub exchange: &'a dyn Exchange,
}

/// Images and scores of an evaluation.
#[derive(Debug)]
pub struct Evaluation {
    /// Images, prompt by prompt; of a video, some frames side by side. On several ranks those of the grid alone.
    pub images: Vec<Vec<Image>>,
    /// Per reward: the mean score of each prompt.
    pub prompt_means: Vec<Vec<f64>>,
    /// Per reward: scores, prompt by prompt, `[prompt][image]`.
    pub scores: Vec<Vec<Vec<f32>>>,
    /// Per reward: mean over prompts with a 95 % interval over prompts.
    pub intervals: Vec<Interval>,
}

impl EvaluationSettings {
    /// The sampler and the schedule for pictures of number `size` among the sizes.
    pub(crate) fn at_size(&self, size: usize) -> (Sampler, &Schedule) {
        at_size(size, (&self.sampler, &self.schedule), &self.others)
    }

    /// What final latents are, by the decoder of their size.
    ///
    /// # Errors
    /// As [`ImageDecoder::decode`].
    pub(crate) fn decoded(&self, done: &Trajectories) -> Result<Vec<Option<Decoded>>, TrainError> {
        self.decoder_at(done.size).decode(&done.clean)
    }

    /// The decoder for number `size` among the sizes.
    pub(crate) fn decoder_at(&self, size: usize) -> &ImageDecoder {
        let other = size.checked_sub(1).and_then(|other| self.others.get(other));
        other.map_or(&self.decoder, |at| &at.decoder)
    }

    /// Samples every prompt and scores the images.
    ///
    /// # Errors
    /// A reward's, or a sample that is not finite.
    pub fn measure(
        &self,
        subject: Subject<'_>,
        iteration: u64,
        observer: &mut dyn Observer,
    ) -> Result<Evaluation, TrainError> {
        let Subject {
            weights,
            plan,
            conditioner,
            micro_batch,
            rewards,
            exchange,
        } = subject;
        // Not by the first of several samples that are made beside one another: the others would wait for it.
        conditioner.prepare(self.prompts.iter())?;
        let wanted: Vec<&Prompt> = self
            .prompts
            .iter()
            .flat_map(|prompt| std::iter::repeat_n(prompt, self.images_per_prompt))
            .collect();
        let mut batches = self.sizes.batches(wanted.iter().copied(), micro_batch);
        let prompts_of = |places: &[usize]| {
            places
                .iter()
                .map(|place| place / self.images_per_prompt)
                .collect()
        };
        let prompts: Vec<Vec<usize>> = batches.iter().map(|(_, places)| prompts_of(places)).collect();
        let world = exchange.world();
        batches = batches.drain(own_batches(&prompts, world)).collect();
        let steps = self.schedule.ode_steps().len();
        observer.phase(Phase::Evaluation, batches.len() * steps);
        let rollout = InferencePass::new(weights, plan.clone());
        let site = CallSite {
            stage: Stage::Evaluation,
            iteration,
            step: 0,
            stochastic: false,
            sigma: None,
            steps: steps as u32,
        };
        let observer = Mutex::new(observer);
        let sampled = self.sampler.device.concurrently(batches.len(), |index| {
            let (size, places) = &batches[index];
            let (sampler, schedule) = self.at_size(*size);
            let ids: Vec<u64> = places.iter().map(|place| *place as u64).collect();
            let request = SampleRequest {
                site,
                source: NoiseSource::Evaluation,
                samples: &ids,
                starts: &ids,
                conditions: conditioner.conditions(places.iter().map(|place| wanted[*place])),
                steps: schedule.ode_steps(),
            };
            sampler.run(&rollout, request, |_| advance(&observer))
        });
        let mut made: Vec<(u64, Decoded)> = Vec::with_capacity(wanted.len());
        for done in &sampled {
            for (id, decoded) in done.samples.iter().zip(self.decoded(done)?) {
                let lost = || TrainError::NonFiniteSample {
                    iteration,
                    sample: *id,
                    prompt: wanted[*id as usize].text.clone(),
                };
                made.push((*id, decoded.ok_or_else(lost)?));
            }
        }
        // Sizes were made one after the other.
        made.sort_by_key(|(id, _)| *id);
        let numbers: Vec<usize> = made.iter().map(|(id, _)| *id as usize).collect();
        let shown = made
            .iter()
            .filter(|(id, _)| !world.is_several() || self.is_shown(*id as usize));
        let pictures = shown
            .map(|(id, decoded)| (*id as usize, decoded.picture()))
            .collect();
        let samples = made.into_iter().map(|(id, decoded)| {
            let group = id / self.images_per_prompt as u64;
            decoded.sample(wanted[id as usize], group)
        });
        let samples: Vec<Sample> = samples.collect();
        let scores = match samples.is_empty() {
            // More ranks than prompts.
            true => Ok(vec![Vec::new(); rewards.ranges().count()]),
            false => {
                let scored = rewards.submit(samples, iteration).and_then(Ticket::wait);
                scored.map(|scored| scored.rewards.into_iter().map(|reward| reward.values).collect())
            }
        };
        let scores = of_all_ranks(exchange, scores)?;
        let share = Share {
            numbers,
            scores,
            pictures,
        };
        self.evaluated(share.of_all(exchange)?, rewards)
    }

    /// What the shares of all ranks come to.
    fn evaluated(&self, all: Share, rewards: &RewardWorkers) -> Result<Evaluation, TrainError> {
        let Share { scores, pictures, .. } = all;
        let mut images: Vec<Vec<Image>> = vec![Vec::new(); self.prompts.len()];
        for (number, picture) in pictures {
            images[number / self.images_per_prompt].push(picture);
        }
        let mut evaluation = Evaluation {
            images,
            prompt_means: vec![],
            scores: vec![],
            intervals: vec![],
        };
        for (values, (low, high)) in scores.into_iter().zip(rewards.ranges()) {
            let scores: Vec<Vec<f32>> = values
                .chunks(self.images_per_prompt)
                .map(<[f32]>::to_vec)
                .collect();
            let mean =
                |scores: &Vec<f32>| scores.iter().map(|s| f64::from(*s)).sum::<f64>() / scores.len() as f64;
            let means: Vec<f64> = scores.iter().map(mean).collect();
            let interval = mean_interval(&means, IntervalMethod::StudentT)?;
            evaluation
                .intervals
                .push(interval.within(ValueRange::new(low, high)));
            evaluation.prompt_means.push(means);
            evaluation.scores.push(scores);
        }
        Ok(evaluation)
    }

    /// Whether the picture of an evaluation shows image number `number` of all.
    fn is_shown(&self, number: usize) -> bool {
        let (rows, columns, _) = self.grid;
        number / self.images_per_prompt < rows && number % self.images_per_prompt < columns
    }

    /// The picture of an evaluation: one row per prompt, each image with its score by the first reward.
    ///
    /// # Errors
    /// If an image has an unusual number of channels.
    pub fn grid(&self, evaluation: &Evaluation, title: &str) -> Result<ImageGrid, TrainError> {
        let (rows, columns, scale) = self.grid;
        let mut grid = ImageGrid::new().title(title).scale(scale);
        for (index, prompt) in self.prompts.iter().enumerate().take(rows) {
            let scores = evaluation.scores.first().map(|scores| &scores[index]);
            let tiles = evaluation.images[index]
                .iter()
                .enumerate()
                .take(columns)
                .map(|(column, image)| {
                    let tile = Tile::new(
                        image.channels,
                        image.height,
                        image.width,
                        image.pixels_chw.clone(),
                    )?;
                    Ok(match scores {
                        Some(scores) => tile.label(format!("{:.2}", scores[column])),
                        None => tile,
                    })
                });
            let tiles: Vec<Tile> = tiles.collect::<Result<_, ReportError>>()?;
            grid.row(prompt.text.clone(), tiles);
        }
        Ok(grid)
    }
}

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Evaluates the current weights, each rank a share of the prompts; the first one writes metrics and the picture.
    pub(super) fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let watch = Stopwatch::start();
        let settings = &self.evaluation;
        let step = self.state.iteration;
        let weights = match &self.state.weights.average {
            Some(average) if settings.with_average => average,
            _ => &self.state.weights.current,
        };
        let subject = Subject {
            weights,
            plan: self.training_plan(),
            conditioner: &self.conditioner,
            micro_batch: self.settings.geometry.micro_batch_size(),
            rewards: &self.evaluation_rewards.workers,
            exchange: &*self.distribution.exchange,
        };
        let evaluation = settings.measure(subject, step, observer)?;
        let Some(files) = &mut self.files else {
            return Ok(());
        };
        let mut record = MetricRecord::new(step, "eval");
        let mut seen = Vec::new();
        for (index, reward) in self.evaluation_rewards.weights.iter().enumerate() {
            let interval = &evaluation.intervals[index];
            let name = &reward.name;
            record = record.with(&format!("reward/{name}"), interval.mean);
            if let (Some(low), Some(high)) = (interval.low, interval.high) {
                record = record
                    .with(&format!("reward/{name}/low"), low)
                    .with(&format!("reward/{name}/high"), high);
            }
            record = record.with(&format!("prompts/{name}"), evaluation.prompt_means[index].clone());
            seen.push((name.clone(), interval.clone()));
        }
        // Without rows there is no picture.
        if settings.grid.0 > 0 {
            let title = format!("held-out prompts after {step} iterations");
            let grid = settings.grid(&evaluation, &title)?;
            match files.directory.write_grid("eval", step, &grid) {
                Ok(picture) => {
                    if let Some(events) = &mut files.events {
                        events.image("eval/images", step, &picture)?;
                    }
                }
                // Too large, with its captions. A run is worth more than a picture of it.
                Err(error @ ReportError::Tile { .. }) => observer.notice(&format!("no picture: {error}")),
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(events) = &mut files.events {
            let texts: Vec<&str> = settings
                .prompts
                .iter()
                .map(|prompt| prompt.text.as_str())
                .collect();
            for (reward, means) in self
                .evaluation_rewards
                .weights
                .iter()
                .zip(&evaluation.prompt_means)
            {
                events.by_prompt(&reward.name, step, &texts, means)?;
            }
        }
        self.write(record)?;
        self.record_timing(&[("evaluation_s", watch.wall_s())])?;
        observer.evaluation(step, &seen);
        // Which of its accelerators had nothing to do in it does not matter; what they were asked for and did not do is named.
        let did = self.acceleration.take_activity();
        let within = format!("the evaluation after iteration {step}");
        self.name_undone(shortfalls(&did, &within), observer)?;
        self.tell_of_regressions(observer);
        self.tell_of_exploits(observer);
        // Whoever looks at the run's page before its end, or after the process was killed, sees how far it came.
        self.write_outcome(RunStatus::Unfinished, observer)?;
        Ok(())
    }
}
