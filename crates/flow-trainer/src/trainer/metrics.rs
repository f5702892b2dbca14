//! What a run writes down: metrics, timing, curves, summary, report.

use super::exploration::{ExplorationRecord, with_exploration};
use super::reward_regressions::in_words;
use super::update::UpdateOutcome;
use super::watch::with_statistics;
use super::{Drift, RewardWeight, RunFiles, Trainer};
use crate::advantage::AdvantageMetrics;
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::observer::Observer;
use crate::watch::ImageStatistics;
use flow_accel::{Acceleration, Activity};
use flow_report::{
    BYTES_PER_GIB, IntervalMethod, MetricRecord, Metrics, RewardChange, RunStatus, RunSummary, TrainedReward,
    mean_interval, paired_difference, resident_bytes,
};
use std::path::PathBuf;

fn with_drift(
    mut record: MetricRecord,
    drift: &Drift,
    predicted: &[(f64, f64)],
) -> Result<MetricRecord, TrainError> {
    let interval = &drift.reward.interval;
    record = record
        .with("drift/samples", drift.samples as f64)
        .with("drift/velocity_l1", drift.velocity_l1)
        .with("drift/latent_l1", drift.latent_l1)
        .with("drift/reward", interval.mean)
        .with("drift/advantage_sign_changes", drift.sign_changes);
    if let Some(psnr_db) = drift.psnr_db {
        record = record.with("drift/psnr_db", psnr_db);
    }
    if let (Some(low), Some(high)) = (interval.low, interval.high) {
        record = record
            .with("drift/reward/low", low)
            .with("drift/reward/high", high);
    }
    for (step, distance) in drift.velocity_l1_by_step.iter().enumerate() {
        record = record.with(&format!("drift/velocity_l1/step_{step:03}"), *distance);
    }
    if !predicted.is_empty() {
        let (errors, found): (Vec<f64>, Vec<f64>) = predicted.iter().copied().unzip();
        let off = paired_difference(&errors, &found, IntervalMethod::StudentT)?.interval;
        record = record
            .with(
                "drift/latent_l1/predicted",
                mean_interval(&errors, IntervalMethod::StudentT)?.mean,
            )
            .with(
                "drift/latent_l1/audited",
                mean_interval(&found, IntervalMethod::StudentT)?.mean,
            )
            .with("drift/latent_l1/audited_less_predicted", off.mean);
        if let (Some(low), Some(high)) = (off.low, off.high) {
            record = record
                .with("drift/latent_l1/audited_less_predicted/low", low)
                .with("drift/latent_l1/audited_less_predicted/high", high);
        }
    }
    Ok(record)
}

