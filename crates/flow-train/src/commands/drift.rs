//! `drift`: what the accelerators of the rollout change and save, or weights in low precision, on the config's own model, prompts and
//! rewards.

use super::{CommandContext, config_report::ConfigUse, full_precision, tokens};
use crate::arguments::DriftArguments;
use crate::failure::{Failure, OrFailure};
use crate::interrupt::Interrupt;
use crate::{progress, terminal};
use flow_accel::{Engagement, Slot};
use flow_config::Config;
use flow_report::{IntervalMethod, PairedDifference, paired_difference};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::setup::{self, Environment};
use flow_trainer::trainer::{DriftRun, LayerDrift};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Compares, and prints what was found.
pub fn run(arguments: &DriftArguments, quiet: bool) -> Result<(), Failure> {
    let context = CommandContext::read(&arguments.config, ConfigUse::Inspection)?;
    let mut config = context.config().clone();
    if config.rewards.is_empty() {
        return Err(Failure::Input(
            "there is no reward to compare by. Add a `[[rewards]]` table with its `kind`".into(),
        ));
    }
    let full = match arguments.low_precision {
        true => {
            // What they change is not what weights do.
            config.acceleration.rollout.clear();
            let accelerators = &context.registries.accelerators;
            Some(full_precision::of(&config, accelerators, "--low-precision")?)
        }
        false => None,
    };
    let config = &config;
    if full.is_none() && config.acceleration.rollout.is_empty() {
        return Err(Failure::Input(
            "there is nothing to compare: `acceleration.rollout` has no accelerator, so the samples are those without. Add one, \
             for instance `--set 'acceleration.rollout={ name = \"feature_cache\", params = { policy = \"taylorseer\" } }'`"
                .into(),
        ));
    }
    let (runs, layers) = context.compute(config, |environment| {
        let tokens = tokens(config, environment).or_bad_input()?;
        let comparing = Comparing {
            config,
            full: full.as_ref(),
            environment,
            rollouts: arguments.rollouts,
            quiet,
        };
        comparing.with(setup::algorithm(config, environment.plugins, tokens).or_bad_input()?)
    })?;
    let found = Found {
        layers,
        ..Found::of(&runs).or_failed()?
    };
    if arguments.json {
        let text = serde_json::to_string_pretty(&found.json()).or_failed()?;
        return terminal::line(&text);
    }
    terminal::print(&terminal::table(&found.rows(), 2))
}

struct Comparing<'a> {
    config: &'a Config,
    /// The config whose weights the rollouts without have, if these differ.
    full: Option<&'a Config>,
    environment: &'a Environment<'a>,
    rollouts: u64,
    quiet: bool,
}

impl Comparing<'_> {
    fn with(self, algorithm: Box<dyn Algorithm>) -> Result<(Vec<DriftRun>, Vec<LayerDrift>), Failure> {
        let (config, environment) = (self.config, self.environment);
        let trainer = setup::model(config, environment)
            .and_then(|model| setup::trainer_with_model(config, environment, model, algorithm)?.set_up());
        let mut trainer = trainer.or_bad_input()?;
        let full = self.full.map(|full| setup::model(full, environment));
        let exact = full.transpose().or_bad_input()?.map(|model| model.weights);
        let mut observer = progress::observer(self.rollouts, self.rollouts, self.quiet, Interrupt::default());
        let (mut runs, mut named) = (Vec::new(), BTreeSet::new());
        for iteration in 0..self.rollouts {
            let run = trainer.drift_from(iteration, exact.as_ref(), &mut *observer);
            let run = run.or_failed()?;
            for undone in run.undone.iter().filter(|one| named.insert(one.key())) {
                observer.notice(&undone.to_string());
            }
            runs.push(run);
        }
        let layers = exact.map(|exact| trainer.layer_drift(&exact, &mut *observer));
        Ok((runs, layers.unwrap_or_default()))
    }
}

/// All rollouts together.
struct Found {
    samples: usize,
    blocks: (u64, u64),
    attention_skipped: u64,
    wall_s: (f64, f64),
    cpu_s: Option<(f64, f64)>,
    velocity_l1: f64,
    latent_l1: f64,
    psnr_db: Option<f64>,
    reward: PairedDifference,
    reward_without: f64,
    group_std: f64,
    sign_changes: f64,
    /// By block, where weights differ.
    layers: Vec<LayerDrift>,
    /// Means of predicted and found errors, and the interval of the difference.
    predicted: Option<(f64, f64, PairedDifference)>,
}

