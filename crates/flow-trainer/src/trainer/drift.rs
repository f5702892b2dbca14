//! Drift: what the accelerators of the rollout change, and what they save. Some groups are sampled once more, from the same
//! noise, without them; everything is compared pair by pair. So is what weights in low precision change: the repetition has others.

use super::Parts;
use super::iteration::reward_columns;
use super::rollout::Repetition;
use crate::advantage::{AdvantageOptions, compute_advantages};
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::observer::{Observer, Phase};
use crate::rollout::Trajectories;
use crate::undone::{Undone, settle, shortfalls, undone};
use flow_accel::Acceleration;
use flow_core::{Weights, cpu};
use flow_report::{IntervalMethod, PairedDifference, ValueRange, paired_difference};
use flow_rewards::Ticket;
use std::collections::BTreeMap;

/// Trajectories with the velocities of their steps.
pub(super) struct Traced {
    pub trajectories: Trajectories,
    /// Per step, `B · N` values; empty if nobody will look at them.
    pub velocities: Vec<Vec<f32>>,
    pub wall_s: f64,
}

/// Sums over pairs of samples, with the accelerators and without.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// Per step: `Σ |v - v_exact|` and `Σ |v_exact|`.
    velocities: Vec<(f64, f64)>,
    /// `Σ |x - x_exact|` and `Σ |x_exact|` of final latents.
    latents: (f64, f64),
    /// Sum of squared differences of pixels in `[-1, 1]`, and their number.
    pixels: (f64, u64),
    /// The same by sample.
    by_sample: BTreeMap<u64, f64>,
    with_s: f64,
    without_s: f64,
}

fn relative((change, size): (f64, f64)) -> f64 {
    if change == 0.0 { 0.0 } else { change / size }
}

impl Sums {
    /// Wall seconds of the micro-batches that were sampled twice: with the accelerators, and without.
    pub fn wall_s(&self) -> (f64, f64) {
        (self.with_s, self.without_s)
    }

    /// Adds the first `rows` samples of a micro-batch.
    pub fn add(&mut self, with: &Traced, without: &Traced, rows: usize) {
        let batch = with.trajectories.samples.len();
        self.velocities.resize(with.velocities.len(), (0.0, 0.0));
        let steps = with.velocities.iter().zip(&without.velocities);
        for ((ours, exact), sums) in steps.zip(&mut self.velocities) {
            add_l1(sums, ours, exact, rows, batch);
        }
        let [ours, exact] = [with, without].map(|one| cpu::to_host(&one.trajectories.clean));
        let each = ours.len() / batch;
        let pairs = ours.chunks_exact(each).zip(exact.chunks_exact(each));
        for (sample, (ours, exact)) in with.trajectories.samples.iter().zip(pairs).take(rows) {
            let mut sums = (0.0, 0.0);
            add_l1(&mut sums, ours, exact, 1, 1);
            self.by_sample.insert(*sample, relative(sums));
            self.latents = (self.latents.0 + sums.0, self.latents.1 + sums.1);
        }
        let count = each * rows;
        for (ours, exact) in ours.iter().zip(&exact).take(count) {
            let difference = f64::from(ours.clamp(-1.0, 1.0)) - f64::from(exact.clamp(-1.0, 1.0));
            self.pixels.0 += difference * difference;
        }
        self.pixels.1 += count as u64;
        self.with_s += with.wall_s;
        self.without_s += without.wall_s;
    }
}

fn add_l1(sums: &mut (f64, f64), ours: &[f32], exact: &[f32], rows: usize, batch: usize) {
    for (ours, exact) in ours.iter().zip(exact).take(exact.len() / batch * rows) {
        sums.0 += f64::from((ours - exact).abs());
        sums.1 += f64::from(exact.abs());
    }
}

/// A comparison whose rewards are not in yet.
pub(super) struct Pending {
    pub sums: Sums,
    pub ticket: Ticket,
    /// Samples compared: whole groups, the first of the rollout.
    pub samples: usize,
    /// Seconds that the whole rollout would have taken longer, by the micro-batches that were sampled twice.
    pub saved_s: f64,
}

