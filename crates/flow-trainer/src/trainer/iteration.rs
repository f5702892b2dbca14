//! Training, from top to bottom: sample, score, compare, learn, average, record; then, when they are due, evaluate and save.
//!
//! Each step is a call; what it does stands in the file of its name.

use super::Trainer;
use super::mean::Mean;
use super::micro_batches::Counted;
use super::offline_batches::OfflineBatches;
use super::run_counters::DRIVER;
use super::stale_rollout::RolledAhead;
use super::update::UpdateOutcome;
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::observer::{IterationSummary, Observer};
use flow_accel::Acceleration;
use flow_core::stopped;
use flow_report::{RunStatus, Stopwatch};

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Trains to the end, or until the observer interrupts, and writes checkpoint, summary and report. A trainer without a run folder
    /// ([`Trainer::join`], or [`Trainer::set_up`] alone) writes nothing.
    ///
    /// # Errors
    /// Whatever stops the run; what was written before stays.
    pub fn train(&mut self, observer: &mut dyn Observer) -> Result<RunStatus, TrainError> {
        let outcome = stopped::caught(|| self.iterations(observer)).unwrap_or_else(|why| Err(why.into()));
        if let Err(error) = &outcome {
            self.distribution.exchange.abort(&error.to_string());
        }
        let status = match &outcome {
            Ok(status) => status.clone(),
            Err(error) => RunStatus::Failed {
                cause: error.to_string(),
            },
        };
        self.finish(status, observer)?;
        outcome
    }

    fn iterations(&mut self, observer: &mut dyn Observer) -> Result<RunStatus, TrainError> {
        self.before_iterations(observer)?;
        let mut ahead = None;
        while self.state.iteration < self.settings.iterations {
            let watch = Stopwatch::start();
            let done = match self.records.is_some() {
                true => self.offline_iteration(observer),
                false => self.iteration(&mut ahead, observer),
            };
            let mut summary = match done {
                Ok(summary) => summary,
                Err(error) => return Err(self.saved_before(error, observer)),
            };
            summary.wall_s = watch.wall_s();
            observer.iteration(&summary);
            let done = self.state.iteration;
            let last = done == self.settings.iterations;
            let every = self.distribution.check_every;
            if every > 0 && (done.is_multiple_of(every) || last) {
                self.distribution.compare_replicas(&self.state)?;
            }
            // Evaluate.
            let every = self.evaluation.every;
            if every > 0 && (done.is_multiple_of(every) || last) {
                self.evaluate_or_save(observer)?;
            }
            // Save.
            let interrupted = self.distribution.any(observer.interrupted())? && !last;
            let every = self.settings.checkpoint_every;
            if (every > 0 && done.is_multiple_of(every)) || last || interrupted {
                self.save()?;
            }
            if interrupted {
                return Ok(RunStatus::Interrupted { step: done });
            }
        }
        Ok(RunStatus::Finished)
    }

    /// What a process does before its first iteration: evaluate and save the start, or what an earlier process left to do.
    fn before_iterations(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        for notice in &self.notices {
            observer.notice(notice);
        }
        // The rank that writes knows; all give it what they have.
        let unsaved = std::mem::take(&mut self.progress.unsaved);
        if self.distribution.any(unsaved)? {
            self.save()?;
        }
        if self.progress.resumed {
            self.progress.saved_at = Some(self.state.iteration);
        }
        // The rewards of this evaluation failed, and the run stopped.
        let is_due = std::mem::take(&mut self.progress.evaluation_due);
        if self.distribution.any(is_due)? && self.evaluation.every > 0 {
            self.evaluate_or_save(observer)?;
        }
        // A checkpoint of the start holds the first evaluation already.
        if !self.progress.resumed && self.state.iteration == 0 && self.evaluation.every > 0 {
            self.evaluate(observer)?;
            self.save()?;
        }
        Ok(())
    }

    /// The next iteration, of an algorithm that learns from rollouts. `ahead` has its rollout, if it was sampled an iteration ahead, and
    /// afterwards that of the next one.
    fn iteration(
        &mut self,
        ahead: &mut Option<RolledAhead>,
        observer: &mut dyn Observer,
    ) -> Result<IterationSummary, TrainError> {
        let mut watch = Stopwatch::start();
        // What was done before does not count.
        self.acceleration.take_activity();

        // Sample: candidates, of a run that explores; then what is learnt from.
        let explored = self.explore(observer)?;
        let kept = explored.as_ref().map(|explored| &*explored.kept);
        let exploration_s = explored.as_ref().map(|explored| explored.wall_s);
        watch.lap_s();
        let (rolled, audit) = self.rollout_of_iteration(kept, ahead, observer)?;
        let rollout_s = watch.lap_s();
        let rollout_gib =
            (self.progress.run_counters).device_memory("rollouts", self.sampler.device.taken_bytes());

        // Score: what is not in yet is waited for.
        let scores = self.score(rolled.tickets, &rolled.batches, observer)?;
        let watched = self.watched(&rolled.watched, &rolled.groups)?;

        // Compare: advantages within groups.
        let compared = self.compare(&scores, &rolled.groups, rolled.drift)?;
        let rewards_s = watch.lap_s();

        // Learn: losses, gradients, optimizer steps.
        self.remember_weights();
        let counted = compared.counted();
        let mut outcome = self.update(&rolled.batches, counted, &rolled.groups, audit, observer)?;
        outcome.terms.extend(compared.logged);

        // Average: slower copies of the weights follow.
        self.follow(&outcome);
        let activity = self.activity(&rolled.activity, observer)?;
        let explored = match explored {
            Some(explored) => Some(self.explored(explored, &scores.rewards, observer)?),
            None => None,
        };
        self.name_kernels()?;
        let drift = compared.drift;
        let predicted = match &drift {
            Some(drift) => (self.acceleration).audited(&activity, &drift.latent_l1_by_sample),
            None => Vec::new(),
        };
        let update_s = watch.lap_s();
        let device = &self.sampler.device;
        let update_gib = (self.progress.run_counters).device_memory("updates", device.taken_bytes());
        let driver_gib = (self.progress.run_counters).device_memory(DRIVER, device.driver_bytes());

        // Record.
        self.state.iteration += 1;
        let images = rolled.groups.len();
        let audit = outcome.audit.as_ref();
        self.progress.run_counters.add(images, audit, &self.state);
        let advantages = &compared.advantages.metrics;
        self.record_iteration(
            Some(advantages),
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
        self.record_reward_times(&scores.times)?;
        self.record_throughput(images, wall_s)?;
        self.record_device_memory(rollout_gib, update_gib, driver_gib)?;
        if let Some(drift) = &drift {
            self.record_saved(drift)?;
        }
        if self.is_time_to_tell() {
            self.tell_of_exploits(observer);
        }
        Ok(IterationSummary {
            reward: advantages.total.mean,
            ..self.summary(&outcome, images, wall_s)
        })
    }

    /// The next iteration, of an algorithm that learns from records of the data set: nothing is sampled, scored or compared.
    fn offline_iteration(&mut self, observer: &mut dyn Observer) -> Result<IterationSummary, TrainError> {
        let mut watch = Stopwatch::start();
        // What was done before does not count.
        self.acceleration.take_activity();

        // Read.
        let OfflineBatches { batches, groups } = self.offline_batches()?;
        let acquire_s = watch.lap_s();

        // Learn.
        let images = groups.len();
        let advantages = vec![0.0; images];
        let counted = Counted {
            advantages: &advantages,
            ..Counted::default()
        };
        let outcome = self.update(&batches, counted, &groups, None, observer)?;

        // Average.
        self.follow(&outcome);
        let activity = self.activity(&[], observer)?;
        self.name_kernels()?;
        let update_s = watch.lap_s();
        let device = &self.sampler.device;
        (self.progress.run_counters).device_memory("updates", device.taken_bytes());
        (self.progress.run_counters).device_memory(DRIVER, device.driver_bytes());

        // Record.
        self.state.iteration += 1;
        self.progress.run_counters.add(images, None, &self.state);
        self.record_iteration(None, &outcome, &activity, None, None, None)?;
        let wall_s = acquire_s + update_s;
        self.record_timing(&[("acquire_s", acquire_s), ("update_s", update_s)])?;
        self.record_throughput(images, wall_s)?;
        Ok(self.summary(&outcome, images, wall_s))
    }

    /// What an iteration came to that is done; without a reward.
    fn summary(&self, outcome: &UpdateOutcome, images: usize, wall_s: f64) -> IterationSummary {
        let last = outcome.steps.last();
        IterationSummary {
            done: self.state.iteration,
            total: self.settings.iterations,
            reward: f64::NAN,
            loss: outcome.loss.value(),
            gradient_norm: last.map_or(0.0, |step| step.gradient_norm),
            max_ratio_deviation: outcome.audit.as_ref().map(|audit| audit.max_deviation()),
            kl: outcome.terms.get("kl").map(Mean::value),
            clip_fraction: outcome.terms.get("clip_fraction").map(Mean::value),
            learning_rate: last.map_or(0.0, |step| step.learning_rate),
            images,
            wall_s,
        }
    }
}
