//! Runs whose last weights are worse than earlier ones.
//!
//! Rewards that rise and then fall are how a policy shows that it ran away from what it was trained on, and the first and the last
//! evaluation alone do not tell a run that learned nothing from one that lost what it had learned.

use crate::metrics::{Metrics, Record};
use crate::statistics::{
    IntervalMethod, PairedDifference, StatisticsError, mean_interval, paired_difference,
};

/// Less than this share of what was gained, lost again, is the wavering of any run.
const LEAST_SHARE: f64 = 1.0 / 3.0;

/// What was lost between a reward's best evaluation and the last one.
#[derive(Clone, Debug, PartialEq)]
pub struct RewardRegression {
    /// Step of the best evaluation.
    pub best_step: u64,
    /// Mean over prompts then.
    pub best_mean: f64,
    /// Step of the last evaluation.
    pub last_step: u64,
    /// Last less best, prompt by prompt: below 0.
    pub difference: PairedDifference,
}

impl RewardRegression {
    /// Of the evaluations in `metrics` whose values by prompt stand under `prompts/REWARD`: the best one, if the last one is clearly
    /// below it. Clearly: the 95 % interval of the difference by prompt excludes 0, and at least a third of what had been gained since the
    /// first evaluation is lost. Evaluations of another number of prompts than the last one's (a resumed run may have another) do not count.
    ///
    /// # Errors
    /// Values that are not finite.
    pub fn of(metrics: &Metrics, reward: &str) -> Result<Option<Self>, StatisticsError> {
        let key = format!("prompts/{reward}");
        let evaluations = metrics.of_kind("eval");
        let mut evaluations: Vec<(&Record, Vec<f64>)> = evaluations
            .filter_map(|record| Some((record, record.numbers(&key)?)))
            .collect();
        let prompts = evaluations.last().map(|(_, values)| values.len());
        evaluations.retain(|(_, values)| Some(values.len()) == prompts);
        let (Some((_, first)), Some((last, last_values))) = (evaluations.first(), evaluations.last()) else {
            return Ok(None);
        };
        let mean_of = |values: &[f64]| Ok(mean_interval(values, IntervalMethod::StudentT)?.mean);
        let first_mean = mean_of(first)?;
        let (mut best, mut best_mean) = (&evaluations[0], first_mean);
        for evaluation in &evaluations[1..] {
            let mean = mean_of(&evaluation.1)?;
            if mean > best_mean {
                (best, best_mean) = (evaluation, mean);
            }
        }
        // No mean is above the best one: a difference that is not 0 is a loss.
        let difference = paired_difference(&best.1, last_values, IntervalMethod::StudentT)?;
        let lost = -difference.interval.mean;
        let is_clear = difference.excludes_zero() && lost >= LEAST_SHARE * (best_mean - first_mean);
        Ok(is_clear.then_some(Self {
            best_step: best.0.step,
            best_mean,
            last_step: last.step,
            difference,
        }))
    }
}
