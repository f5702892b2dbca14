//! The rows of an optimizer step beside one another, for losses that weigh a row by others: of its group, or of them all.

use flow_config::Rules;
use flow_config::codes::RULE_BATCH_GEOMETRY;
use std::ops::Range;

/// The rows of an optimizer step at one position, in the order of the rollout; of all ranks, so that what is made of them depends on
/// neither micro-batches nor ranks.
#[derive(Clone, Copy, Debug)]
pub struct StepRows<'a> {
    /// One advantage per row, clamped.
    pub advantages: &'a [f32],
    /// Group of each row. Rows of a group stand beside one another.
    pub groups: &'a [u64],
    /// What [`Algorithm::row_numbers`](super::Algorithm::row_numbers) gave, in its order, each with one value per row.
    pub numbers: &'a [Vec<f32>],
}

impl StepRows<'_> {
    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.advantages.len()
    }

    /// The rows of each group, in order.
    pub fn groups(&self) -> Vec<Range<usize>> {
        let mut first = 0;
        let runs = self.groups.chunk_by(|group, next| group == next);
        runs.map(|run| {
            let rows = first..first + run.len();
            first = rows.end;
            rows
        })
        .collect()
    }

    /// For each row the weight of its group, `sigmoid(sum over the group of A beta (error - other) / K)` with `K` rows in the group, from
    /// errors and those they are compared with. Summed in f64.
    pub(super) fn group_weights(&self, beta: f64, errors: &[f32], others: &[f32]) -> Vec<f32> {
        let excess = |row: usize| f64::from(errors[row]) - f64::from(others[row]);
        let mut weights = Vec::with_capacity(self.count());
        for group in self.groups() {
            let images = group.len();
            let sum: f64 = (group.map(|row| f64::from(self.advantages[row]) * beta * excess(row))).sum();
            let weight = 1.0 / (1.0 + (-sum / images as f64).exp());
            weights.resize(weights.len() + images, weight as f32);
        }
        weights
    }

    /// 1 for each row that learns, 0 for each that is held: whose `exp(old - error)` is beyond `[1 + lo, 1 + hi]` in the direction that its
    /// advantage asks for, from errors and those of a slower copy.
    pub(super) fn learns(&self, [lo, hi]: [f64; 2], errors: &[f32], old: &[f32]) -> Vec<f32> {
        let row = |row: usize| {
            let ratio = (f64::from(old[row]) - f64::from(errors[row])).exp();
            let is_held = match self.advantages[row] > 0.0 {
                true => ratio > 1.0 + hi,
                false => ratio < 1.0 + lo,
            };
            if is_held { 0.0 } else { 1.0 }
        };
        (0..self.count()).map(row).collect()
    }
}

/// The rule that an optimizer step has whole groups; `why` ends the sentence.
pub(super) fn check_whole_groups(rules: &mut Rules<'_>, why: &str) {
    let config = rules.config();
    let (sampling, group) = (&config.sampling, config.sampling.group_size);
    let images = match config.optimizer.gradient_accumulation {
        0 => sampling.prompts_per_step.saturating_mul(group),
        accumulated => sampling.micro_batch.saturating_mul(accumulated),
    };
    if group == 0 || images.is_multiple_of(group) {
        return;
    }
    let message =
        format!("an optimizer step takes {images} images, which are no whole groups of {group}, and {why}");
    rules
        .error(
            RULE_BATCH_GEOMETRY,
            &[
                "optimizer.gradient_accumulation",
                "sampling.micro_batch",
                "sampling.group_size",
                "algorithm.kind",
            ],
            message,
        )
        .help("make `sampling.micro_batch` times `optimizer.gradient_accumulation` a multiple of `sampling.group_size`");
}
