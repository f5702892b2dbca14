//! One iteration: sample, score, compare, learn, average, write down.

use super::mean::Mean;
use super::micro_batches::Counted;
use super::reward_times::RewardTimes;
use super::stale::both;
use super::state::Decays;
use super::tally::DRIVER;
use super::unscored::of_this_rank;
use super::update::UpdateOutcome;
use super::{RewardWeight, Session};
use crate::advantage::{Advantages, RewardColumn, compute_advantages};
use crate::algorithm::{Algorithm, Memory, Moment, RewardedRows, SlowCopy};
use crate::error::TrainError;
use crate::observer::{IterationSummary, Observer};
use crate::rollout::Trajectories;
use crate::undone::{Undone, settle, undone};
use flow_accel::{Acceleration, Activity};
use flow_core::cpu;
use flow_report::Stopwatch;
use flow_rewards::Ticket;
use std::collections::{BTreeMap, BTreeSet};

/// Values of all samples of an iteration, in order, for each of several things.
type Columns = Vec<Vec<f32>>;

/// What an algorithm logs beside its losses, by name.
type Logged = Vec<(String, Mean)>;

/// The values of each reward, with its name and weight.
pub(super) fn reward_columns<'a>(
    rewards: &'a [RewardWeight],
    columns: impl Iterator<Item = &'a [f32]>,
) -> Vec<RewardColumn<'a>> {
    let column = |(reward, values): (&'a RewardWeight, &'a [f32])| RewardColumn {
        name: &reward.name,
        weight: reward.weight,
        values,
    };
    rewards.iter().zip(columns).map(column).collect()
}

/// Puts the algorithm's own advantages, if it has some, in the place of `advantages`. Gives how much it pulls each image back, none if
/// it says nothing of it, and what it logs.
fn weigh(
    algorithm: &impl Algorithm,
    rows: &RewardedRows<'_>,
    advantages: &mut Advantages,
    memory: &mut Memory,
) -> Result<(Vec<f32>, Logged), TrainError> {
    let Some(weighed) = algorithm.weigh(rows, memory)? else {
        return Ok((Vec::new(), Vec::new()));
    };
    advantages.replace(weighed.advantages);
    let metrics = weighed.metrics.into_iter();
    let logged = metrics.map(|(name, value)| (name.to_owned(), Mean::of(value)));
    Ok((weighed.gates, logged.collect()))
}

