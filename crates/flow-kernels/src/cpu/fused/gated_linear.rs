//! A linear layer whose result is a gated branch: one output, and no tensor of the branch unless backward needs it.

use super::{LINEAR, build_rows, layer_rows};
use crate::cpu::gated_residual::GateLayout;
use crate::cpu::linear::{StoredValues, has_trained_matrix};
use crate::host::{matrix::Precision, threads};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::{GatedResidual, LinearWeights, Stash};
use flow_core::tensors::{gradients_of_sides, is_tracked, shape as shape_of, side_by_side};
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

/// `gated_residual(residual, linear(x))`, `x` being `parts` side by side. Keeps the branch only for the gradient of the gates.
pub(crate) fn linear_gated_residual(
    stash: &dyn Stash,
    gated: GatedResidual<'_>,
    parts: &[&DispatchTensor],
    weights: &LinearWeights,
    precision: Precision,
) -> DispatchTensor {
    let GatedResidual {
        residual,
        modulation,
        gate,
    } = gated;
    let mut inputs = vec![residual];
    inputs.extend(parts);
    let of_modulation = inputs.len();
    inputs.push(modulation);
    inputs.extend(weights.tensors());
    let keep_x = has_trained_matrix(weights);
    let keep_branch = is_tracked(modulation) || stash.keeps(LINEAR);
    autograd::apply("linear_gated_residual", &inputs, |plain, _| {
        let [residual, modulation] = [0, of_modulation].map(|at| CpuTensor::read(&plain[at]));
        let gated = Gated::new(residual, modulation, gate);
        let stored = StoredValues::read(&plain[of_modulation + 1..], weights, precision);
        let layer = stored.for_forward();
        let (rows, columns) = gated.residual.rows_and_columns();
        let (work, shape) = (layer.work(rows), gated.residual.shape().to_vec());
        let (parts, ending) = (&plain[1..of_modulation], stash.ending());
        let widths: Vec<usize> = parts.iter().map(|part| shape_of(part)[2]).collect();
        let inputs = widths.iter().sum::<usize>();
        let reads_x = keep_x || keep_branch || ending.is_none();
        let x = reads_x.then(|| CpuTensor::read(&side_by_side(parts)));
        let values = || x.as_ref().expect("read where something reads it").values();
        let branch = keep_branch.then(|| {
            let mut kept = stash.through(LINEAR, &mut || {
                let branch = build_rows(rows, columns, work, layer.start(), |start, branch| {
                    layer.forward_rows(values(), start, branch);
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
                let branch = layer_rows(&layer, &values()[start * inputs..][..rows * inputs], rows);
                gated.rows(&branch, start, y);
            });
            from_vec(output, &shape)
        });
        let x_shape = [&shape[..2], &[inputs]].concat();
        let x = x.filter(|_| keep_x);
        let Gated {
            modulation, layout, ..
        } = gated;
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let wanted = incoming.wanted;
            let gradient = CpuTensor::read(incoming.gradient());
            let dmodulation = wanted[of_modulation].then(|| {
                let branch = branch.as_ref().expect("kept, the modulation being tracked");
                let branch = CpuTensor::read(branch);
                let dmodulation = layout.modulation_gradient(gradient.values(), branch.values());
                from_vec(dmodulation, modulation.shape())
            });
            let (of_parts, of_weights) = (&wanted[1..of_modulation], &wanted[of_modulation + 1..]);
            let mut gradients = vec![None; wanted.len()];
            gradients[0] = wanted[0].then(|| incoming.gradient().clone());
            gradients[of_modulation] = dmodulation;
            if of_parts.contains(&true) || of_weights.contains(&true) {
                let layer = stored.for_backward();
                let dbranch = layout.branch_gradient(gradient.values(), modulation.values());
                if of_parts.contains(&true) {
                    let dx = from_vec(layer.input_gradient(&dbranch), &x_shape);
                    gradients.splice(1..of_modulation, gradients_of_sides(dx, &widths, of_parts));
                }
                let x = x.as_ref().map(CpuTensor::values);
                let found = layer.weight_gradients(x, &dbranch, of_weights);
                gradients.splice(of_modulation + 1.., found);
            }
            gradients
        });
        (output, backward)
    })
}
