//! The sampling half of an iteration: trajectories, images, rewards on their way.

use super::Trainer;
use super::drift::{Pending, Sums, Traced};
use super::failed_rewards::of_all_ranks;
use super::reward_times::{RewardTimes, Scored};
use crate::algorithm::Algorithm;
use crate::branching::Branches;
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
use flow_rewards::{RewardError, Sample, Ticket};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

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
    /// What accelerators did in the rollout itself, with its audit, if it was looked at apart.
    pub activity: Vec<Activity>,
    /// Processor seconds of the rollout, and of its repetition without the accelerators.
    pub cpu_s: Option<(f64, f64)>,
}

/// What of a rollout is sampled a second time, from the same noise, without the accelerators of the rollout.
pub(super) struct Repetition<'w> {
    /// Groups, the first of the rollout.
    pub groups: usize,
    /// Whether rewards are computed beside the rollout, or wait until everything is sampled.
    pub beside: bool,
    /// Weights of the repetition; none if it has those of the rollout.
    pub weights: Option<&'w Weights>,
}

/// The micro-batches of a rollout.
struct RolloutBatches<'k> {
    drawn: Vec<Drawn>,
    /// Samples of each, of all ranks.
    ranges: Vec<Range<usize>>,
    /// Those of this rank.
    mine: Vec<usize>,
    /// How many of the first keep their velocities.
    traced: usize,
    /// The candidates that were chosen, if any were.
    kept: Option<&'k [usize]>,
}

impl<A: Algorithm> Trainer<A, Acceleration> {
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

    /// The address of a candidate's first latent.
    fn start_id(&self, candidate: usize) -> u64 {
        let candidates = self.settings.geometry.candidates();
        let of = match self.settings.initial_noise {
            InitialNoise::PerSample => candidate,
            InitialNoise::PerGroup => candidate - candidate % candidates,
        };
        self.prompt_sampler.history().sample_id(self.state.iteration, of)
    }

    /// How the members of groups part in this iteration.
    pub(super) fn branches(&self) -> Branches<'_> {
        let (settings, iteration) = (&self.settings, self.state.iteration);
        let group_size = settings.geometry.group_size();
        Branches::new(&settings.branching, group_size, &self.schedule, iteration)
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

    pub(super) fn sampling_weights(&self) -> &Weights {
        let state = &self.state;
        let sampling = self.algorithm.sampling_weights(state.optimizer.steps());
        state.weights.of_rollout(sampling)
    }

    /// The sampler and the schedule for pictures of number `size` among the run's sizes.
    pub(super) fn at_size(&self, size: usize) -> (Sampler, &Schedule) {
        at_size(size, (&self.sampler, &self.schedule), &self.others)
    }

    /// Takes the samples of a micro-batch through the steps of a rollout; keeps the velocities if `traced`. `kept` has the candidate
    /// that each sample of the iteration is; none for the first ones.
    fn sample_range(
        &self,
        rollout: &InferencePass<'_>,
        drawn: &[Drawn],
        (range, kept): (Range<usize>, Option<&[usize]>),
        traced: bool,
        on_step: impl Fn(),
    ) -> Traced {
        let geometry = &self.settings.geometry;
        let candidate = |sample: usize| match kept {
            Some(kept) => kept[sample],
            None => geometry.first_candidate(sample),
        };
        let candidates: Vec<usize> = range.clone().map(candidate).collect();
        let (group, member) = geometry.slot(range.start);
        let schedule = self.at_size(self.evaluation.sizes.of(&drawn[group].prompt)).1;
        let branches = self.branches();
        let random = branches.random_steps(drawn[group].group, member);
        let steps = schedule.steps_random_at(random, branches.window());
        let ids = self.ids(&candidates);
        let members: Vec<usize> = range.map(|sample| geometry.slot(sample).1).collect();
        let noise_ids = branches.noise_ids(steps.len(), &ids, &members);
        let of_size = |_: usize| steps.clone();
        let mut sampled = self.sample_candidates(
            rollout,
            drawn,
            (&candidates, &noise_ids),
            of_size,
            traced,
            on_step,
        );
        let whole = schedule.steps_random_at(branches.window(), branches.window());
        sampled.trajectories.trained = branches.window().iter().map(|step| whole[*step]).collect();
        sampled
    }