impl<A: Algorithm> Session<A> {
    /// Runs the next iteration and writes its metrics.
    pub(super) fn iterate(&mut self, observer: &mut dyn Observer) -> Result<IterationSummary, TrainError> {
        if self.parts.records.is_some() {
            return self.iterate_on_records(observer);
        }
        let mut watch = Stopwatch::start();
        // What was done before does not count.
        self.parts.acceleration.take_activity();
        let explored = self.parts.explore(observer)?;
        let kept = explored.as_ref().map(|explored| &*explored.kept);
        let exploration_s = explored.as_ref().map(|explored| explored.wall_s);
        watch.lap_s();
        let (rolled, ahead) = self.rollout_of_iteration(kept, observer)?;
        let rollout_s = watch.lap_s();
        let rollout_gib = self
            .tally
            .device_memory("rollouts", self.parts.sampler.device.taken_bytes());

        let (columns, log_probs, reward_times) = self.scored(rolled.tickets, &rolled.batches, observer)?;
        let watched = self.parts.watched(&rolled.watched, &rolled.groups)?;
        let names = &self.parts.rewards.1;
        let rewards = reward_columns(names, columns.iter().map(Vec::as_slice));
        let options = &self.parts.settings.advantage;
        let compared = self.parts.branches().compared_groups(&rolled.groups);
        let drift = (rolled.drift)
            .map(|pending| pending.finish(names, &columns, &compared, options))
            .transpose()
            .map_err(of_this_rank)?;
        let mut advantages = compute_advantages(&rewards, &compared, options)?;
        let rows = RewardedRows {
            rewards: &rewards,
            groups: &compared,
        };
        let memory = &mut self.parts.state.memory;
        let (gates, logged) = weigh(&self.parts.algorithm, &rows, &mut advantages, memory)?;
        let credits = (self.parts.branches()).credits(&advantages.values, &log_probs);
        let rewards_s = watch.lap_s();

        let counted = Counted {
            advantages: &advantages.values,
            credits: &credits,
            gates: &gates,
        };
        self.parts.remember_weights();
        let mut outcome = self
            .parts
            .update(&rolled.batches, counted, &rolled.groups, ahead, observer)?;
        outcome.terms.extend(logged);
        let images = rolled.groups.len();
        self.parts.follow(&outcome);
        let activity = self.activity(&rolled.activity, observer)?;
        let explored = match explored {
            Some(explored) => Some(self.explored(explored, &columns, observer)?),
            None => None,
        };
        self.name_kernels()?;
        let predicted = match &drift {
            Some(drift) => (self.parts.acceleration).audited(&activity, &drift.latent_l1_by_sample),
            None => Vec::new(),
        };
        let update_s = watch.lap_s();
        let device = &self.parts.sampler.device;
        let update_gib = self.tally.device_memory("updates", device.taken_bytes());
        let driver_gib = (self.tally).device_memory(DRIVER, device.driver_bytes());

        self.parts.state.iteration += 1;
        self.tally.add(images, outcome.audit.as_ref(), &self.parts.state);
        self.record_iteration(
            Some(&advantages.metrics),
            &outcome,
            &activity,
            drift.as_ref().map(|drift| (drift, &*predicted)),
            watched.as_ref(),
            explored.as_ref(),
        )?;
        let mut timing = vec![
            ("rollout_s", rollout_s),
            ("rewards_s", rewards_s),
            ("update_s", update_s),
        ];
        timing.extend(exploration_s.map(|wall_s| ("exploration_s", wall_s)));
        let wall_s: f64 = timing.iter().map(|(_, wall_s)| wall_s).sum();
        self.record_timing(&timing)?;
        self.record_reward_times(&reward_times)?;
        self.record_throughput(images, wall_s)?;
        self.record_device_memory(rollout_gib, update_gib, driver_gib)?;
        if let Some(drift) = &drift {
            self.record_saved(drift)?;
        }
        if self.is_time_to_tell() {
            self.tell_of_exploits(observer);
        }
        Ok(IterationSummary {
            done: self.parts.state.iteration,
            total: self.parts.settings.iterations,
            reward: advantages.metrics.total.mean,
            loss: outcome.loss.value(),
            gradient_norm: outcome.steps.last().map_or(0.0, |step| step.gradient_norm),
            kl: outcome.terms.get("kl").map(Mean::value),
            clip_fraction: outcome.terms.get("clip_fraction").map(Mean::value),
            learning_rate: outcome.steps.last().map_or(0.0, |step| step.learning_rate),
            max_ratio_deviation: outcome.audit.map(|audit| audit.max_deviation()),
            images,
            wall_s,
        })
    }
}

impl<A: Algorithm> Session<A> {
    /// A column of values for each reward, and one for the log-probabilities of each recorded step if the branches of the run read them;
    /// of all samples of the iteration, in order. And how long the rewards took.
    fn scored(
        &self,
        tickets: Vec<Ticket>,
        batches: &BTreeMap<usize, Trajectories>,
        observer: &mut dyn Observer,
    ) -> Result<(Columns, Columns, RewardTimes), TrainError> {
        let rewards = self.parts.rewards.1.len();
        let (mut columns, times) = self.parts.scored(tickets, observer)?;
        let branches = self.parts.branches();
        if branches.reads_log_probs() {
            let of_record = |record: usize| {
                let batches = batches.values();
                batches
                    .flat_map(|batch| cpu::to_host(&batch.records[record].log_prob))
                    .collect::<Vec<f32>>()
            };
            columns.extend((0..branches.window().len()).map(of_record));
        }
        let mut columns = (self.parts.distribution).gather_columns(&self.parts.settings.geometry, columns)?;
        let log_probs = columns.split_off(rewards);
        Ok((columns, log_probs, times))
    }