/// The record with the rewards of a rollout, and the advantages made of them.
fn with_rewards(record: MetricRecord, advantages: &AdvantageMetrics) -> MetricRecord {
    let mut record = record
        .with("reward", advantages.total.mean)
        .with("reward/std", advantages.total.std)
        .with("reward/group_std", advantages.total.group_std_mean)
        .with("reward/zero_std_groups", advantages.total.zero_std_ratio);
    for reward in &advantages.rewards {
        record = record
            .with(&format!("reward/{}", reward.name), reward.mean)
            .with(&format!("reward/{}/std", reward.name), reward.std);
    }
    record.with("advantage/abs_mean", advantages.advantage_abs_mean)
}

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Appends a record to `metrics.jsonl` and TensorBoard.
    pub(super) fn write(&mut self, record: MetricRecord) -> Result<(), TrainError> {
        let Some(files) = &mut self.files else {
            return Ok(());
        };
        files.metrics.append(&record)?;
        let every = self.settings.tensorboard_every;
        let (step, kind, _) = record.parts();
        if let Some(events) = &mut files.events
            && (kind == "eval" || every > 0 && step.is_multiple_of(every))
        {
            events.record(&record)?;
        }
        Ok(())
    }

    pub(super) fn record_iteration(
        &mut self,
        advantages: Option<&AdvantageMetrics>,
        outcome: &UpdateOutcome,
        activity: &[Activity],
        drift: Option<(&Drift, &[(f64, f64)])>,
        watched: Option<&ImageStatistics>,
        explored: Option<&ExplorationRecord>,
    ) -> Result<(), TrainError> {
        let mut record = MetricRecord::new(self.state.iteration, "train");
        if let Some(advantages) = advantages {
            record = with_rewards(record, advantages);
            // What was recorded is of the iteration before the one that is next.
            let iteration = self.state.iteration.saturating_sub(1);
            if let Some(saved) = self.schedule.steps_saved(iteration) {
                record = record.with("rollout/calls_saved", saved as f64);
            }
        }
        record = record.with("loss", outcome.loss.value());
        for (name, mean) in &outcome.terms {
            record = record.with(name, mean.value());
        }
        if let Some(audit) = &outcome.audit {
            record = record
                .with("on_policy/max_ratio_deviation", f64::from(audit.max_deviation()))
                .with("on_policy/other_bits", audit.other_bits() as f64);
        }
        for each in activity {
            for (what, count) in each.engagements.counted() {
                record = record.with(
                    &format!("acceleration/{}/{}", each.name, what.name()),
                    count as f64,
                );
            }
            for (shortfall, times) in &each.shortfalls {
                let key = format!("acceleration/{}/{}", each.name, shortfall.name);
                record = record.with(&key, *times as f64);
            }
            if each.kept_bytes > 0 {
                let kept_mib = each.kept_bytes as f64 / f64::from(1 << 20);
                record = record.with(&format!("acceleration/{}/kept_mib_peak", each.name), kept_mib);
            }
            for ((what, part), share) in each.shares() {
                record = record.with(
                    &format!("acceleration/{}/{}/share/{part}", each.name, what.name()),
                    share,
                );
            }
        }
        if let Some((drift, predicted)) = drift {
            record = with_drift(record, drift, predicted)?;
        }
        if let Some(watched) = watched {
            record = with_statistics(record, watched);
        }
        if let Some(explored) = explored {
            record = with_exploration(record, explored);
        }
        if let Some(step) = outcome.steps.last() {
            record = record
                .with("gradient_norm", step.gradient_norm)
                .with("clip_factor", step.clip_factor)
                .with("learning_rate", step.learning_rate);
        }
        self.write(record)
    }

    /// Appends a record to `timing.jsonl` and TensorBoard.
    pub(super) fn write_timing(&mut self, record: MetricRecord) -> Result<(), TrainError> {
        let Some(files) = &mut self.files else {
            return Ok(());
        };
        files.timing.append(&record)?;
        let every = self.settings.tensorboard_every;
        let (step, ..) = record.parts();
        if let Some(events) = &mut files.events
            && every > 0
            && step.is_multiple_of(every)
        {
            events.record(&record)?;
        }
        Ok(())
    }

    /// Images of a rollout per second of its iteration, and what the process holds of the host's memory.
    pub(super) fn record_throughput(&mut self, images: usize, wall_s: f64) -> Result<(), TrainError> {
        let step = self.state.iteration;
        if wall_s > 0.0 {
            let record = MetricRecord::new(step, "throughput");
            self.write_timing(record.with("images_per_s", images as f64 / wall_s))?;
        }
        if let Some(bytes) = resident_bytes() {
            let record = MetricRecord::new(step, "host_memory");
            self.write_timing(record.with("resident_gib", bytes as f64 / BYTES_PER_GIB))?;
        }
        Ok(())
    }

    /// Seconds that the accelerators of the rollout saved in it.
    pub(super) fn record_saved(&mut self, drift: &Drift) -> Result<(), TrainError> {
        let record = MetricRecord::new(self.state.iteration, "drift");
        self.write_timing(record.with("rollout_saved_s", drift.saved_s))
    }

    pub(super) fn record_timing(&mut self, parts: &[(&str, f64)]) -> Result<(), TrainError> {
        let mut record = MetricRecord::new(self.state.iteration, "timing");
        for (name, wall_s) in parts {
            record = record.with(name, *wall_s);
            self.progress
                .run_counters
                .add_wall(name.trim_end_matches("_s"), *wall_s);
        }
        self.write_timing(record)
    }

    /// What was taken of the device's memory after the rollouts and after the updates, and what the driver counts.
    pub(super) fn record_device_memory(
        &mut self,
        rollout_gib: Option<f64>,
        update_gib: Option<f64>,
        driver_gib: Option<f64>,
    ) -> Result<(), TrainError> {
        let (Some(rollout_gib), Some(update_gib)) = (rollout_gib, update_gib) else {
            return Ok(());
        };
        let mut record = MetricRecord::new(self.state.iteration, "device_memory")
            .with("rollout_gib", rollout_gib)
            .with("update_gib", update_gib);
        if let Some(driver_gib) = driver_gib {
            record = record.with("driver_gib", driver_gib);
        }
        self.write_timing(record)
    }

    /// Writes summary, curves and report.
    pub(super) fn finish(
        &mut self,
        status: RunStatus,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let Some(files) = &mut self.files else {
            return Ok(());
        };
        files.metrics.sync()?;
        files.timing.sync()?;
        if let Some(events) = &mut files.events {
            events.ended(&status)?;
        }
        let is_finished = status == RunStatus::Finished;
        let report = self.write_outcome(status, observer)?;
        if let Some(files) = &self.files {
            files.directory.write_curves()?;
        }
        // Whoever finishes a run says what it left.
        if let (Some(report), false) = (report, is_finished) {
            observer.notice(&format!("report: {}", report.display()));
        }
        Ok(())
    }

    /// Writes how the run stands: summary, and the report if there is to be one, whose path is returned. A report that cannot be
    /// written stops no run.
    pub(super) fn write_outcome(
        &mut self,
        status: RunStatus,
        observer: &mut dyn Observer,
    ) -> Result<Option<PathBuf>, TrainError> {
        self.progress.run_counters.process_memory();
        let Some(RunFiles { directory, .. }) = &self.files else {
            return Ok(None);
        };
        let metrics = directory.read_metrics()?;
        let settings = &self.settings;
        let mut notes = self.progress.run_counters.notes();
        let comparable = metrics.since(self.progress.run_counters.comparable_from());
        let rewards = self.reward_changes(&comparable).unwrap_or_else(|error| {
            notes.push(format!("no comparison of evaluations: {error}"));
            Vec::new()
        });
        match self.regressions(&comparable) {
            Ok(falls) => notes.extend(in_words(&falls)),
            Err(error) => notes.push(format!("no comparison with the best evaluation: {error}")),
        }
        let (now, first) = self.exploit_signs(&comparable);
        notes.extend(first.as_ref().map(|signs| format!("first signs: {signs}")));
        notes.extend(
            now.filter(|now| Some(now) != first.as_ref())
                .map(|signs| format!("last signs: {signs}")),
        );
        let summary = RunSummary {
            status,
            steps: self.state.iteration,
            images: self.progress.run_counters.images(),
            rewards,
            trained: TrainedReward::of(&metrics, self.trained_terms()),
            processes: self.progress.run_counters.processes(),
            wall_s: self.progress.run_counters.wall_s(),
            wall_parts: self.progress.run_counters.wall_parts(),
            images_per_s: self.progress.run_counters.images_per_s(),
            reward_s: self.progress.run_counters.reward_s(),
            peak_memory_gib: self.progress.run_counters.peak_memory_gib(),
            audit: self.progress.run_counters.audit(
                settings.audit,
                self.algorithm.paradigm(),
                settings.lossless,
            ),
            notes,
            prompts: self.prompt_texts(),
        };
        directory.write_summary(&summary)?;
        if !settings.html_report {
            return Ok(None);
        }
        match directory.write_report() {
            Ok(report) => Ok(Some(report)),
            Err(error) => {
                observer.notice(&format!("no report: {error}"));
                Ok(None)
            }
        }
    }

    /// The texts of the held-out prompts.
    pub(super) fn prompt_texts(&self) -> Vec<String> {
        let prompts = self.evaluation.prompts.iter();
        prompts.map(|prompt| prompt.text.clone()).collect()
    }

    /// The rewards that are trained on, with their weights.
    pub(super) fn trained_terms(&self) -> Vec<(String, f64)> {
        let rewards = self.rewards.weights.iter();
        rewards
            .map(|reward| (reward.name.clone(), reward.weight))
            .collect()
    }

    fn reward_changes(&self, metrics: &Metrics) -> Result<Vec<RewardChange>, TrainError> {
        let records: Vec<_> = metrics.of_kind("eval").collect();
        let (Some(first), Some(last)) = (records.first(), records.last()) else {
            return Ok(Vec::new());
        };
        let evaluation = &self.evaluation;
        let change = |reward: &RewardWeight| -> Result<Option<RewardChange>, TrainError> {
            let (name, range) = (&reward.name, reward.range);
            let key = format!("prompts/{name}");
            let (Some(before), Some(after)) = (first.numbers(&key), last.numbers(&key)) else {
                return Ok(None);
            };
            Ok(Some(RewardChange {
                name: name.clone(),
                measured_on: format!(
                    "{} held-out prompts, {} images each",
                    evaluation.prompts.len(),
                    evaluation.images_per_prompt
                ),
                difference: paired_difference(&before, &after, IntervalMethod::StudentT)?
                    .of_values_within(range),
                before: mean_interval(&before, IntervalMethod::StudentT)?.within(range),
                after: mean_interval(&after, IntervalMethod::StudentT)?.within(range),
            }))
        };
        let rewards = self.evaluation_rewards.weights.iter();
        Ok(rewards
            .map(change)
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
            .collect())
    }
}
