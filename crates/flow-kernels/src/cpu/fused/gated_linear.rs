//! A linear layer whose result is a gated branch: one output, and no tensor of the branch unless backward needs it.

use super::{LINEAR, build_rows, layer_rows};
use crate::cpu::gated_residual::GateLayout;
use crate::cpu::linear::{StoredValues, has_trained_matrix};
use crate::host::{matrix::Precision, threads};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::{GatedResidual, LinearWeights, Stash};
use flow_core::tensors::is_tracked;
use flow_core::{RawTensor, autograd};
use std::sync::Arc;

/// What a gated branch is added to, and the gates.
#[derive(Clone, Debug)]
pub(super) struct Gated {
    pub residual: CpuTensor,
    pub modulation: CpuTensor,
    pub layout: GateLayout,
}

impl Gated {
    pub fn new(residual: CpuTensor, modulation: CpuTensor, gate: usize) -> Self {
        let layout = GateLayout::new(residual.shape(), &modulation, gate);
        Self {
            residual,
            modulation,
            layout,
        }
    }

    /// Rows from `start` on; `branch` begins there.
    pub fn rows(&self, branch: &[f32], start: usize, y: &mut [f32]) {
        let (residual, modulation) = (self.residual.values(), self.modulation.values());
        self.layout.forward_rows(residual, branch, modulation, start, y);
    }

    /// The output for a branch that is a tensor.
    pub fn with(&self, branch: &RawTensor) -> RawTensor {
        let branch = CpuTensor::read(branch);
        let (residual, modulation) = (self.residual.values(), self.modulation.values());
        from_vec(
            self.layout.forward(residual, branch.values(), modulation),
            branch.shape(),
        )
    }
}

/// `gated_residual(residual, linear(x))`. Keeps the branch only for the gradient of the gates.
pub(crate) fn linear_gated_residual(
    stash: &dyn Stash,
    gated: GatedResidual<'_>,
    x: &DispatchTensor,
    weights: &LinearWeights,
    precision: Precision,
) -> DispatchTensor {
    let GatedResidual {
        residual,
        modulation,
        gate,
    } = gated;
    let mut inputs = vec![residual, x, modulation];
    inputs.extend(weights.tensors());
    let keep_x = has_trained_matrix(weights);
    let keep_branch = is_tracked(modulation) || stash.keeps(LINEAR);
    autograd::apply("linear_gated_residual", &inputs, |plain, _| {
        let x = CpuTensor::read(&plain[1]);
        let gated = Gated::new(CpuTensor::read(&plain[0]), CpuTensor::read(&plain[2]), gate);
        let stored = StoredValues::read(&plain[3..], weights, precision);
        let layer = stored.for_forward();
        let (rows, columns) = gated.residual.rows_and_columns();
        let (work, shape) = (layer.work(rows), gated.residual.shape().to_vec());
        let inputs = x.rows_and_columns().1;
        let ending = stash.ending();
        let branch = keep_branch.then(|| {
            let mut kept = stash.through(LINEAR, &mut || {
                let branch = build_rows(rows, columns, work, layer.start(), |start, branch| {
                    layer.forward_rows(x.values(), start, branch);
                });
                vec![from_vec(branch, &shape)]
            });
            kept.pop().expect("a linear layer keeps one tensor")
        });
        let output = stash.ending_or(ending, || {
            if let Some(branch) = &branch {
                return gated.with(branch);
            }
            let output = build_rows(rows, columns, work, threads::Start::Zeros, |start, y| {
                let rows = y.len().checked_div(columns).unwrap_or(0);
                let branch = layer_rows(&layer, &x.values()[start * inputs..][..rows * inputs], rows);
                gated.rows(&branch, start, y);
            });
            from_vec(output, &shape)
        });
        let x_shape = x.shape().to_vec();
        let x = keep_x.then_some(x);
        let Gated {
            modulation, layout, ..
        } = gated;
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let wanted = incoming.wanted;
            let gradient = CpuTensor::read(incoming.gradient());
            let dmodulation = wanted[2].then(|| {
                let branch = branch.as_ref().expect("kept, the modulation being tracked");
                let branch = CpuTensor::read(branch);
                let dmodulation = layout.modulation_gradient(gradient.values(), branch.values());
                from_vec(dmodulation, modulation.shape())
            });
            let mut gradients = vec![wanted[0].then(|| incoming.gradient().clone()), None, dmodulation];
            if wanted[1] || wanted[3..].contains(&true) {
                let layer = stored.for_backward();
                let dbranch = layout.branch_gradient(gradient.values(), modulation.values());
                gradients[1] = wanted[1].then(|| from_vec(layer.input_gradient(&dbranch), &x_shape));
                let x = x.as_ref().map(CpuTensor::values);
                gradients.extend(layer.weight_gradients(x, &dbranch, &wanted[3..]));
            } else {
                gradients.resize(wanted.len(), None);
            }
            gradients
        });
        (output, backward)
    })
}