    /// What the accelerators of all processes did in this iteration, of which `before` has what was counted before, if anything. What they
    /// did not do is named once, or stops a strict run.
    pub(super) fn activity(
        &mut self,
        before: &[Activity],
        observer: &mut dyn Observer,
    ) -> Result<Vec<Activity>, TrainError> {
        let own = both(before, self.parts.acceleration.take_activity());
        let activity = self.parts.distribution.gather_activity(own)?;
        self.name_undone(undone(&activity, &self.this_iteration()), observer)?;
        Ok(activity)
    }

    /// The iteration that is under way, in words.
    fn this_iteration(&self) -> String {
        format!("iteration {}", self.parts.state.iteration + 1)
    }

    /// Names what accelerators did not do, once each, or stops a strict run.
    pub(super) fn name_undone(
        &mut self,
        found: Vec<Undone>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        for one in settle(found, self.parts.settings.strict)? {
            if self.named_undone.insert(one.key()) {
                observer.notice(&one.to_string());
            }
        }
        Ok(())
    }
}

impl<A: Algorithm> Session<A> {
    /// Names the kernels that attention calls and matrix products of a new kind got, in the log and in the manifest.
    pub(super) fn name_kernels(&mut self) -> Result<(), TrainError> {
        let plan = self.parts.acceleration.training();
        let attention = plan.attention_log.since(self.named_attention);
        self.named_attention += attention.len();
        let attention: Vec<String> = attention.iter().map(ToString::to_string).collect();
        let products = plan.kernels.products();
        let products: Vec<String> = (products.into_iter())
            .filter(|product| self.named_products.insert(product.clone()))
            .collect();
        if attention.is_empty() && products.is_empty() {
            return Ok(());
        }
        let Some(files) = &self.files else {
            return Ok(());
        };
        let mut manifest = files.directory.read_manifest()?;
        for (key, found) in [("attention", attention), ("products", products)] {
            found.iter().for_each(|each| tracing::info!("{key}: {each}"));
            let named = manifest
                .device
                .get(key)
                .and_then(|named| named.as_array().cloned());
            let named = named.into_iter().flatten();
            // Calls run on several threads, so the order of the first ones is no one's.
            let mut all: BTreeSet<String> = named
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect();
            all.extend(found);
            if !all.is_empty() {
                let all: Vec<String> = all.into_iter().collect();
                manifest.device.insert(key.into(), all.into());
            }
        }
        Ok(files.directory.write_manifest(&manifest)?)
    }
}

impl<A: Algorithm> super::Parts<A, Acceleration> {
    /// Lets the moving average and slower copies follow the trained weights after an iteration, which came to `outcome`.
    pub(super) fn follow(&mut self, outcome: &UpdateOutcome) {
        let iteration = self.state.iteration;
        let logged = |name: &str| outcome.terms.get(name).map(Mean::value);
        for copy in [SlowCopy::Old, SlowCopy::Sampling] {
            if self.algorithm.renews(copy, &logged, &mut self.state.memory) {
                self.follow_with(Decays::renewing(copy));
            }
        }
        let average = self.settings.average.as_ref();
        let average = average.and_then(|plan| plan.decay_after(iteration));
        let moment = Moment::Iteration {
            iteration: iteration + 1,
            steps: self.state.optimizer.steps(),
        };
        self.follow_at(average, moment);
    }

    /// Lets the average and slower copies follow at a moment.
    pub(super) fn follow_at(&mut self, average: Option<f64>, moment: Moment) {
        let survives = |copy| self.algorithm.survives(copy, moment);
        let decays = Decays {
            average,
            old: survives(SlowCopy::Old),
            sampling: survives(SlowCopy::Sampling),
        };
        self.follow_with(decays);
    }

    fn follow_with(&mut self, decays: Decays) {
        let kernels = self.acceleration.training().kernels.clone();
        let (kernels, device) = (&*kernels, &self.sampler.device);
        let trained = self.state.optimizer.trained();
        self.state.weights.follow(kernels, device, trained, decays);
    }
}
