//! What a run writes down: metrics, timing, curves, summary, report.

use super::falls::in_words;
use super::update::UpdateOutcome;
use super::{Drift, Session};
use crate::advantage::AdvantageMetrics;
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::observer::Observer;
use flow_accel::Activity;
use flow_report::{
    IntervalMethod, LineChart, MetricRecord, Metrics, RewardChange, RunStatus, RunSummary, Series,
    mean_interval, paired_difference,
};

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

impl<A: Algorithm> Session<A> {
    /// Appends a record to `metrics.jsonl` and TensorBoard.
    pub(super) fn write(&mut self, record: MetricRecord) -> Result<(), TrainError> {
        self.files.metrics.append(&record)?;
        let every = self.parts.settings.tensorboard_every;
        let (step, kind, _) = record.parts();
        if let Some(events) = &mut self.files.events
            && (kind == "eval" || every > 0 && step.is_multiple_of(every))
        {
            events.record(&record)?;
        }
        Ok(())
    }

    pub(super) fn record_iteration(
        &mut self,
        advantages: &AdvantageMetrics,
        outcome: &UpdateOutcome,
        activity: &[Activity],
        drift: Option<(&Drift, &[(f64, f64)])>,
    ) -> Result<(), TrainError> {
        let mut record = MetricRecord::new(self.parts.state.iteration, "train")
            .with("reward", advantages.total.mean)
            .with("reward/std", advantages.total.std)
            .with("reward/group_std", advantages.total.group_std_mean)
            .with("reward/zero_std_groups", advantages.total.zero_std_ratio);
        for reward in &advantages.rewards {
            record = record
                .with(&format!("reward/{}", reward.name), reward.mean)
                .with(&format!("reward/{}/std", reward.name), reward.std);
        }
        record = record
            .with("advantage/abs_mean", advantages.advantage_abs_mean)
            .with("loss", outcome.loss.value());
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
            for ((what, part), share) in &each.shares {
                record = record.with(
                    &format!("acceleration/{}/{}/share/{part}", each.name, what.name()),
                    *share,
                );
            }
        }
        if let Some((drift, predicted)) = drift {
            record = with_drift(record, drift, predicted)?;
        }
        if let Some(step) = outcome.steps.last() {
            record = record
                .with("gradient_norm", step.gradient_norm)
                .with("clip_factor", step.clip_factor)
                .with("learning_rate", step.learning_rate);
        }
        self.write(record)
    }

    /// Seconds that the accelerators of the rollout saved in it.
    pub(super) fn record_saved(&mut self, drift: &Drift) -> Result<(), TrainError> {
        let record = MetricRecord::new(self.parts.state.iteration, "drift");
        self.files
            .timing
            .append(&record.with("rollout_saved_s", drift.saved_s))?;
        Ok(())
    }

    pub(super) fn record_timing(&mut self, parts: &[(&str, f64)]) -> Result<(), TrainError> {
        let mut record = MetricRecord::new(self.parts.state.iteration, "timing");
        for (name, wall_s) in parts {
            record = record.with(name, *wall_s);
            self.tally.add_wall(name.trim_end_matches("_s"), *wall_s);
        }
        self.files.timing.append(&record)?;
        Ok(())
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
        let mut record = MetricRecord::new(self.parts.state.iteration, "device_memory")
            .with("rollout_gib", rollout_gib)
            .with("update_gib", update_gib);
        if let Some(driver_gib) = driver_gib {
            record = record.with("driver_gib", driver_gib);
        }
        self.files.timing.append(&record)?;
        Ok(())
    }

    /// Writes summary, curves and report.
    pub(super) fn finish(
        &mut self,
        status: RunStatus,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.files.metrics.sync()?;
        self.files.timing.sync()?;
        self.tally.process_memory();
        let directory = &self.files.directory;
        let metrics = directory.read_metrics()?;
        let settings = &self.parts.settings;
        let mut notes = self.tally.notes();
        let comparable = metrics.since(self.tally.comparable_from());
        let rewards = self.reward_changes(&comparable).unwrap_or_else(|error| {
            notes.push(format!("no comparison of evaluations: {error}"));
            Vec::new()
        });
        match self.falls(&comparable) {
            Ok(falls) => notes.extend(in_words(&falls)),
            Err(error) => notes.push(format!("no comparison with the best evaluation: {error}")),
        }
        let summary = RunSummary {
            status,
            steps: self.parts.state.iteration,
            images: self.tally.images(),
            rewards,
            processes: self.tally.processes(),
            wall_s: self.tally.wall_s(),
            wall_parts: self.tally.wall_parts(),
            images_per_s: self.tally.images_per_s(),
            peak_memory_gib: self.tally.peak_memory_gib(),
            audit: self.tally.audit(settings.audit, A::PARADIGM, settings.lossless),
            notes,
        };
        directory.write_summary(&summary)?;
        for (name, chart) in self.charts(&metrics) {
            directory.write_curve(&name, &chart)?;
        }
        if settings.html_report {
            let report = directory.write_report()?;
            observer.notice(&format!("report: {}", report.display()));
        }
        Ok(())
    }

    fn reward_changes(&self, metrics: &Metrics) -> Result<Vec<RewardChange>, TrainError> {
        let records: Vec<_> = metrics.of_kind("eval").collect();
        let (Some(first), Some(last)) = (records.first(), records.last()) else {
            return Ok(Vec::new());
        };
        let evaluation = &self.parts.evaluation;
        let change = |name: &String| -> Result<Option<RewardChange>, TrainError> {
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
                difference: paired_difference(&before, &after, IntervalMethod::StudentT)?,
                before: mean_interval(&before, IntervalMethod::StudentT)?,
                after: mean_interval(&after, IntervalMethod::StudentT)?,
            }))
        };
        let rewards = self.parts.evaluation_rewards.1.iter();
        Ok(rewards
            .map(|reward| change(&reward.name))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
            .collect())
    }

    fn charts(&self, metrics: &Metrics) -> Vec<(String, LineChart)> {
        let mut held_out = LineChart::new("Reward on held-out prompts", "iteration", "reward");
        for reward in &self.parts.evaluation_rewards.1 {
            let key = format!("reward/{}", reward.name);
            let (low, high) = (format!("{key}/low"), format!("{key}/high"));
            let series = Series::from_metrics(metrics, &reward.name, "eval", &key, Some((&low, &high)));
            held_out = held_out.with(series);
        }
        let plain = |title: &str, label: &str, key: &str| {
            LineChart::new(title, "iteration", label)
                .with(Series::from_metrics(metrics, label, "train", key, None))
        };
        let mut charts = vec![
            ("1-reward-held-out".into(), held_out),
            (
                "2-reward-rollout".into(),
                plain("Reward of the rollouts", "reward", "reward"),
            ),
            ("3-loss".into(), plain("Loss", "loss", "loss")),
            (
                "4-gradient-norm".into(),
                plain("Gradient norm", "norm", "gradient_norm"),
            ),
        ];
        if metrics.keys("train").contains(&"kl") {
            charts.push(("5-kl".into(), plain("Distance from the reference", "kl", "kl")));
        }
        charts.extend(acceleration_charts(metrics));
        charts
    }
}

