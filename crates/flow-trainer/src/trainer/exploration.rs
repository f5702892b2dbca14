//! The first part of an iteration that explores: candidates are sampled cheaply and scored, and the most telling of each group chosen.
//!
//! Candidate `c` of an iteration is number `c % candidates` of group `c / candidates`. It has an address of its own, so that one that is
//! chosen starts from the same latent, and draws the same noise, when it is sampled exactly. Scores of all ranks come together before
//! anything is chosen, so that all ranks choose the same.

use super::rollout::advance;
use super::{Parts, RewardWeight, Session};
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::exploration::{ExplorationSummary, KeepRule, scores};
use crate::observer::{Observer, Phase};
use crate::scheduler::{Schedule, StepCoefficients};
use crate::undone::undone;
use flow_accel::{Acceleration, Activity, Arrangement};
use flow_core::Weights;
use flow_report::{MetricRecord, Stopwatch};
use flow_rewards::{Sample, Ticket};
use std::sync::Mutex;

/// How candidates are sampled, and which are kept. `S` is an [`Acceleration`] once it is set up.
#[derive(Debug)]
pub struct Explorer<S = Arrangement> {
    /// Which are kept.
    pub keep: KeepRule,
    /// The accelerators while candidates are sampled.
    pub acceleration: S,
    /// The steps of candidates of the run's own size.
    pub schedule: Schedule,
    /// Those of its other sizes, in order.
    pub others: Vec<Schedule>,
}

impl Explorer {
    /// Sets its accelerators up with the weights that the run starts with.
    pub(super) fn set_up(self, weights: &Weights) -> Result<Explorer<Acceleration>, TrainError> {
        Ok(Explorer {
            keep: self.keep,
            acceleration: self.acceleration.set_up(weights)?,
            schedule: self.schedule,
            others: self.others,
        })
    }
}

impl<S> Explorer<S> {
    /// The steps of an iteration's candidates that are of number `size` among the sizes of a run.
    fn steps(&self, size: usize, iteration: u64) -> Vec<StepCoefficients> {
        let other = size.checked_sub(1).and_then(|other| self.others.get(other));
        other.unwrap_or(&self.schedule).steps_for(iteration)
    }
}

/// What an exploration came to.
pub(super) struct Explored {
    /// The candidate that each sample of the iteration is.
    pub kept: Vec<usize>,
    /// Of all candidates.
    scores: Vec<f64>,
    /// What the accelerators of this rank did.
    activity: Vec<Activity>,
    /// Calls of the model on all ranks, each with a micro-batch.
    forward_calls: usize,
    /// Seconds.
    pub wall_s: f64,
}

/// What is written down of it.
pub(super) struct ExplorationRecord {
    summary: ExplorationSummary,
    forward_calls: usize,
    /// What the accelerators of all ranks did.
    activity: Vec<Activity>,
}

impl<A: Algorithm> Parts<A, Acceleration> {
    /// Samples the candidates of an iteration cheaply and chooses among them; nothing for a run that does not explore.
    pub(super) fn explore(&self, observer: &mut dyn Observer) -> Result<Option<Explored>, TrainError> {
        let Some(explorer) = &self.explorer else {
            return Ok(None);
        };
        let (watch, geometry) = (Stopwatch::start(), &self.settings.geometry);
        // What was done before does not count.
        explorer.acceleration.take_activity();
        let tickets = self.score_candidates(explorer, observer)?;
        let (columns, _) = self.scored(tickets, observer)?;
        let columns = self.distribution.gather_candidates(geometry, columns)?;
        let scores = scores(&weights_of(&self.rewards.1), &columns);
        let kept = (explorer.keep).kept_of_groups(&scores, geometry.candidates(), geometry.group_size());
        Ok(Some(Explored {
            kept,
            scores,
            activity: explorer.acceleration.take_activity(),
            // As many for each size.
            forward_calls: geometry.candidate_micro_batches() * explorer.steps(0, self.state.iteration).len(),
            wall_s: watch.wall_s(),
        }))
    }

