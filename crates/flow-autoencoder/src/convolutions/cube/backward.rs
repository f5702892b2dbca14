//! Gradients, by Burn's operations on what was kept.

use super::unit::Unit;
use crate::convolutions::{
    BurnConvolutions, ConvolutionOperands, Geometry, GroupNormSpec, NormOperands, composed_unit,
};
use burn::backend::{DispatchTensor, TensorMetadata};
use flow_core::autograd;
use flow_core::tensors::{self, RawTensor, leaf};

/// The inputs of a unit in their order: `x`, weight, the norm's weight and bias, bias, what is added.
pub(super) struct Plain<'a> {
    pub(super) values: &'a [RawTensor],
    pub(super) normed: bool,
    pub(super) biased: bool,
    pub(super) added: bool,
}

impl Plain<'_> {
    pub(super) fn unit(&self, spec: Option<GroupNormSpec>, geometry: Geometry) -> Unit<'_> {
        let behind = 2 + 2 * usize::from(self.normed);
        Unit {
            norm: spec.map(|spec| (&self.values[2], &self.values[3], spec)),
            weight: &self.values[1],
            bias: self.biased.then(|| &self.values[behind]),
            geometry,
            residual: self
                .added
                .then(|| &self.values[behind + usize::from(self.biased)]),
        }
    }

    /// The same by Burn's operations, of `inputs` in the same order.
    pub(super) fn composed(
        &self,
        inputs: &[DispatchTensor],
        spec: Option<GroupNormSpec>,
        geometry: Geometry,
    ) -> DispatchTensor {
        let behind = 2 + 2 * usize::from(self.normed);
        let norm = spec.map(|spec| NormOperands {
            weight: &inputs[2],
            bias: &inputs[3],
            spec,
        });
        let convolution = ConvolutionOperands {
            weight: &inputs[1],
            bias: self.biased.then(|| &inputs[behind]),
            geometry,
        };
        let residual = self.added.then(|| &inputs[behind + usize::from(self.biased)]);
        composed_unit(
            &BurnConvolutions,
            &inputs[0],
            norm.as_ref(),
            &convolution,
            residual,
        )
    }

    /// Gradients of what wants them, by Burn's operations once more.
    pub(super) fn gradients(
        &self,
        incoming: &autograd::Incoming<'_>,
        spec: Option<GroupNormSpec>,
        geometry: Geometry,
    ) -> Vec<Option<RawTensor>> {
        let inputs = leaves(self.values, incoming.wanted);
        let output = self.composed(&inputs, spec, geometry);
        gradients(&inputs, output, incoming)
    }
}

/// `values`, as leaves of a graph where a gradient is wanted.
pub(super) fn leaves(values: &[RawTensor], wanted: &[bool]) -> Vec<DispatchTensor> {
    let each = values.iter().zip(wanted);
    each.map(|(value, wanted)| match wanted {
        true => leaf(value),
        false => value.clone(),
    })
    .collect()
}

/// The gradients of `inputs` that are wanted, of an `output` that was made of them.
pub(super) fn gradients(
    inputs: &[DispatchTensor],
    output: DispatchTensor,
    incoming: &autograd::Incoming<'_>,
) -> Vec<Option<RawTensor>> {
    let gradient = tensors::cast(incoming.gradient(), output.dtype().into());
    let gradients = autograd::backward_from(vec![output], vec![Some(gradient)]);
    let mut gradients = gradients.expect("an input is tracked, or this is not called");
    let found = inputs.iter().zip(incoming.wanted);
    found
        .map(|(input, wanted)| match wanted {
            true => autograd::take_gradient(input, &mut gradients),
            false => None,
        })
        .collect()
}
