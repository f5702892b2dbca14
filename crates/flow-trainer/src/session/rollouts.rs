//! The sampling half of an iteration: trajectories, images, rewards on their way.

use super::Parts;
use super::drift::{Pending, Sums, Traced};
use crate::algorithm::Algorithm;
use crate::decoder::Decoded;
use crate::error::TrainError;
use crate::observer::{Observer, Phase};
use crate::policy::CallSite;
use crate::rollout::{NoiseSource, SampleRequest, Sampler, Trajectories};
use crate::scheduler::{Schedule, StepCoefficients};
use crate::sizes::at_size;
use crate::watch::SampleStatistics;
use flow_accel::{Acceleration, Activity};
use flow_config::InitialNoise;
use flow_core::{Backends, CallModel, InferencePass, StackDriver, Stage, Weights, cpu};
use flow_data::Prompt;
use flow_report::{Stopwatch, process_cpu_s};
use flow_rewards::{Sample, Ticket};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// One prompt of an iteration with its group.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub prompt: Prompt,
    pub group: u64,
}

/// What a rollout leaves: trajectories for the loss, tickets for the rewards.
pub(super) struct RolloutOutcome {
    /// By micro-batch; those of this rank.
    pub batches: BTreeMap<usize, Trajectories>,
    pub tickets: Vec<Ticket>,
    /// Group of each sample of all ranks, in order.
    pub groups: Vec<u64>,
    /// The images' statistics, of this rank's samples in order; empty where nobody looks at them.
    pub watched: Vec<SampleStatistics>,
    /// The comparison with the same samples without the accelerators of the rollout.
    pub drift: Option<Pending>,
    /// What accelerators did in the rollout itself, if it was looked at apart.
    pub activity: Vec<Activity>,
    /// Processor seconds of the rollout, and of its repetition without the accelerators.
    pub cpu_s: Option<(f64, f64)>,
}

