//! The feed-forward part of a block as one operation.

use super::gated_linear::Gated;
use super::{LINEAR, Normed, build_rows, layer_rows};
use crate::cpu::activation::activation_gradient;
use crate::cpu::linear::{Layer, StoredValues, activated_again, has_trained_matrix};
use crate::cpu::low_precision::{BackwardMatrix, ForwardMatrix, StoredMatrix};
use crate::host::{math, matrix::Precision, threads};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::{FeedForwardWeights, ModulatedNorm, Stash};
use flow_core::tensors::is_tracked;
use flow_core::{Activation, RawTensor, autograd};
use std::sync::Arc;

/// `gated_residual(x, linear(linear(modulated_layer_norm(x))))`.
///
/// Backward keeps `x`, the sum before the activation, and, for the gradient of the gates, the branch. The composed
/// operations keep the normalised rows and the result of the activation, too: five of eleven rows of the width of `x`,
/// if the inner width is four times as much.
pub(crate) fn modulated_feed_forward(
    stash: &dyn Stash,
    norm: ModulatedNorm<'_>,
    weights: &FeedForwardWeights,
    gate: usize,
    precision: Precision,
) -> DispatchTensor {
    let ModulatedNorm {
        x,
        modulation,
        chunks,
    } = norm;
    let mut inputs = vec![x, modulation];
    inputs.extend(weights.up.tensors());
    let first_down = inputs.len();
    inputs.extend(weights.down.tensors());
    let train = [&weights.up, &weights.down].map(has_trained_matrix);
    let keep_branch = is_tracked(modulation) || stash.keeps(LINEAR);
    autograd::apply("modulated_feed_forward", &inputs, |plain, tracked| {
        let normed = Normed::read(&plain[0], &plain[1], chunks);
        let stored = Part {
            gated: Gated::new(normed.x.clone(), normed.modulation.clone(), gate),
            normed,
            up: StoredValues::read(&plain[2..first_down], &weights.up, precision),
            activation: weights.activation,
            down: StoredValues::read(&plain[first_down..], &weights.down, precision),
        };
        let part = stored.for_forward();
        let ending = stash.ending();
        if !tracked && !stash.keeps(LINEAR) {
            let nothing: autograd::Backward = Arc::new(|incoming| vec![None; incoming.wanted.len()]);
            return (stash.ending_or(ending, || part.forward()), nothing);
        }
        let one = |mut kept: Vec<RawTensor>| kept.pop().expect("a linear layer keeps one tensor");
        let sum = one(stash.through(LINEAR, &mut || vec![part.normed.layer(&part.up)]));
        let branch = keep_branch.then(|| one(stash.through(LINEAR, &mut || vec![part.branch(&sum)])));
        let output = stash.ending_or(ending, || match &branch {
            Some(branch) => part.gated.with(branch),
            None => part.output(&sum),
        });
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let (up, down) = incoming.wanted.split_at(first_down);
            let part = stored.for_backward();
            part.backward(&sum, branch.as_ref(), train, incoming.gradient(), (up, down))
        });
        (output, backward)
    })
}

/// The operands, the layers with their matrices in the form `M`.
#[derive(Debug)]
struct Part<M> {
    normed: Normed,
    up: Layer<M>,
    activation: Activation,
    down: Layer<M>,
    gated: Gated,
}

/// The layers as they are stored: what backward keeps.
impl Part<StoredMatrix> {
    /// The operands that forward computes with.
    fn for_forward(&self) -> Part<ForwardMatrix> {
        self.with([&self.up, &self.down].map(StoredValues::for_forward))
    }

    /// The operands that backward computes with.
    fn for_backward(&self) -> Part<BackwardMatrix> {
        self.with([&self.up, &self.down].map(StoredValues::for_backward))
    }

    fn with<M>(&self, [up, down]: [Layer<M>; 2]) -> Part<M> {
        Part {
            normed: self.normed.clone(),
            up,
            activation: self.activation,
            down,
            gated: self.gated.clone(),
        }
    }
}

impl Part<ForwardMatrix> {
    /// Everything at once, block of rows by block of rows.
    fn forward(&self) -> RawTensor {
        let rows = self.normed.rows();
        let work = self.up.work(rows) + self.down.work(rows);
        self.gated_rows(work, |start, rows| {
            let mut inner = layer_rows(&self.up, &self.normed.scratch(start, rows), rows);
            math::activate(self.activation, &mut inner);
            inner
        })
    }

