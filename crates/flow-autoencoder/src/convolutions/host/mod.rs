//! Convolutions and group norm on the processor.
//!
//! A convolution is a sum of matrix products, one for each line of its taps: row by row of the output, what lies under the line
//! is copied side by side (im2col), a strip of rows at a time so that the copy stays small, and multiplied by the weight. A
//! row's bits depend neither on the strip that it lies in nor on the number of threads
//! (`flow_kernels::host::matrix::multiply_rows`).

mod backward;
mod forward;
mod group_norm;
mod problem;
mod upsample;

use super::{
    ConvolutionOperands, Convolutions, Geometry, GroupNormSpec, NormOperands, axes, composed_unit,
    weight_axes,
};
use burn::backend::DispatchTensor;
use flow_core::autograd;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::tensors::is_tracked;
use problem::{Problem, packed_forward};
use std::sync::Arc;

/// Convolutions by im2col on the house's matrix products, in f32. Results do not depend on the number of threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostConvolutions;

impl Convolutions for HostConvolutions {
    fn name(&self) -> &str {
        "host"
    }

    fn convolution(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: Option<&DispatchTensor>,
        geometry: &Geometry,
    ) -> DispatchTensor {
        let problem = problem(x, weight, geometry);
        let inputs: Vec<&DispatchTensor> = [x, weight].into_iter().chain(bias).collect();
        let keep_x = is_tracked(weight);
        autograd::apply("convolution", &inputs, |plain, _| {
            let (x, weight) = (CpuTensor::read(&plain[0]), CpuTensor::read(&plain[1]));
            let bias = plain.get(2).map(CpuTensor::read);
            let values = bias.as_ref().map(CpuTensor::values);
            let output = if upsample::applies(&problem) {
                upsample::forward(&problem, x.values(), weight.values(), values)
            } else {
                forward::forward(
                    &problem,
                    x.values(),
                    &packed_forward(&problem, weight.values()),
                    values,
                )
            };
            let x_shape = x.shape().to_vec();
            let x = keep_x.then_some(x);
            let has_bias = bias.is_some();
            let backward: autograd::Backward = Arc::new(move |incoming| {
                let gradient = CpuTensor::read(incoming.gradient());
                let gradient = gradient.values();
                let dx = || from_vec(backward::input(&problem, weight.values(), gradient), &x_shape);
                let dweight = || {
                    let x = x.as_ref().expect("the input is kept if the weight is tracked");
                    from_vec(backward::weight(&problem, x.values(), gradient), weight.shape())
                };
                let dbias = || from_vec(backward::bias(gradient, problem.outputs), &[problem.outputs]);
                let mut gradients = vec![incoming.wanted[0].then(dx), incoming.wanted[1].then(dweight)];
                if has_bias {
                    gradients.push(incoming.wanted[2].then(dbias));
                }
                gradients
            });
            (from_vec(output, &problem.output_shape()), backward)
        })
    }

    fn group_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        spec: &GroupNormSpec,
    ) -> DispatchTensor {
        group_norm::group_norm(x, weight, bias, spec)
    }

    fn norm_and_convolution(
        &self,
        x: &DispatchTensor,
        norm: Option<&NormOperands<'_>>,
        convolution: &ConvolutionOperands<'_>,
        residual: Option<&DispatchTensor>,
    ) -> DispatchTensor {
        composed_unit(self, x, norm, convolution, residual)
    }
}

fn problem(x: &DispatchTensor, weight: &DispatchTensor, geometry: &Geometry) -> Problem {
    let [batch, frames, height, width, channels] = axes::<5>(x);
    let (outputs, inputs, kernel) = weight_axes(weight);
    assert_eq!(
        channels, inputs,
        "channels of a convolution's input and of its weight"
    );
    let input = [frames, height, width];
    Problem {
        batch,
        input,
        channels,
        output: geometry.output(input, kernel),
        outputs,
        kernel,
        stride: geometry.stride,
        before: geometry.padding.map(|[before, _]| before),
        spread: [1; 3],
        upsample: geometry.upsample,
    }
}