/// What the accelerators of the rollout changed, over the samples that were taken twice.
#[derive(Clone, Debug)]
pub struct Drift {
    /// Samples compared.
    pub samples: usize,
    /// Relative L1 distance of velocities at each step, each at the latents of its own trajectory.
    pub velocity_l1_by_step: Vec<f64>,
    /// The same over all steps.
    pub velocity_l1: f64,
    /// Relative L1 distance of final latents.
    pub latent_l1: f64,
    /// That of each sample.
    pub latent_l1_by_sample: BTreeMap<u64, f64>,
    /// Peak signal-to-noise ratio of images, in dB, the peak being the range of 2; absent where no bit differs.
    pub psnr_db: Option<f64>,
    /// Mean reward of each group without the accelerators, and with them.
    pub group_rewards: (Vec<f64>, Vec<f64>),
    /// Change of the reward that the accelerators make, with an interval over groups.
    pub reward: PairedDifference,
    /// Standard deviation of the reward within groups, without the accelerators.
    pub reward_group_std: f64,
    /// Share of samples whose advantage has another sign than without the accelerators.
    pub sign_changes: f64,
    /// Seconds that they saved in the rollout; negative if they cost time.
    pub saved_s: f64,
}

/// Columns of rewards, by reward and sample.
type Columns = [Vec<f32>];

impl Pending {
    /// Waits for the rewards. `rewarded` holds those of the rollout, `groups` the group of each of its samples.
    pub fn finish(
        self,
        names: &[super::RewardWeight],
        rewarded: &Columns,
        groups: &[u64],
        options: &AdvantageOptions,
    ) -> Result<Drift, TrainError> {
        let exact: Vec<Vec<f32>> = (self.ticket.wait()?.rewards.into_iter())
            .map(|scores| scores.values)
            .collect();
        let groups = &groups[..self.samples];
        let advantages = |columns: &Columns| {
            let columns = columns.iter().map(|values| &values[..self.samples]);
            compute_advantages(&reward_columns(names, columns), groups, options)
        };
        let (ours, theirs) = (advantages(rewarded)?, advantages(&exact)?);
        let signs = |values: &[f32]| {
            values
                .iter()
                .map(|value| (*value > 0.0, *value < 0.0))
                .collect::<Vec<_>>()
        };
        let changed = (signs(&ours.values).iter())
            .zip(signs(&theirs.values))
            .filter(|(a, b)| **a != *b)
            .count();
        let means = |columns: &Columns| group_means(names, columns, groups);
        let (before, after) = (means(&exact), means(rewarded));
        let all =
            (self.sums.velocities.iter()).fold((0.0, 0.0), |sum, step| (sum.0 + step.0, sum.1 + step.1));
        let mean_square = self.sums.pixels.0 / self.sums.pixels.1.max(1) as f64;
        Ok(Drift {
            samples: self.samples,
            velocity_l1_by_step: self.sums.velocities.iter().copied().map(relative).collect(),
            velocity_l1: relative(all),
            latent_l1: relative(self.sums.latents),
            latent_l1_by_sample: self.sums.by_sample,
            psnr_db: (mean_square > 0.0).then(|| 10.0 * (4.0 / mean_square).log10()),
            reward: paired_difference(&before, &after, IntervalMethod::StudentT)?
                .of_values_within(weighted_range(names)),
            group_rewards: (before, after),
            reward_group_std: theirs.metrics.total.group_std_mean,
            sign_changes: changed as f64 / self.samples as f64,
            saved_s: self.saved_s,
        })
    }

    /// Wall seconds of the samples that were taken twice: with the accelerators, and without.
    pub fn wall_s(&self) -> (f64, f64) {
        self.sums.wall_s()
    }
}

/// Between which ends the weighted sum of rewards lies.
fn weighted_range(names: &[super::RewardWeight]) -> ValueRange {
    let (mut low, mut high) = (Some(0.0), Some(0.0));
    for reward in names.iter().filter(|reward| reward.weight != 0.0) {
        let [first, second] =
            [reward.range.low, reward.range.high].map(|end| end.map(|end| reward.weight * end));
        // A negative weight turns the range round.
        let (least, most) = if reward.weight > 0.0 {
            (first, second)
        } else {
            (second, first)
        };
        (low, high) = (
            low.zip(least).map(|(sum, end)| sum + end),
            high.zip(most).map(|(sum, end)| sum + end),
        );
    }
    ValueRange { low, high }
}

/// Mean weighted reward of each group, in order of first appearance.
fn group_means(names: &[super::RewardWeight], columns: &Columns, groups: &[u64]) -> Vec<f64> {
    let mut means: Vec<(u64, f64, usize)> = Vec::new();
    for (sample, group) in groups.iter().enumerate() {
        let reward: f64 = (names.iter().zip(columns))
            .map(|(reward, values)| reward.weight * f64::from(values[sample]))
            .sum();
        match means.iter_mut().find(|(of, ..)| of == group) {
            Some((_, sum, count)) => (*sum, *count) = (*sum + reward, *count + 1),
            None => means.push((*group, reward, 1)),
        }
    }
    means
        .into_iter()
        .map(|(_, sum, count)| sum / count as f64)
        .collect()
}

