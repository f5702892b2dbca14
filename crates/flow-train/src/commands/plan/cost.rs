//! About how much a run computes.
//!
//! Multiplications and additions of linear layers and of attention are counted, 2 per weight and row and
//! `4 · tokens² · width` per attention; the rest is small beside them. A backward pass counts twice its forward. Memory is
//! [`flow_validate::MemoryEstimate`]'s.

use flow_core::{ModelSpec, ParamLayout};
use flow_validate::{features, rows_per_image};

/// What an iteration asks for.
pub struct Work {
    /// Rows of a call.
    pub rows: usize,
    /// Calls of the rollout.
    pub sampling_calls: usize,
    /// Calls of the loss, forward and backward.
    pub training_calls: usize,
    /// Calls of the reference, forward only.
    pub reference_calls: usize,
}

/// What it comes to.
pub struct Cost {
    /// Operations of the rollout.
    pub sampling_flop: f64,
    /// Operations of the update.
    pub training_flop: f64,
}

impl Cost {
    /// Estimates an iteration.
    pub fn of(layout: &ParamLayout, spec: &ModelSpec, work: &Work) -> Self {
        let mut flop_per_row = 0.0;
        for weight in layout.specs() {
            let Some(features) = features(weight) else {
                continue;
            };
            let [output, input] = features.map(|count| count as f64);
            flop_per_row += 2.0 * rows_per_image(weight, spec) * output * input;
            if weight.name.ends_with("to_q.weight") {
                flop_per_row += 4.0 * (spec.tokens as f64).powi(2) * output;
            }
        }
        let call = flop_per_row * work.rows as f64;
        Self {
            sampling_flop: call * work.sampling_calls as f64,
            training_flop: call * (3 * work.training_calls + work.reference_calls) as f64,
        }
    }
}
