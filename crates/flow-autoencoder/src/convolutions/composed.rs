//! Convolutions of Burn's, for devices without kernels of ours.

use super::{
    ConvolutionOperands, Convolutions, Geometry, GroupNormSpec, NormOperands, axes, composed_unit,
    weight_axes,
};
use burn::backend::DispatchTensor;
use burn::tensor::activation::silu;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{FloatDType, Tensor};
use flow_core::tensors::shape;

/// Burn's own two-dimensional convolution, and a group norm of Burn's elementwise operations and means, on any device.
///
/// Frames under the taps of a convolution in time are put beside one another as channels first. Its speed and the order of
/// its additions are those of Burn's backend: nothing here is fused or tuned.
#[derive(Clone, Copy, Debug, Default)]
pub struct BurnConvolutions;

impl Convolutions for BurnConvolutions {
    fn name(&self) -> &str {
        "burn"
    }

    fn convolution(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: Option<&DispatchTensor>,
        geometry: &Geometry,
    ) -> DispatchTensor {
        let (outputs, _, kernel) = weight_axes(weight);
        let [batch, frames, height, width, _] = axes::<5>(x);
        let [out_frames, out_height, out_width] = geometry.output([frames, height, width], kernel);
        let (x, weight) = as_pictures(x, weight, geometry);
        let x = if geometry.upsample { upsampled(x) } else { x };
        let [_, _, height, width, deep] = x.dims();
        let bias = bias.map(|bias| Tensor::<1>::from_dispatch(bias.clone()));
        let x = x.reshape([batch * out_frames, height, width, deep]);
        let (x, [rows, columns]) = evenly_padded(x, geometry);
        let strides = [geometry.stride[1], geometry.stride[2]];
        let options = ConvOptions::new(strides, [rows, columns], [1, 1], 1);
        let x = x.permute([0, 3, 1, 2]);
        conv2d(x, weight, bias, options)
            .permute([0, 2, 3, 1])
            .reshape([batch, out_frames, out_height, out_width, outputs])
            .into_dispatch()
    }

    fn group_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        spec: &GroupNormSpec,
    ) -> DispatchTensor {
        let [batch, frames, height, width, channels] = axes::<5>(x);
        let x = Tensor::<5>::from_dispatch(x.clone());
        let stored = x.dtype();
        let [weight, bias] = [weight, bias].map(|it| {
            let it = Tensor::<1>::from_dispatch(it.clone()).cast(FloatDType::F32);
            it.reshape([1, 1, spec.groups, channels / spec.groups])
        });
        let pixels = frames * height * width;
        let x = x
            .cast(FloatDType::F32)
            .reshape([batch, pixels, spec.groups, channels / spec.groups]);
        let centred = x.clone() - x.mean_dim(3).mean_dim(1);
        let variance = (centred.clone() * centred.clone()).mean_dim(3).mean_dim(1);
        let y = centred / (variance + spec.epsilon).sqrt() * weight + bias;
        let y = if spec.silu { silu(y) } else { y };
        y.reshape([batch, frames, height, width, channels])
            .cast(FloatDType::from(stored))
            .into_dispatch()
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

/// A convolution of frames as one of pictures: `x [B, T, H, W, C]` as `[B T', 1, H, W, k C]`, of each output's frame those of the input under
/// its `k` taps side by side as channels, and `weight` as `[out, k C, kh, kw]`. Sums are the same, in another order.
pub(super) fn as_pictures(
    x: &DispatchTensor,
    weight: &DispatchTensor,
    geometry: &Geometry,
) -> (Tensor<5>, Tensor<4>) {
    let (outputs, _, kernel) = weight_axes(weight);
    let [batch, frames, height, width, channels] = axes::<5>(x);
    let [out_frames, ..] = geometry.output([frames, height, width], kernel);
    let x = Tensor::<5>::from_dispatch(x.clone());
    let (x, taps) = frames_as_channels(x, kernel[0], geometry, out_frames);
    let deep = taps.len() * channels;
    let weight = five_axes(weight).narrow(2, taps.start, taps.len());
    let weight = weight
        .permute([0, 2, 1, 3, 4])
        .reshape([outputs, deep, kernel[1], kernel[2]]);
    (x.reshape([batch * out_frames, 1, height, width, deep]), weight)
}

/// Every pixel twice along rows and columns.
fn upsampled(x: Tensor<5>) -> Tensor<5> {
    let [batch, frames, height, width, channels] = x.dims();
    x.reshape([batch * frames * height, width, 1, channels])
        .repeat_dim(2, 2)
        .reshape([batch * frames, height, 1, 2 * width * channels])
        .repeat_dim(2, 2)
        .reshape([batch, frames, 2 * height, 2 * width, channels])
}

/// The frames under each output's taps, side by side as channels, and which of the taps they are: those of a single output
/// that lie on zeros are left out.
fn frames_as_channels(
    x: Tensor<5>,
    taps: usize,
    geometry: &Geometry,
    out_frames: usize,
) -> (Tensor<5>, std::ops::Range<usize>) {
    let [batch, frames, height, width, channels] = x.dims();
    let [before, after] = geometry.padding[0];
    if taps == 1 && geometry.stride[0] == 1 && before + after == 0 {
        return (x, 0..1);
    }
    let used = if out_frames == 1 {
        before.min(taps - 1)..taps.min(before + frames)
    } else {
        0..taps
    };
    let zeros = || Tensor::zeros([batch, 1, height, width, channels], (&x.device(), x.dtype()));
    let frame = |at: usize| match at.checked_sub(before) {
        Some(at) if at < frames => x.clone().narrow(1, at, 1),
        _ => zeros(),
    };
    let outputs = (0..out_frames).map(|output| {
        let under = used.clone().map(|tap| frame(output * geometry.stride[0] + tap));
        Tensor::cat(under.collect(), 4)
    });
    (Tensor::cat(outputs.collect(), 1), used)
}

/// `x [B, H, W, C]` with zeros where rows or columns have more of them behind than before, and how many are still to be put on
/// both sides: not every backend's convolution takes two numbers.
fn evenly_padded(x: Tensor<4>, geometry: &Geometry) -> (Tensor<4>, [usize; 2]) {
    let sides = [1, 2].map(|axis| geometry.padding[axis]);
    let even = sides.map(|[before, after]| before.min(after));
    let mut padded = x;
    for (axis, [before, after]) in (1..).zip(sides) {
        let zeros = |like: &Tensor<4>, count: usize| {
            let mut shape = like.dims();
            shape[axis] = count;
            Tensor::zeros(shape, (&like.device(), like.dtype()))
        };
        if after > before {
            let more = zeros(&padded, after - before);
            padded = Tensor::cat(vec![padded, more], axis);
        } else if before > after {
            let more = zeros(&padded, before - after);
            padded = Tensor::cat(vec![more, padded], axis);
        }
    }
    (padded, even)
}

/// A weight with an axis of taps in time, be it one tap.
fn five_axes(weight: &DispatchTensor) -> Tensor<5> {
    match shape(weight).len() {
        4 => Tensor::<4>::from_dispatch(weight.clone()).unsqueeze_dim(2),
        _ => Tensor::from_dispatch(weight.clone()),
    }
}
