//! The sampling half of an iteration: trajectories, images, rewards on their way.

use super::Parts;
use crate::algorithm::{Algorithm, SamplingWeights};
use crate::error::TrainError;
use crate::observer::{Observer, Phase};
use crate::policy::CallSite;
use crate::rollout::{NoiseSource, SampleRequest, Trajectories};
use flow_config::InitialNoise;
use flow_core::{Stage, cpu};
use flow_data::{Image, ImageShape, Prompt};
use flow_rewards::{Sample, Ticket};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// One prompt of an iteration with its group.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub prompt: Prompt,
    pub group: u64,
}

/// What a rollout leaves: trajectories for the loss, tickets for the rewards.
pub(super) struct RolloutOutcome {
    pub batches: Vec<Trajectories>,
    pub tickets: Vec<Ticket>,
    /// Group of each sample, in order.
    pub groups: Vec<u64>,
}

impl<A: Algorithm> Parts<A> {
    pub(super) fn site(&self, stage: Stage) -> CallSite {
        let steps = self.schedule.grid().steps() as u32;
        CallSite {
            stage,
            iteration: self.state.iteration,
            step: 0,
            steps,
            stochastic: false,
            sigma: None,
        }
    }

    /// The address of a sample's first latent.
    fn start_id(&self, sample: usize) -> u64 {
        let geometry = &self.settings.geometry;
        let of = match self.settings.initial_noise {
            InitialNoise::PerSample => sample,
            InitialNoise::PerGroup => sample - geometry.slot(sample).1,
        };
        geometry.sample_id(self.state.iteration, of)
    }

    pub(super) fn image_shape(&self) -> ImageShape {
        self.dataset.image_shape()
    }

    /// Samples every micro-batch; a group's images go to the reward workers as soon as the group is complete, so
    /// rewards are computed beside the generation of the next ones.
    pub(super) fn roll_out(&self, observer: &mut dyn Observer) -> Result<RolloutOutcome, TrainError> {
        let geometry = &self.settings.geometry;
        let steps = self.schedule.steps_for(self.state.iteration);
        let drawn: Vec<Drawn> = (self.prompt_sampler.draw(self.state.iteration).into_iter())
            .map(|draw| Drawn {
                prompt: self.prompts[draw.prompt].clone(),
                group: draw.group,
            })
            .collect();
        let weights = match self.algorithm.sampling_weights() {
            SamplingWeights::Current => &self.state.weights.current,
            SamplingWeights::Old => self.state.weights.old(),
        };
        let scope = self.acceleration.rollout(weights)?;
        let rollout = scope.rollout();
        let site = self.site(Stage::Rollout);
        observer.phase(Phase::Rollout, geometry.micro_batches() * steps.len());

        let mut outcome = RolloutOutcome {
            batches: Vec::new(),
            tickets: Vec::new(),
            groups: Vec::new(),
        };
        let mut waiting: Vec<Sample> = Vec::new();
        let of = |sample: usize| &drawn[geometry.slot(sample).0];
        let observer = Mutex::new(observer);
        let sample = |range: &Range<usize>| {
            let ids: Vec<u64> = range
                .clone()
                .map(|sample| geometry.sample_id(self.state.iteration, sample))
                .collect();
            let starts: Vec<u64> = range.clone().map(|sample| self.start_id(sample)).collect();
            let request = SampleRequest {
                site,
                source: NoiseSource::Rollout,
                samples: &ids,
                starts: &starts,
                conditions: self
                    .conditioner
                    .conditions(range.clone().map(|sample| &of(sample).prompt)),
                steps: &steps,
            };
            self.sampler.run(rollout, request, |_| advance(&observer))
        };
        let device = &self.sampler.device;
        let ranges: Vec<Range<usize>> = geometry.micro_batch_samples().collect();
        for wave in ranges.chunks(device.concurrency()) {
            let sampled = device.concurrently(wave.len(), |index| sample(&wave[index]));
            for (range, done) in wave.iter().zip(sampled) {
                outcome
                    .groups
                    .extend(range.clone().map(|sample| of(sample).group));
                let images = images(&done.clean, self.image_shape());
                for ((sample, id), image) in range.clone().zip(&done.samples).zip(images) {
                    let Drawn { prompt, group } = of(sample);
                    let image = image.ok_or_else(|| TrainError::NonFiniteSample {
                        iteration: self.state.iteration + 1,
                        sample: *id,
                        prompt: prompt.text.clone(),
                    })?;
                    waiting.push(Sample {
                        group: *group,
                        image,
                        prompt: prompt.clone(),
                    });
                }
                outcome.batches.push(done);
            }
            let complete = waiting.len() / geometry.group_size() * geometry.group_size();
            if complete > 0 {
                let rest = waiting.split_off(complete);
                let batch = std::mem::replace(&mut waiting, rest);
                outcome
                    .tickets
                    .push(self.rewards.0.submit(batch, outcome.tickets.len() as u64)?);
            }
        }
        Ok(outcome)
    }
}

/// One more step is done, says one of several threads.
pub(super) fn advance(observer: &Mutex<&mut dyn Observer>) {
    observer.lock().unwrap_or_else(PoisonError::into_inner).advance(1);
}

/// Latents as images, clamped to `[-1, 1]`; `None` where a value is not finite.
pub(super) fn images(latents_bn: &flow_core::Plain, shape: ImageShape) -> Vec<Option<Image>> {
    let values = cpu::to_host(latents_bn);
    let image = |pixels: &[f32]| {
        if pixels.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let pixels_chw = pixels.iter().map(|value| value.clamp(-1.0, 1.0)).collect();
        let ImageShape {
            channels,
            height,
            width,
        } = shape;
        Some(Image {
            channels,
            height,
            width,
            pixels_chw,
        })
    };
    values.chunks_exact(shape.len()).map(image).collect()
}