impl Found {
    fn of(runs: &[DriftRun]) -> Result<Self, flow_report::StatisticsError> {
        let total = |of: &dyn Fn(&DriftRun) -> f64| runs.iter().map(of).sum::<f64>();
        let mean = |of: &dyn Fn(&DriftRun) -> f64| total(of) / runs.len() as f64;
        let counted = |what: Engagement| {
            let rollout = |run: &DriftRun| {
                let of_rollout = run.activity.iter().filter(|each| each.slot == Slot::Rollout);
                of_rollout.map(|each| each.engagements.of(what)).sum::<u64>()
            };
            runs.iter().map(rollout).sum::<u64>()
        };
        let groups = |of: &dyn Fn(&DriftRun) -> Vec<f64>| runs.iter().flat_map(of).collect::<Vec<f64>>();
        let without = groups(&|run| run.drift.group_rewards.0.clone());
        let with = groups(&|run| run.drift.group_rewards.1.clone());
        let blocks = runs.iter().map(|run| run.blocks).sum::<u64>();
        // The mean of squared errors over rollouts; no error at all counts as 0.
        let mean_square = mean(&|run| {
            run.drift
                .psnr_db
                .map_or(0.0, |psnr_db| 4.0 * 10f64.powf(-psnr_db / 10.0))
        });
        let cpu = |of: &dyn Fn((f64, f64)) -> f64| -> Option<f64> {
            runs.iter()
                .map(|run| run.cpu_s.map(of))
                .collect::<Option<Vec<f64>>>()
                .map(|all| all.iter().sum())
        };
        let mut reward = paired_difference(&without, &with, IntervalMethod::StudentT)?;
        // Every rollout is rewarded by the same sum.
        let range = runs.first().map(|run| run.drift.reward.interval.range);
        reward.interval = reward.interval.within(range.unwrap_or_default());
        Ok(Self {
            samples: runs.iter().map(|run| run.drift.samples).sum(),
            blocks: (blocks - counted(Engagement::BlockSkipped).min(blocks), blocks),
            attention_skipped: counted(Engagement::AttentionSkipped),
            wall_s: (total(&|run| run.wall_s.0), total(&|run| run.wall_s.1)),
            cpu_s: cpu(&|both| both.0).zip(cpu(&|both| both.1)),
            velocity_l1: mean(&|run| run.drift.velocity_l1),
            latent_l1: mean(&|run| run.drift.latent_l1),
            psnr_db: (mean_square > 0.0).then(|| 10.0 * (4.0 / mean_square).log10()),
            reward,
            reward_without: without.iter().sum::<f64>() / without.len() as f64,
            group_std: mean(&|run| run.drift.reward_group_std),
            sign_changes: mean(&|run| run.drift.sign_changes),
            layers: Vec::new(),
            predicted: predicted(runs)?,
        })
    }

    fn json(&self) -> Value {
        let interval = &self.reward.interval;
        json!({
            "samples": self.samples,
            "block_evaluations": { "with": self.blocks.0, "without": self.blocks.1 },
            "attention_layers_skipped": self.attention_skipped,
            "wall_s": { "with": self.wall_s.0, "without": self.wall_s.1 },
            "cpu_s": self.cpu_s.map(|(with, without)| json!({ "with": with, "without": without })),
            "velocity_l1": self.velocity_l1,
            "latent_l1": self.latent_l1,
            "psnr_db": self.psnr_db,
            "reward": {
                "without": self.reward_without,
                "difference": interval.mean,
                "low": interval.low,
                "high": interval.high,
                "groups": interval.count,
                "group_std": self.group_std,
            },
            "advantage_sign_changes": self.sign_changes,
            "block_outputs_l2": self.layers.iter().map(|layer| json!({
                "stack": layer.stack,
                "block": layer.block,
                "relative_l2": layer.relative_l2,
            })).collect::<Vec<_>>(),
            "latent_l1_predicted": self.predicted.as_ref().map(|(predicted, found, off)| json!({
                "predicted": predicted,
                "audited": found,
                "audited_less_predicted": { "mean": off.interval.mean, "low": off.interval.low, "high": off.interval.high },
            })),
        })
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let times = |(with, without): (f64, f64)| {
            format!(
                "{with:.2} s instead of {without:.2} s, {:.2} times as fast",
                without / with
            )
        };
        let mut rows = vec![
            ("samples".to_owned(), self.samples.to_string()),
            (
                "block evaluations".to_owned(),
                format!(
                    "{} instead of {}, 1 in {:.2}",
                    self.blocks.0,
                    self.blocks.1,
                    self.blocks.1 as f64 / self.blocks.0.max(1) as f64
                ),
            ),
            (
                "attention layers left out".to_owned(),
                self.attention_skipped.to_string(),
            ),
            ("time".to_owned(), times(self.wall_s)),
        ];
        if let Some(cpu_s) = self.cpu_s {
            rows.push(("processor time".to_owned(), times(cpu_s)));
        }
        rows.extend([
            (
                "velocity, relative L1".to_owned(),
                format!("{:.5}", self.velocity_l1),
            ),
            (
                "final latent, relative L1".to_owned(),
                format!("{:.5}", self.latent_l1),
            ),
            (
                "images, PSNR".to_owned(),
                self.psnr_db
                    .map_or("no bit differs".into(), |psnr_db| format!("{psnr_db:.1} dB")),
            ),
            (
                "reward, difference".to_owned(),
                format!(
                    "{} over {} groups; {:.4} without, {:.4} standard deviation within groups",
                    self.reward.interval.text(5),
                    self.reward.interval.count,
                    self.reward_without,
                    self.group_std
                ),
            ),
            (
                "advantages of another sign".to_owned(),
                format!("{:.2} %", 100.0 * self.sign_changes),
            ),
        ]);
        if let Some((predicted, found, off)) = &self.predicted {
            rows.push((
                "final latent, predicted".to_owned(),
                format!(
                    "{predicted:.5}; audited {found:.5}, difference {}",
                    off.interval.text(5)
                ),
            ));
        }
        rows.extend(self.layers.iter().map(|layer| {
            let name = format!("{}.{}, relative L2", layer.stack, layer.block);
            (name, format!("{:.5}", layer.relative_l2))
        }));
        rows.into_iter().map(|(name, value)| vec![name, value]).collect()
    }
}

/// Over the rollouts whose predictions were corrected by one before, if there are any.
fn predicted(
    runs: &[DriftRun],
) -> Result<Option<(f64, f64, PairedDifference)>, flow_report::StatisticsError> {
    let corrected = if runs.len() > 1 { &runs[1..] } else { runs };
    let pairs = corrected.iter().flat_map(|run| run.predicted.iter().copied());
    let (predicted, found): (Vec<f64>, Vec<f64>) = pairs.unzip();
    if predicted.is_empty() {
        return Ok(None);
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let off = paired_difference(&predicted, &found, IntervalMethod::StudentT)?;
    Ok(Some((mean(&predicted), mean(&found), off)))
}