    /// Samples this rank's candidates; a group's images go to the reward workers as soon as the group is complete.
    fn score_candidates(
        &self,
        explorer: &Explorer<Acceleration>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<Ticket>, TrainError> {
        let (geometry, device) = (&self.settings.geometry, &self.sampler.device);
        let (batch, candidates) = (geometry.micro_batch_size(), geometry.candidates());
        let mine: Vec<usize> = self.distribution.candidate_micro_batches(geometry).collect();
        let steps = |size: usize| explorer.steps(size, self.state.iteration);
        observer.phase(Phase::Exploration, mine.len() * steps(0).len());
        let (drawn, observer) = (self.drawn(), Mutex::new(observer));
        let scope = explorer.acceleration.rollout(self.sampling_weights())?;
        let mut waiting: Vec<Sample> = Vec::new();
        let mut tickets = Vec::new();
        for wave in mine.chunks(device.concurrency()) {
            self.distribution.exchange.check()?;
            let sampled = device.concurrently(wave.len(), |at| {
                let of_batch: Vec<usize> = (wave[at] * batch..(wave[at] + 1) * batch).collect();
                let on_step = || advance(&observer);
                self.sample_candidates(scope.rollout(), &drawn, (&of_batch, &[]), steps, false, on_step)
                    .trajectories
            });
            for (index, done) in wave.iter().zip(&sampled) {
                let decoded = self.evaluation.decoded(done)?;
                for ((candidate, id), decoded) in (index * batch..).zip(&done.samples).zip(decoded) {
                    waiting.push(self.to_score(&drawn[candidate / candidates], *id, decoded)?);
                }
            }
            let complete = waiting.len() / candidates * candidates;
            if complete > 0 {
                let rest = waiting.split_off(complete);
                let whole = std::mem::replace(&mut waiting, rest);
                tickets.push(self.rewards.0.submit(whole, tickets.len() as u64)?);
            }
        }
        if !waiting.is_empty() {
            // Of groups that other ranks have a part of.
            tickets.push(self.rewards.0.submit(waiting, tickets.len() as u64)?);
        }
        Ok(tickets)
    }
}

impl<A: Algorithm> Session<A> {
    /// What an exploration came to, now that the exact rewards of those kept are there: `columns` by reward and sample. What its
    /// accelerators did not do is named once, or stops a strict run.
    pub(super) fn explored(
        &mut self,
        explored: Explored,
        columns: &[Vec<f32>],
        observer: &mut dyn Observer,
    ) -> Result<ExplorationRecord, TrainError> {
        let activity = self.parts.distribution.gather_activity(explored.activity)?;
        let within = format!("the exploration of iteration {}", self.parts.state.iteration + 1);
        self.name_undone(undone(&activity, &within), observer)?;
        let exact = scores(&weights_of(&self.parts.rewards.1), columns);
        let candidates = self.parts.settings.geometry.candidates();
        Ok(ExplorationRecord {
            summary: ExplorationSummary::new((&explored.scores[..], candidates), &explored.kept, &exact),
            forward_calls: explored.forward_calls,
            activity,
        })
    }
}

/// The record with what an exploration came to.
pub(super) fn with_exploration(record: MetricRecord, explored: &ExplorationRecord) -> MetricRecord {
    let ExplorationRecord {
        summary,
        forward_calls,
        activity,
    } = explored;
    let mut record = record
        .with("exploration/candidates", summary.candidates as f64)
        .with("exploration/reward_candidates", summary.reward_of_candidates)
        .with("exploration/reward_kept", summary.reward_of_kept)
        .with("exploration/reward_difference", summary.reward_difference)
        .with("exploration/forward_calls", *forward_calls as f64);
    if let Some(correlation) = summary.rank_correlation {
        record = record.with("exploration/rank_correlation", correlation);
    }
    for each in activity {
        for (what, count) in each.engagements.counted() {
            let key = format!("exploration/{}/{}", each.name, what.name());
            record = record.with(&key, count as f64);
        }
    }
    record
}

fn weights_of(rewards: &[RewardWeight]) -> Vec<f64> {
    rewards.iter().map(|reward| reward.weight).collect()
}
