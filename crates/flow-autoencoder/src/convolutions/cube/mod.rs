//! Convolutions of pictures on Hopper's tensor cores, by the matrix products of `flow-matmul-cube`.
//!
//! What a convolution reads lies with a border of zeros, so that the taps of a row of the kernel are neighbours in memory, and the
//! convolution is one product of overlapping rows ([`KernelRows`]); nothing is copied side by side. Group norm, its activation and
//! upsampling write that border on the way. Results keep the border, whose values mean nothing: they are views of the pixels within,
//! which the next operation reads where they lie. What is read with a border is a copy, of large pictures made some rows at a time
//! (`strips`). A convolution of frames is one of pictures that have the frames under its taps as channels (`volumes`).

mod attention;
mod backward;
mod products;
mod strips;
mod unit;
mod volumes;
mod within;

use super::{BurnConvolutions, ConvolutionOperands, Convolutions, Geometry, GroupNormSpec, NormOperands};
use backward::{Plain, gradients, leaves};
use burn::backend::DispatchTensor;
use flow_core::autograd;
use flow_core::tensors::RawTensor;
use products::Products;
use std::sync::Arc;

/// Convolutions of 3 × 3 taps and of one, of frames as well, and group norm, in bf16 and f16 on devices of compute capability 9.0. Whatever else is
/// asked for is computed by [`BurnConvolutions`], and so are gradients.
#[derive(Debug, Default)]
pub struct CubeConvolutions {
    products: Products,
}

impl Convolutions for CubeConvolutions {
    fn name(&self) -> &str {
        "cube"
    }

    fn convolution(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: Option<&DispatchTensor>,
        geometry: &Geometry,
    ) -> DispatchTensor {
        let convolution = ConvolutionOperands {
            weight,
            bias,
            geometry: *geometry,
        };
        self.norm_and_convolution(x, None, &convolution, None)
    }

    fn group_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        spec: &GroupNormSpec,
    ) -> DispatchTensor {
        let spec = *spec;
        autograd::apply("group_norm", &[x, weight, bias], |plain, _| {
            let composed =
                move |of: &[DispatchTensor]| BurnConvolutions.group_norm(&of[0], &of[1], &of[2], &spec);
            let output = unit::group_norm(&plain[0], &plain[1], &plain[2], &spec);
            let output = output.unwrap_or_else(|| composed(plain));
            let kept = plain.to_vec();
            let backward: autograd::Backward = Arc::new(move |incoming| {
                let inputs = leaves(&kept, incoming.wanted);
                gradients(&inputs, composed(&inputs), &incoming)
            });
            (output, backward)
        })
    }

    fn attention(&self, qkv: [&DispatchTensor; 3]) -> DispatchTensor {
        autograd::apply("wide_attention", &qkv, |plain, _| {
            let output = self.products.attention([&plain[0], &plain[1], &plain[2]]);
            let output =
                output.unwrap_or_else(|_| BurnConvolutions.attention([&plain[0], &plain[1], &plain[2]]));
            let kept = plain.to_vec();
            let backward: autograd::Backward = Arc::new(move |incoming| {
                let inputs = leaves(&kept, incoming.wanted);
                let composed = BurnConvolutions.attention([&inputs[0], &inputs[1], &inputs[2]]);
                gradients(&inputs, composed, &incoming)
            });
            (output, backward)
        })
    }

    fn takes_points(&self) -> bool {
        true
    }

    fn norm_and_convolution(
        &self,
        x: &DispatchTensor,
        norm: Option<&NormOperands<'_>>,
        convolution: &ConvolutionOperands<'_>,
        residual: Option<&DispatchTensor>,
    ) -> DispatchTensor {
        let (spec, geometry) = (norm.map(|norm| norm.spec), convolution.geometry);
        let [normed, biased, added] = [norm.is_some(), convolution.bias.is_some(), residual.is_some()];
        let mut inputs = vec![x, convolution.weight];
        inputs.extend(norm.into_iter().flat_map(|norm| [norm.weight, norm.bias]));
        inputs.extend(convolution.bias);
        inputs.extend(residual);
        autograd::apply("convolution", &inputs, |plain, _| {
            let operands = Plain {
                values: plain,
                normed,
                biased,
                added,
            };
            let output = match self
                .products
                .unit_of_frames(&plain[0], &operands.unit(spec, geometry))
            {
                Ok(output) => output,
                Err(_) => operands.composed(plain, spec, geometry),
            };
            let kept: Vec<RawTensor> = plain.to_vec();
            let backward: autograd::Backward = Arc::new(move |incoming| {
                let operands = Plain {
                    values: &kept,
                    normed,
                    biased,
                    added,
                };
                operands.gradients(&incoming, spec, geometry)
            });
            (output, backward)
        })
    }
}
