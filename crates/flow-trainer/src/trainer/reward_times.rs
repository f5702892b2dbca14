//! How long rewards took, and how much of that was beside the generation, where it costs nothing.

use super::Trainer;
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use flow_accel::Acceleration;
use flow_report::MetricRecord;
use flow_rewards::RewardBatch;
use std::time::Instant;

/// Times of an iteration's rewards, in seconds, of this process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RewardTimes {
    /// Of the wall clock while some reward ran.
    pub ran_s: f64,
    /// Those of them before the run had to wait for scores: they are hidden behind the generation.
    pub hidden_s: f64,
    /// What the threads spent in each reward, all threads together, in the order of the rewards.
    pub busy_s: Vec<f64>,
}

/// When a batch was handed over, and what came of it.
pub(super) type Scored = (Instant, RewardBatch);

impl RewardTimes {
    /// Of batches in the order in which they were handed over; the run began to wait at `waited_from`.
    pub(super) fn of(batches: &[Scored], waited_from: Instant) -> Self {
        let span = |(submitted, batch): &Scored| {
            let begun_s = seconds_between(waited_from, *submitted);
            (begun_s, begun_s + batch.wall_ms / 1e3)
        };
        let spans: Vec<(f64, f64)> = batches.iter().map(span).collect();
        let (ran_s, hidden_s) = ran_and_hidden(&spans);
        let mut busy_s = Vec::new();
        for (_, batch) in batches {
            busy_s.resize(batch.rewards.len(), 0.0);
            for (sum, reward) in busy_s.iter_mut().zip(&batch.rewards) {
                *sum += reward.busy_ms / 1e3;
            }
        }
        Self {
            ran_s,
            hidden_s,
            busy_s,
        }
    }
}

/// Seconds from `from` to `to`, negative if `to` is the earlier one.
fn seconds_between(from: Instant, to: Instant) -> f64 {
    match to.checked_duration_since(from) {
        Some(later) => later.as_secs_f64(),
        None => -from.duration_since(to).as_secs_f64(),
    }
}

/// Seconds that are covered by some span, and those of them before 0. Spans have a begin and an end, and come in the order of their
/// begins. Between the two a batch is scored or waits for threads that score others, so what spans cover is when rewards ran.
fn ran_and_hidden(spans: &[(f64, f64)]) -> (f64, f64) {
    let (mut ran_s, mut hidden_s, mut covered_to) = (0.0, 0.0, f64::NEG_INFINITY);
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
        self.progress.tally.add_reward_times(times.ran_s, times.hidden_s);
        let mut record = MetricRecord::new(self.state.iteration, "reward_time")
            .with("ran_s", times.ran_s)
            .with("hidden_s", times.hidden_s);
        for (reward, busy_s) in self.rewards.weights.iter().zip(&times.busy_s) {
            record = record.with(&format!("busy_s/{}", reward.name), *busy_s);
        }
        self.write_timing(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
            assert_eq!(ran_and_hidden(spans), (ran_s, hidden_s), "{spans:?}");
        }
    }

    #[test]
    fn an_instant_before_another_is_a_negative_time_away() {
        let now = Instant::now();
        let later = now + Duration::from_millis(1500);
        assert_eq!(seconds_between(now, later), 1.5);
        assert_eq!(seconds_between(later, now), -1.5);
    }
}