    /// The output from the kept sum, without a tensor of the branch.
    fn output(&self, sum: &RawTensor) -> RawTensor {
        let sum = CpuTensor::read(sum);
        let work = self.down.work(self.normed.rows());
        self.gated_rows(work, |start, rows| self.activated(&sum, start, rows))
    }

    /// The output, given what comes out of the activation: `inner(first row, rows)`.
    fn gated_rows(&self, work: usize, inner: impl Fn(usize, usize) -> Vec<f32> + Send + Sync) -> RawTensor {
        let columns = self.down.outputs();
        let y = build_rows(
            self.normed.rows(),
            columns,
            work,
            threads::Start::Zeros,
            |start, y| {
                let rows = y.len().checked_div(columns).unwrap_or(0);
                let branch = layer_rows(&self.down, &inner(start, rows), rows);
                self.gated.rows(&branch, start, y);
            },
        );
        from_vec(y, self.normed.x.shape())
    }

    /// The branch as a tensor, from the kept sum.
    fn branch(&self, sum: &RawTensor) -> RawTensor {
        let sum = CpuTensor::read(sum);
        let (rows, columns) = (self.normed.rows(), self.down.outputs());
        let work = self.down.work(rows);
        let branch = build_rows(rows, columns, work, self.down.start(), |start, branch| {
            let rows = branch.len().checked_div(columns).unwrap_or(0);
            self.down
                .forward_rows(&self.activated(&sum, start, rows), 0, branch);
        });
        from_vec(branch, self.normed.x.shape())
    }

    /// The activation of `rows` rows of the sum from `start` on.
    fn activated(&self, sum: &CpuTensor, start: usize, rows: usize) -> Vec<f32> {
        let inner = self.up.outputs();
        let mut activated = vec![0.0; rows * inner];
        let sum = &sum.values()[start * inner..][..rows * inner];
        math::activate_into(self.activation, sum, &mut activated);
        activated
    }
}

impl Part<BackwardMatrix> {
    /// Gradients of `x`, the modulation and the weights of `up` (`wanted.0`), and of those of `down` (`wanted.1`).
    fn backward(
        &self,
        sum: &RawTensor,
        branch: Option<&RawTensor>,
        [train_up, train_down]: [bool; 2],
        incoming: &RawTensor,
        (wanted, wanted_down): (&[bool], &[bool]),
    ) -> Vec<Option<RawTensor>> {
        let Self { gated, normed, .. } = self;
        let gradient = CpuTensor::read(incoming);
        let gradient = gradient.values();
        let dgate = wanted[1].then(|| {
            let branch = CpuTensor::read(branch.expect("kept, the modulation being tracked"));
            gated.layout.modulation_gradient(gradient, branch.values())
        });
        let dbranch = gated.layout.branch_gradient(gradient, gated.modulation.values());
        let inner = train_down.then(|| CpuTensor::read(&activated_again(sum, self.activation)));
        let inner = inner.as_ref().map(CpuTensor::values);
        let down = self.down.weight_gradients(inner, &dbranch, wanted_down);
        let (dx, dmodulation, up) = if wanted.contains(&true) {
            let dinner = self.down.input_gradient(&dbranch);
            let sum = CpuTensor::read(sum);
            let dsum = activation_gradient(self.activation, sum.values(), &dinner);
            normed.layer_gradients(&self.up, train_up, &dsum, wanted)
        } else {
            (None, None, vec![None; wanted.len() - 2])
        };
        let dx = dx.filter(|_| wanted[0]).map(|dx| plus(dx, gradient));
        let dmodulation = dmodulation.zip(dgate).map(|(norm, gate)| plus(norm, &gate));
        let mut gradients = vec![
            dx.map(|values| from_vec(values, normed.x.shape())),
            dmodulation.map(|values| from_vec(values, normed.modulation.shape())),
        ];
        gradients.extend(up);
        gradients.extend(down);
        gradients
    }
}

/// The sum of two gradients of one tensor.
fn plus(mut a: Vec<f32>, b: &[f32]) -> Vec<f32> {
    threads::for_each_piece(&mut a, threads::PIECE, |index, piece| {
        let b = &b[index * threads::PIECE..][..piece.len()];
        math::vectorised(
            #[inline(always)]
            || piece.iter_mut().zip(b).for_each(|(a, b)| *a += b),
        );
    });
    a
}
