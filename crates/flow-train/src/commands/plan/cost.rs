//! About how much a run computes and keeps in memory.
//!
//! Multiplications and additions of linear layers and of attention are counted, 2 per weight and row and
//! `4 · tokens² · width` per attention; the rest is small beside them. A backward pass counts twice its forward.
//! Activations count the input and the output of every linear layer once. Layers that see a sample rather than its
//! tokens are told by their names: `norm` (modulations) and `time` (embedding of the noise level).

use flow_core::{ModelSpec, ParamKind, ParamLayout, ParamSpec};

const BYTES: f64 = 4.0;

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
    /// Steps recorded of each trajectory.
    pub records: usize,
    /// Images.
    pub samples: usize,
    /// Trained weights.
    pub trained: usize,
    /// Copies of all weights.
    pub weight_sets: usize,
}

/// What it comes to.
pub struct Cost {
    /// Operations of the rollout.
    pub sampling_flop: f64,
    /// Operations of the update.
    pub training_flop: f64,
    /// Weights, gradients, moments.
    pub state_bytes: f64,
    /// What the rollout keeps for the loss.
    pub trajectory_bytes: f64,
    /// What one call keeps for its backward pass.
    pub activation_bytes: f64,
}

impl Cost {
    /// Estimates an iteration.
    pub fn of(layout: &ParamLayout, spec: &ModelSpec, work: &Work) -> Self {
        let (mut flop_per_row, mut values_per_row) = (0.0, 0.0);
        for weight in layout.specs().iter().filter(|weight| is_linear(weight)) {
            let (output, input) = (weight.shape[0] as f64, weight.shape[1] as f64);
            let per_sample = weight.name.contains("norm") || weight.name.contains("time");
            let rows = if per_sample { 1.0 } else { spec.tokens as f64 };
            flop_per_row += 2.0 * rows * output * input;
            values_per_row += rows * (output + input);
            if weight.name.ends_with("to_q.weight") {
                flop_per_row += 4.0 * (spec.tokens as f64).powi(2) * output;
            }
        }
        let call = flop_per_row * work.rows as f64;
        let all = layout.count_values(|_| true) as f64;
        // Moments and the sum of gradients, and the gradients of the call under way.
        let optimizer = 4.0 * work.trained as f64;
        let latents = spec.latent.values() as f64;
        Self {
            sampling_flop: call * work.sampling_calls as f64,
            training_flop: call * (3 * work.training_calls + work.reference_calls) as f64,
            state_bytes: BYTES * (all * work.weight_sets as f64 + optimizer),
            // Before, after and mean of each recorded step, and the final latents.
            trajectory_bytes: BYTES * latents * (work.samples * (3 * work.records + 1)) as f64,
            activation_bytes: BYTES * values_per_row * work.rows as f64,
        }
    }

    /// All of it at one time.
    pub fn total_bytes(&self) -> f64 {
        self.state_bytes + self.trajectory_bytes + self.activation_bytes
    }
}

/// Whether a weight is a linear layer's: tables of embeddings are looked up, not multiplied by.
fn is_linear(weight: &ParamSpec) -> bool {
    weight.kind != ParamKind::Buffer && weight.shape.len() == 2 && !weight.name.contains("token_embed")
}