/// What a rollout cost and changed; see [`Parts::drift`].
#[derive(Clone, Debug)]
pub struct DriftRun {
    /// What changed.
    pub drift: Drift,
    /// Predicted and found relative L1 errors of final latents, for accelerators that predict one. They have learned from it.
    pub predicted: Vec<(f64, f64)>,
    /// What each accelerator did in the rollout with them.
    pub activity: Vec<flow_accel::Activity>,
    /// What accelerators did not do in it, and what those that are in force in both rollouts fell short of in the other.
    pub undone: Vec<Undone>,
    /// Wall seconds, summed over micro-batches: with the accelerators of the rollout, and without.
    pub wall_s: (f64, f64),
    /// Processor seconds of the process, with and without; absent where the system does not tell.
    pub cpu_s: Option<(f64, f64)>,
    /// Block evaluations of one rollout without them, summed over rows of both branches.
    pub blocks: u64,
}

impl<A: Algorithm> Parts<A, Acceleration> {
    /// Groups to sample twice in this iteration.
    pub(super) fn drift_groups(&self) -> usize {
        let (settings, iteration) = (&self.settings, self.state.iteration);
        let prompts = settings.geometry.prompts();
        let due = settings.drift_every > 0 && iteration.is_multiple_of(settings.drift_every);
        let asked = if due { settings.drift_groups } else { 0 };
        // Whole groups, as many as an accelerator wants on average.
        let wanted = self.acceleration.audit_share() * prompts as f64;
        let audited = if wanted >= 1.0 {
            wanted.round() as usize
        } else if wanted > 0.0 {
            usize::from(iteration.is_multiple_of((1.0 / wanted).round() as u64))
        } else {
            0
        };
        asked.max(audited).min(prompts)
    }

    /// One rollout of `iteration` with the accelerators of the rollout and once more without, and nothing learned. Nothing of
    /// the run changes.
    ///
    /// # Errors
    /// As those of a run; of strict parts what an accelerator did not do is one.
    pub fn drift(&mut self, iteration: u64, observer: &mut dyn Observer) -> Result<DriftRun, TrainError> {
        self.drift_from(iteration, None, observer)
    }

    /// As [`drift`](Self::drift), the rollout without being one with other `weights`, if there are some: those of the same layout in
    /// another form, say.
    ///
    /// # Errors
    /// As [`drift`](Self::drift).
    pub fn drift_from(
        &mut self,
        iteration: u64,
        weights: Option<&Weights>,
        observer: &mut dyn Observer,
    ) -> Result<DriftRun, TrainError> {
        let before = std::mem::replace(&mut self.state.iteration, iteration);
        let outcome = self.drift_now(weights, observer);
        self.state.iteration = before;
        outcome
    }

    fn drift_now(
        &self,
        weights: Option<&Weights>,
        observer: &mut dyn Observer,
    ) -> Result<DriftRun, TrainError> {
        self.acceleration.take_activity();
        let repetition = Repetition {
            groups: self.settings.geometry.prompts(),
            beside: false,
            weights,
        };
        let rolled = self.roll_out_comparing(self.sampling_weights(), &repetition, None, observer)?;
        let within = format!("rollout {}", self.state.iteration + 1);
        let mut found = undone(&rolled.activity, &within);
        found.extend(shortfalls(&self.acceleration.take_activity(), &within));
        let undone = settle(found, self.settings.strict)?;
        observer.phase(Phase::Rewards, rolled.tickets.len());
        let names = &self.rewards.1;
        let mut columns: Vec<Vec<f32>> = vec![Vec::new(); names.len()];
        for ticket in rolled.tickets {
            for (column, scores) in columns.iter_mut().zip(ticket.wait()?.rewards) {
                column.extend(scores.values);
            }
        }
        let pending = rolled.drift.expect("all groups are compared");
        let wall_s = pending.wall_s();
        let drift = pending.finish(names, &columns, &rolled.groups, &self.settings.advantage)?;
        let predicted = self
            .acceleration
            .audited(&rolled.activity, &drift.latent_l1_by_sample);
        let spec = self.sampler.policy.model.spec();
        let branches = if self.sampler.policy.is_guided() { 2 } else { 1 };
        let rows =
            self.settings.geometry.samples() * branches * self.schedule.steps_for(self.state.iteration).len();
        let blocks: usize = spec.stacks.iter().map(|(_, blocks)| blocks).sum();
        Ok(DriftRun {
            drift,
            predicted,
            activity: rolled.activity,
            undone,
            wall_s,
            cpu_s: rolled.cpu_s,
            blocks: (rows * blocks) as u64,
        })
    }
}