    /// The addresses of candidates.
    fn ids(&self, candidates: &[usize]) -> Vec<u64> {
        let history = self.prompt_sampler.history();
        let id = |candidate: &usize| history.sample_id(self.state.iteration, *candidate);
        candidates.iter().map(id).collect()
    }

    /// Takes candidates, which are of one size, through the steps that `steps` has for it; keeps the velocities if `traced`. `noise_ids` are
    /// those of [`Sampler::run_recording`].
    pub(super) fn sample_candidates(
        &self,
        rollout: &InferencePass<'_>,
        drawn: &[Drawn],
        (candidates, noise_ids): (&[usize], &[Vec<u64>]),
        steps: impl Fn(usize) -> Vec<StepCoefficients>,
        traced: bool,
        on_step: impl Fn(),
    ) -> Traced {
        let watch = Stopwatch::start();
        let of = |candidate: usize| &drawn[candidate / self.settings.geometry.candidates()];
        let size = self.evaluation.sizes.of(&of(candidates[0]).prompt);
        let (sampler, steps) = (self.at_size(size).0, steps(size));
        let ids = self.ids(candidates);
        let starts: Vec<u64> = (candidates.iter())
            .map(|candidate| self.start_id(*candidate))
            .collect();
        let prompts = candidates.iter().map(|candidate| &of(*candidate).prompt);
        let request = SampleRequest {
            site: CallSite {
                steps: steps.len() as u32,
                ..self.site(Stage::Rollout)
            },
            source: NoiseSource::Rollout,
            samples: &ids,
            starts: &starts,
            conditions: self.conditioner.conditions(prompts),
            steps: &steps,
        };
        let mut velocities = Vec::new();
        let keeps = |step: &StepCoefficients| self.algorithm.keeps_step(step);
        let trajectories = sampler.run_recording(rollout, request, (noise_ids, keeps), |stepped| {
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

    /// The scores of this rank's samples, by reward, once all are there, and how long they took.
    ///
    /// # Errors
    /// [`TrainError::Unscored`] on all ranks, if rewards failed on one.
    pub(super) fn scored(
        &self,
        tickets: Vec<Ticket>,
        observer: &mut dyn Observer,
    ) -> Result<(Vec<Vec<f32>>, RewardTimes), TrainError> {
        observer.phase(Phase::Rewards, tickets.len());
        let waited_from = Instant::now();
        let wait = |ticket: Ticket| -> Result<Scored, RewardError> {
            let submitted = ticket.submitted();
            let batch = ticket.wait()?;
            observer.advance(1);
            Ok((submitted, batch))
        };
        let scored: Result<Vec<Scored>, RewardError> = tickets.into_iter().map(wait).collect();
        let scored = of_all_ranks(&*self.distribution.exchange, scored)?;
        let times = RewardTimes::of(&scored, waited_from);
        let mut columns: Vec<Vec<f32>> = vec![Vec::new(); self.rewards.weights.len()];
        for (_, batch) in scored {
            for (column, scores) in columns.iter_mut().zip(batch.rewards) {
                column.extend(scores.values);
            }
        }
        Ok((columns, times))
    }

    /// What rewards look at of a sample of a group.
    ///
    /// # Errors
    /// If there is nothing, since a value is not finite.
    pub(super) fn to_score(
        &self,
        drawn: &Drawn,
        id: u64,
        decoded: Option<Decoded>,
    ) -> Result<Sample, TrainError> {
        let Drawn { prompt, group } = drawn;
        let decoded = decoded.ok_or_else(|| TrainError::NonFiniteSample {
            iteration: self.state.iteration + 1,
            sample: id,
            prompt: prompt.text.clone(),
        })?;
        Ok(decoded.sample(prompt, *group))
    }

    /// A rollout of this iteration in which `stacks` runs the blocks, one micro-batch after another, and nothing else is done:
    /// for drivers that measure: the model is called every time, not replayed from a recording without them.
    pub fn measure(&self, stacks: Arc<dyn StackDriver>, observer: &mut dyn Observer) {
        let micro_batches = self.settings.geometry.micro_batches();
        self.measure_with(self.sampling_weights(), micro_batches, stacks, observer);
    }

    /// As [`measure`](Self::measure) with these weights, and the first `micro_batches` alone.
    pub(super) fn measure_with(
        &self,
        weights: &Weights,
        micro_batches: usize,
        stacks: Arc<dyn StackDriver>,
        observer: &mut dyn Observer,
    ) {
        let steps = self.schedule.steps_for(self.state.iteration);
        let geometry = &self.settings.geometry;
        let plan = Backends {
            stacks,
            velocities: Arc::new(CallModel),
            ..(**self.training_plan()).clone()
        };
        let rollout = InferencePass::new(weights, Arc::new(plan));
        observer.phase(Phase::Rollout, micro_batches * steps.len());
        let (drawn, observer) = (self.drawn(), Mutex::new(observer));
        for range in geometry.micro_batch_samples().take(micro_batches) {
            self.sample_range(&rollout, &drawn, (range, None), false, || advance(&observer));
        }
    }

    /// Samples every micro-batch; a group's images go to the reward workers as soon as the group is complete, so
    /// rewards are computed beside the generation of the next ones. `kept` has the candidates that were chosen, if any were.
    pub(super) fn roll_out(
        &self,
        kept: Option<&[usize]>,
        observer: &mut dyn Observer,
    ) -> Result<RolloutOutcome, TrainError> {
        let repetition = Repetition {
            groups: self.drift_groups(),
            beside: true,
            weights: None,
        };
        self.roll_out_comparing(self.sampling_weights(), &repetition, kept, observer)
    }

    /// As [`roll_out`](Self::roll_out) with these weights, and some groups once more.
    pub(super) fn roll_out_comparing(
        &self,
        weights: &Weights,
        repetition: &Repetition<'_>,
        kept: Option<&[usize]>,
        observer: &mut dyn Observer,
    ) -> Result<RolloutOutcome, TrainError> {
        let Repetition { groups, beside, .. } = *repetition;
        let geometry = &self.settings.geometry;
        let twice = groups * geometry.group_size();
        let twice_batches = twice.div_ceil(geometry.micro_batch_size());
        let batches = RolloutBatches {
            drawn: self.drawn(),
            ranges: geometry.micro_batch_samples().collect(),
            mine: self.distribution.micro_batches(geometry),
            traced: twice_batches,
            kept,
        };
        let steps = self.schedule.steps_for(self.state.iteration);
        let total = (batches.mine.len() + twice_batches) * steps.len();
        observer.phase(Phase::Rollout, total);
        let observer = Mutex::new(observer);
        let on_step = || advance(&observer);
        let cpu_before = process_cpu_s();
        let (mut outcome, traced, waiting) = self.sample_once(&batches, weights, beside, &on_step)?;
        if twice == 0 {
            return Ok(outcome);
        }
        if !beside {
            // Nothing but this rollout counts.
            outcome.activity = self.acceleration.take_activity();
        }
        let cpu_between = process_cpu_s();
        let exact = repetition.weights.unwrap_or(weights);
        let exact = InferencePass::new(exact, self.training_plan().clone());
        let (sums, pairs) = self.sample_again(&batches, &exact, (&traced[..], twice), &on_step)?;
        let cpu = |from: Option<f64>, to: Option<f64>| Some(to? - from?);
        outcome.cpu_s = cpu(cpu_before, cpu_between).zip(cpu(cpu_between, process_cpu_s()));
        if !waiting.is_empty() {
            self.submit(&mut outcome, waiting)?;
        }
        let number = outcome.tickets.len() as u64;
        let all = batches.ranges.len();
        let lanes = self.sampler.device.concurrency().min(all) * twice_batches;
        let (with_s, without_s) = sums.wall_s();
        outcome.drift = Some(Pending {
            sums,
            ticket: self.rewards.workers.submit(pairs, number)?,
            samples: twice,
            saved_s: (without_s - with_s) * all as f64 / lanes as f64,
        });
        Ok(outcome)
    }

    /// Samples every micro-batch of this rank. Rewards of whole groups are computed `beside` it; otherwise all samples wait, and are given
    /// last. Before them come the micro-batches that are traced.
    fn sample_once(
        &self,
        batches: &RolloutBatches<'_>,
        weights: &Weights,
        beside: bool,
        on_step: &(impl Fn() + Sync),
    ) -> Result<(RolloutOutcome, Vec<Traced>, Vec<Sample>), TrainError> {
        let geometry = &self.settings.geometry;
        let group = |sample: usize| batches.drawn[geometry.slot(sample).0].group;
        let mut outcome = RolloutOutcome {
            batches: BTreeMap::new(),
            tickets: Vec::new(),
            groups: (0..geometry.samples()).map(group).collect(),
            watched: Vec::new(),
            drift: None,
            activity: Vec::new(),
            cpu_s: None,
        };
        let looks = self.settings.watch.looks_at(self.state.iteration);
        let (mut waiting, mut traced): (Vec<Sample>, Vec<Traced>) = (Vec::new(), Vec::new());
        let scope = self.acceleration.rollout(weights)?;
        for wave in batches.mine.chunks(self.sampler.device.concurrency()) {
            self.distribution.exchange.check()?;
            let sampled = self.sample_wave(batches, scope.rollout(), wave, on_step);
            for (index, done) in wave.iter().zip(sampled) {
                let range = batches.ranges[*index].clone();
                let samples = self.samples_to_score(&batches.drawn, range, &done.trajectories)?;
                if looks {
                    outcome.watched.extend(samples.iter().map(SampleStatistics::of));
                }
                waiting.extend(samples);
                outcome.batches.insert(*index, done.trajectories.clone());
                if *index < batches.traced {
                    traced.push(done);
                }
            }
            let complete = waiting.len() / geometry.group_size() * geometry.group_size();
            if complete > 0 && beside {
                let rest = waiting.split_off(complete);
                let whole_groups = std::mem::replace(&mut waiting, rest);
                self.submit(&mut outcome, whole_groups)?;
            }
        }
        drop(scope);
        if beside && !waiting.is_empty() {
            // Samples of groups that other ranks have a part of.
            self.submit(&mut outcome, std::mem::take(&mut waiting))?;
        }
        Ok((outcome, traced, waiting))
    }

    /// Samples the first `count` samples once more, with `pass`: how they differ from those of the micro-batches `traced`, and what rewards
    /// look at.
    fn sample_again(
        &self,
        batches: &RolloutBatches<'_>,
        pass: &InferencePass<'_>,
        (traced, count): (&[Traced], usize),
        on_step: &(impl Fn() + Sync),
    ) -> Result<(Sums, Vec<Sample>), TrainError> {
        let (mut sums, mut pairs): (Sums, Vec<Sample>) = (Sums::default(), Vec::new());
        for wave in batches.mine[..batches.traced].chunks(self.sampler.device.concurrency()) {
            let sampled = self.sample_wave(batches, pass, wave, on_step);
            for (index, done) in wave.iter().zip(sampled) {
                let range = &batches.ranges[*index];
                let range = range.start..range.end.min(count);
                sums.add(&traced[*index], &done, range.len());
                pairs.extend(self.samples_to_score(&batches.drawn, range, &done.trajectories)?);
            }
        }
        Ok((sums, pairs))
    }

    /// Samples micro-batches beside one another; in their order.
    fn sample_wave(
        &self,
        batches: &RolloutBatches<'_>,
        pass: &InferencePass<'_>,
        wave: &[usize],
        on_step: &(impl Fn() + Sync),
    ) -> Vec<Traced> {
        self.sampler.device.concurrently(wave.len(), |at| {
            let (range, traced) = (batches.ranges[wave[at]].clone(), wave[at] < batches.traced);
            self.sample_range(pass, &batches.drawn, (range, batches.kept), traced, on_step)
        })
    }

    /// What rewards look at of the samples `range` of the iteration, with which a micro-batch begins.
    fn samples_to_score(
        &self,
        drawn: &[Drawn],
        range: Range<usize>,
        done: &Trajectories,
    ) -> Result<Vec<Sample>, TrainError> {
        let decoded = self.evaluation.decoded(done)?;
        let slot = |sample: usize| &drawn[self.settings.geometry.slot(sample).0];
        range
            .zip(&done.samples)
            .zip(decoded)
            .map(|((sample, id), decoded)| self.to_score(slot(sample), *id, decoded))
            .collect()
    }

    /// Hands samples to the reward workers.
    fn submit(&self, outcome: &mut RolloutOutcome, samples: Vec<Sample>) -> Result<(), TrainError> {
        let number = outcome.tickets.len() as u64;
        outcome
            .tickets
            .push(self.rewards.workers.submit(samples, number)?);
        Ok(())
    }
}

/// One more step is done, says one of several threads.
pub(super) fn advance(observer: &Mutex<&mut dyn Observer>) {
    observer.lock().unwrap_or_else(PoisonError::into_inner).advance(1);
}