impl<A: Algorithm> Parts<A, Acceleration> {
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
        self.prompt_sampler.history().sample_id(self.state.iteration, of)
    }

    /// The prompts of this iteration.
    pub(super) fn drawn(&self) -> Vec<Drawn> {
        (self.prompt_sampler.draw(self.state.iteration).into_iter())
            .map(|draw| Drawn {
                prompt: self.prompts[draw.prompt].clone(),
                group: draw.group,
            })
            .collect()
    }

    fn sampling_weights(&self) -> &Weights {
        let state = &self.state;
        let sampling = self.algorithm.sampling_weights(state.optimizer.steps());
        state.weights.of_rollout(sampling)
    }

    /// The sampler and the schedule for pictures of number `size` among the run's sizes.
    pub(super) fn at_size(&self, size: usize) -> (Sampler, &Schedule) {
        at_size(size, (&self.sampler, &self.schedule), &self.others)
    }

    /// Takes the samples of a micro-batch, which are of one size, through the steps; keeps the velocities if `traced`.
    fn sample_range(
        &self,
        rollout: &InferencePass<'_>,
        drawn: &[Drawn],
        range: Range<usize>,
        traced: bool,
        on_step: impl Fn(),
    ) -> Traced {
        let (geometry, watch) = (&self.settings.geometry, Stopwatch::start());
        let of = |sample: usize| &drawn[geometry.slot(sample).0];
        let (sampler, schedule) = self.at_size(self.evaluation.sizes.of(&of(range.start).prompt));
        let steps = schedule.steps_for(self.state.iteration);
        let first = self.prompt_sampler.history().first_sample(self.state.iteration);
        let ids: Vec<u64> = (range.clone()).map(|sample| first + sample as u64).collect();
        let starts: Vec<u64> = range.clone().map(|sample| self.start_id(sample)).collect();
        let request = SampleRequest {
            site: self.site(Stage::Rollout),
            source: NoiseSource::Rollout,
            samples: &ids,
            starts: &starts,
            conditions: self
                .conditioner
                .conditions(range.map(|sample| &of(sample).prompt)),
            steps: &steps,
        };
        let mut velocities = Vec::new();
        let keeps = |step: &StepCoefficients| self.algorithm.keeps_step(step);
        let trajectories = sampler.run_recording(rollout, request, keeps, |stepped| {
            if traced {
                velocities.push(cpu::to_host(stepped.velocity));
            }
            on_step();
        });
        Traced {
            trajectories,
            velocities,
            wall_s: watch.wall_s(),
        }
    }

    /// A rollout of this iteration in which `stacks` runs the blocks, one micro-batch after another, and nothing else is done:
    /// for drivers that measure: the model is called every time, not replayed from a recording without them.
    pub fn measure(&self, stacks: Arc<dyn StackDriver>, observer: &mut dyn Observer) {
        let steps = self.schedule.steps_for(self.state.iteration);
        let geometry = &self.settings.geometry;
        let plan = Backends {
            stacks,
            velocities: Arc::new(CallModel),
            ..(**self.training_plan()).clone()
        };
        let rollout = InferencePass::new(self.sampling_weights(), Arc::new(plan));
        observer.phase(Phase::Rollout, geometry.micro_batches() * steps.len());
        let (drawn, observer) = (self.drawn(), Mutex::new(observer));
        for range in geometry.micro_batch_samples() {
            self.sample_range(&rollout, &drawn, range, false, || advance(&observer));
        }
    }

    /// Samples every micro-batch; a group's images go to the reward workers as soon as the group is complete, so
    /// rewards are computed beside the generation of the next ones.
    pub(super) fn roll_out(&self, observer: &mut dyn Observer) -> Result<RolloutOutcome, TrainError> {
        self.roll_out_comparing(self.drift_groups(), true, observer)
    }

    /// As [`roll_out`](Self::roll_out), and the first `compared` groups once more without the accelerators of the rollout.
    /// Unless `beside`, rewards wait until everything is sampled.
    pub(super) fn roll_out_comparing(
        &self,
        compared: usize,
        beside: bool,
        observer: &mut dyn Observer,
    ) -> Result<RolloutOutcome, TrainError> {
        let geometry = &self.settings.geometry;
        let steps = self.schedule.steps_for(self.state.iteration);
        let (drawn, weights) = (self.drawn(), self.sampling_weights());
        let twice = compared * geometry.group_size();
        let twice_batches = twice.div_ceil(geometry.micro_batch_size());
        let mine = self.distribution.micro_batches(geometry);
        let total = (mine.len() + twice_batches) * steps.len();
        observer.phase(Phase::Rollout, total);
        let observer = Mutex::new(observer);
        let of = |sample: usize| &drawn[geometry.slot(sample).0];
        let ranges: Vec<Range<usize>> = geometry.micro_batch_samples().collect();
        let sample = |rollout: &InferencePass<'_>, index: usize| {
            let traced = index < twice_batches;
            self.sample_range(rollout, &drawn, ranges[index].clone(), traced, || {
                advance(&observer)
            })
        };
        let to_score = |sample: usize, id: u64, decoded: Option<Decoded>| {
            let Drawn { prompt, group } = of(sample);
            let decoded = decoded.ok_or_else(|| TrainError::NonFiniteSample {
                iteration: self.state.iteration + 1,
                sample: id,
                prompt: prompt.text.clone(),
            })?;
            Ok::<_, TrainError>(decoded.sample(prompt, *group))
        };

        let mut outcome = RolloutOutcome {
            batches: BTreeMap::new(),
            tickets: Vec::new(),
            groups: (0..geometry.samples()).map(|sample| of(sample).group).collect(),
            watched: Vec::new(),
            drift: None,
            activity: Vec::new(),
            cpu_s: None,
        };
        let looks = self.settings.watch.looks_at(self.state.iteration);
        let mut waiting: Vec<Sample> = Vec::new();
        let mut traced: Vec<Traced> = Vec::new();
        let device = &self.sampler.device;
        let cpu_before = process_cpu_s();
        let scope = self.acceleration.rollout(weights)?;
        for wave in mine.chunks(device.concurrency()) {
            self.distribution.exchange.check()?;
            let sampled = device.concurrently(wave.len(), |at| sample(scope.rollout(), wave[at]));
            for (index, done) in wave.iter().zip(sampled) {
                let range = ranges[*index].clone();
                let decoded = self.evaluation.decoded(&done.trajectories)?;
                for ((sample, id), decoded) in range.zip(&done.trajectories.samples).zip(decoded) {
                    let scored = to_score(sample, *id, decoded)?;
                    if looks {
                        outcome.watched.push(SampleStatistics::of(&scored));
                    }
                    waiting.push(scored);
                }
                outcome.batches.insert(*index, done.trajectories.clone());
                if *index < twice_batches {
                    traced.push(done);
                }
            }
            let complete = waiting.len() / geometry.group_size() * geometry.group_size();
            if complete > 0 && beside {
                let rest = waiting.split_off(complete);
                let batch = std::mem::replace(&mut waiting, rest);
                let number = outcome.tickets.len() as u64;
                outcome.tickets.push(self.rewards.0.submit(batch, number)?);
            }
        }
        drop(scope);
        if beside && !waiting.is_empty() {
            // Samples of groups that other ranks have a part of.
            let number = outcome.tickets.len() as u64;
            let rest = std::mem::take(&mut waiting);
            outcome.tickets.push(self.rewards.0.submit(rest, number)?);
        }
        if twice == 0 {
            return Ok(outcome);
        }
        if !beside {
            // Nothing but this rollout counts.
            outcome.activity = self.acceleration.take_activity();
        }
        let cpu_between = process_cpu_s();
        let exact = InferencePass::new(weights, self.training_plan().clone());
        let (mut sums, mut pairs) = (Sums::default(), Vec::new());
        for wave in mine[..twice_batches].chunks(device.concurrency()) {
            let sampled = device.concurrently(wave.len(), |at| sample(&exact, wave[at]));
            for (index, done) in wave.iter().zip(sampled) {
                let range = ranges[*index].start..ranges[*index].end.min(twice);
                sums.add(&traced[*index], &done, range.len());
                let decoded = self.evaluation.decoded(&done.trajectories)?;
                for ((sample, id), decoded) in range.zip(&done.trajectories.samples).zip(decoded) {
                    pairs.push(to_score(sample, *id, decoded)?);
                }
            }
        }
        let cpu = |from: Option<f64>, to: Option<f64>| Some(to? - from?);
        outcome.cpu_s = cpu(cpu_before, cpu_between).zip(cpu(cpu_between, process_cpu_s()));
        if !waiting.is_empty() {
            outcome.tickets.push(self.rewards.0.submit(waiting, 0)?);
        }
        let number = outcome.tickets.len() as u64;
        let lanes = device.concurrency().min(ranges.len()) * twice_batches;
        let (with_s, without_s) = sums.wall_s();
        outcome.drift = Some(Pending {
            sums,
            ticket: self.rewards.0.submit(pairs, number)?,
            samples: twice,
            saved_s: (without_s - with_s) * ranges.len() as f64 / lanes as f64,
        });
        Ok(outcome)
    }
}

/// One more step is done, says one of several threads.
pub(super) fn advance(observer: &Mutex<&mut dyn Observer>) {
    observer.lock().unwrap_or_else(PoisonError::into_inner).advance(1);
}
