//! How long rewards took, and how much of that was beside the generation, where it costs nothing.

use super::Trainer;
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use flow_accel::Acceleration;
use flow_report::MetricRecord;
use flow_rewards::RewardBatch;
use std::time::{Duration, Instant};

/// Times of an iteration's rewards, of this process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RewardTimes {
    /// When each batch was handed over and when it was scored, in the order of the former.
    spans: Vec<(Instant, Instant)>,
    /// When the run began to wait for scores: what ran before is hidden behind the generation.
    waited_from: Instant,
    /// Seconds that the threads spent in each reward, all threads together, in the order of the rewards.
    busy_s: Vec<f64>,
}

/// When a batch was handed over, and what came of it.
pub(super) type Scored = (Instant, RewardBatch);

impl RewardTimes {
    /// Of batches in the order in which they were handed over; the run began to wait at `waited_from`.
    pub(super) fn of(batches: &[Scored], waited_from: Instant) -> Self {
        let span = |(submitted, batch): &Scored| {
            let wall = Duration::try_from_secs_f64(batch.wall_ms / 1e3).unwrap_or_default();
            (*submitted, *submitted + wall)
        };
        let mut busy_s = Vec::new();
        for (_, batch) in batches {
            busy_s.resize(batch.rewards.len(), 0.0);
            for (sum, reward) in busy_s.iter_mut().zip(&batch.rewards) {
                *sum += reward.busy_ms / 1e3;
            }
        }
        Self {
            spans: batches.iter().map(span).collect(),
            waited_from,
            busy_s,
        }
    }

    /// Seconds while some reward ran, and those of them before the run had to wait. What lies before `counted_to` was counted for an
    /// earlier iteration: a rollout that is an update ahead is handed over while the one before it is scored.
    fn ran_and_hidden(&self, counted_to: Option<Instant>) -> (f64, f64) {
        let since_wait = |instant: Instant| seconds_between(self.waited_from, instant);
        let spans = self.spans.iter();
        let spans: Vec<(f64, f64)> = spans
            .map(|(begin, end)| (since_wait(*begin), since_wait(*end)))
            .collect();
        ran_and_hidden(&spans, counted_to.map_or(f64::NEG_INFINITY, since_wait))
    }

    /// Until when rewards are counted once these are, if they were up to `counted_to`.
    fn counted_to(&self, counted_to: Option<Instant>) -> Option<Instant> {
        let ends = self.spans.iter().map(|(_, end)| *end);
        ends.chain(counted_to).max()
    }
}

/// Seconds from `from` to `to`, negative if `to` is the earlier one.
fn seconds_between(from: Instant, to: Instant) -> f64 {
    match to.checked_duration_since(from) {
        Some(later) => later.as_secs_f64(),
        None => -from.duration_since(to).as_secs_f64(),
    }
}

/// Seconds after `covered_to` that are covered by some span, and those of them before 0. Spans have a begin and an end, and come in the
/// order of their begins. Between the two a batch is scored or waits for threads that score others, so what spans cover is when rewards
/// ran.
fn ran_and_hidden(spans: &[(f64, f64)], mut covered_to: f64) -> (f64, f64) {
    let (mut ran_s, mut hidden_s) = (0.0, 0.0);
    for &(begin, end) in spans {
        let begin = begin.max(covered_to);
        if end > begin {
            ran_s += end - begin;
            hidden_s += end.min(0.0) - begin.min(0.0);
            covered_to = end;
        }
    }
    (ran_s, hidden_s)
}

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Writes the times of an iteration's rewards to `timing.jsonl`.
    pub(super) fn record_reward_times(&mut self, times: &RewardTimes) -> Result<(), TrainError> {
        let counted_to = self.progress.rewards_counted_to;
        let (ran_s, hidden_s) = times.ran_and_hidden(counted_to);
        self.progress.rewards_counted_to = times.counted_to(counted_to);
        self.progress.run_counters.add_reward_times(ran_s, hidden_s);
        let mut record = MetricRecord::new(self.state.iteration, "reward_time")
            .with("ran_s", ran_s)
            .with("hidden_s", hidden_s);
        for (reward, busy_s) in self.rewards.weights.iter().zip(&times.busy_s) {
            record = record.with(&format!("busy_s/{}", reward.name), *busy_s);
        }
        self.write_timing(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_hidden_until_the_run_waits_and_counts_once_where_batches_overlap() {
        for (spans, ran_s, hidden_s) in [
            (&[][..], 0.0, 0.0),
            // Done before anyone waited, with a pause.
            (&[(-8.0, -6.0), (-5.0, -4.0)], 3.0, 3.0),
            // Handed over while the one before was still scored, and ended at the same time or before it.
            (&[(-8.0, -5.0), (-7.0, -5.0), (-6.5, -5.5)], 3.0, 3.0),
            // The last ones are waited for.
            (&[(-4.0, -1.0), (-3.0, 2.0), (-0.5, 3.0)], 7.0, 4.0),
            // Handed over and waited for at once.
            (&[(0.0, 1.5)], 1.5, 0.0),
        ] {
            let found = ran_and_hidden(spans, f64::NEG_INFINITY);
            assert_eq!(found, (ran_s, hidden_s), "{spans:?}");
        }
    }

    #[test]
    fn what_was_counted_for_the_iteration_before_is_not_counted_again() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let times = |spans: &[(u64, u64)], waited_from: u64| RewardTimes {
            spans: spans.iter().map(|(from, to)| (at(*from), at(*to))).collect(),
            waited_from: at(waited_from),
            busy_s: Vec::new(),
        };
        // The second rollout is handed over from 6 s on, while the first is scored until 9 s; the run waits for each in turn.
        let first = times(&[(1, 4), (3, 9)], 8);
        let second = times(&[(6, 10), (7, 13)], 12);
        let third = times(&[(20, 21)], 20);
        assert_eq!(first.ran_and_hidden(None), (8.0, 7.0));
        let counted_to = first.counted_to(None);
        assert_eq!(counted_to, Some(at(9)));
        assert_eq!(second.ran_and_hidden(counted_to), (4.0, 3.0));
        let counted_to = second.counted_to(counted_to);
        assert_eq!(third.ran_and_hidden(counted_to), (1.0, 0.0));
        // One that was scored before the other ended adds nothing.
        assert_eq!(times(&[(8, 11)], 14).ran_and_hidden(counted_to), (0.0, 0.0));
        assert_eq!(times(&[], 14).counted_to(counted_to), Some(at(13)));
    }

    #[test]
    fn an_instant_before_another_is_a_negative_time_away() {
        let now = Instant::now();
        let later = now + Duration::from_millis(1500);
        assert_eq!(seconds_between(now, later), 1.5);
        assert_eq!(seconds_between(later, now), -1.5);
    }
}