/// What accelerators did and changed, as far as there is anything to show.
fn acceleration_charts(metrics: &Metrics) -> Vec<(String, LineChart)> {
    let keys = metrics.keys("train");
    let series = |label: &str, key: &str| Series::from_metrics(metrics, label, "train", key, None);
    let mut charts = Vec::new();
    let counts: Vec<&str> = (keys.iter().copied())
        .filter(|key| key.starts_with("acceleration/") && key.matches('/').count() == 2)
        .filter(|key| !key.ends_with("kept_mib_peak") && !key.ends_with("kernels_replaced"))
        .collect();
    if !counts.is_empty() {
        let title = "What accelerators left out, per iteration";
        let chart = (counts.iter()).fold(LineChart::new(title, "iteration", "count"), |chart, key| {
            let label = key.trim_start_matches("acceleration/").replace('/', ": ");
            chart.with(series(&label.replace('_', " "), key))
        });
        charts.push(("6-accelerators".into(), chart));
    }
    if keys.contains(&"drift/velocity_l1") {
        let title =
            "Drift: relative L1 distance from the same samples without the accelerators of the rollout";
        let chart = LineChart::new(title, "iteration", "relative L1")
            .with(series("velocity", "drift/velocity_l1"))
            .with(series("final latent", "drift/latent_l1"));
        let chart = if keys.contains(&"drift/latent_l1/predicted") {
            chart.with(series("final latent, predicted", "drift/latent_l1/predicted"))
        } else {
            chart
        };
        charts.push(("7-drift".into(), chart));
        let bounds = Some(("drift/reward/low", "drift/reward/high"));
        let chart = LineChart::new("Drift of the reward", "iteration", "difference").with(
            Series::from_metrics(metrics, "with less without", "train", "drift/reward", bounds),
        );
        charts.push(("8-drift-reward".into(), chart));
    }
    charts
}
