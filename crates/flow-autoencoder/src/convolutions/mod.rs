//! Convolutions and the norm over groups of channels: what an autoencoder needs beside `flow_core::Kernels`.
//!
//! Values lie channels last, `[B, T, H, W, C]`: batch, frames, rows, columns, channels. So the channels of a pixel are
//! contiguous, a convolution of one tap is a linear layer, and attention reads pixels as tokens without moving them.

mod composed;
#[cfg(feature = "cube")]
mod cube;
mod host;

pub use composed::BurnConvolutions;
#[cfg(feature = "cube")]
pub use cube::CubeConvolutions;
pub use host::HostConvolutions;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use flow_core::device::ComputeDevice;
use flow_core::tensors::shape;
use std::fmt::Debug;
use std::sync::Arc;

/// How the taps of a convolution lie on its input. Axes are frames, rows, columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Steps of the input from one output to the next.
    pub stride: [usize; 3],
    /// Zeros before and after the input.
    pub padding: [[usize; 2]; 3],
    /// Whether every pixel is first repeated twice along rows and columns: nearest-neighbour upsampling.
    pub upsample: bool,
}

impl Geometry {
    /// One output for each input, of a kernel of `kernel` taps: rows and columns padded alike on both sides, frames before
    /// the first.
    pub const fn same(kernel: [usize; 3]) -> Self {
        let [frames, rows, columns] = [kernel[0] - 1, kernel[1] / 2, kernel[2] / 2];
        Self {
            stride: [1; 3],
            padding: [[frames, 0], [rows, rows], [columns, columns]],
            upsample: false,
        }
    }

    /// [`same`](Self::same), of every pixel twice along rows and columns.
    pub const fn upsampled(kernel: [usize; 3]) -> Self {
        Self {
            upsample: true,
            ..Self::same(kernel)
        }
    }

    /// Half as many rows and columns, by three taps a side: a zero row below and a zero column to the right, none above or
    /// to the left, as diffusers' downsamplers pad.
    pub const fn halved() -> Self {
        Self {
            stride: [1, 2, 2],
            padding: [[0, 0], [0, 1], [0, 1]],
            upsample: false,
        }
    }

    /// The input's axes as the taps see them.
    pub(crate) fn seen(&self, input: [usize; 3]) -> [usize; 3] {
        let factor = if self.upsample { 2 } else { 1 };
        [input[0], factor * input[1], factor * input[2]]
    }

    /// The output's axes for an input's and a kernel's; 0 along an axis where the kernel is longer than the padded input.
    pub fn output(&self, input: [usize; 3], kernel: [usize; 3]) -> [usize; 3] {
        let seen = self.seen(input);
        std::array::from_fn(|axis| {
            let padded = seen[axis] + self.padding[axis][0] + self.padding[axis][1];
            match padded.checked_sub(kernel[axis]) {
                Some(rest) => rest / self.stride[axis] + 1,
                None => 0,
            }
        })
    }
}

/// A norm over groups of channels (Wu and He 2018, arXiv:1803.08494).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNormSpec {
    /// Number of groups, a divisor of the channels.
    pub groups: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether `x · sigmoid(x)` follows.
    pub silu: bool,
}

/// What a group norm reads beside its input.
#[derive(Clone, Copy, Debug)]
pub struct NormOperands<'a> {
    /// `[C]`.
    pub weight: &'a DispatchTensor,
    /// `[C]`.
    pub bias: &'a DispatchTensor,
    /// Groups, epsilon, activation.
    pub spec: GroupNormSpec,
}

/// What a convolution reads beside its input; see [`Convolutions::convolution`].
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionOperands<'a> {
    /// `[out, C, kt, kh, kw]` or `[out, C, kh, kw]`.
    pub weight: &'a DispatchTensor,
    /// `[out]`.
    pub bias: Option<&'a DispatchTensor>,
    /// How taps lie on the input.
    pub geometry: Geometry,
}

/// Convolutions and group norm on one kind of device, forward and backward. Tensors may be tracked.
///
/// Like the operations of `flow_core::Kernels`, each computes its forward in the same way whether or not a gradient is
/// wanted.
pub trait Convolutions: Debug + Send + Sync {
    /// Name in logs.
    fn name(&self) -> &str;

    /// `x [B, T, H, W, C]` by `weight [out, C, kt, kh, kw]` or `[out, C, kh, kw]`, which is one frame deep, plus `bias
    /// [out]`; gives `[B, T', H', W', out]`. Taps are not flipped, as in PyTorch.
    fn convolution(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: Option<&DispatchTensor>,
        geometry: &Geometry,
    ) -> DispatchTensor;

    /// `(x - mean) / sqrt(variance + epsilon) · weight + bias` of `x [B, T, H, W, C]`, with mean and variance over all pixels
    /// of a sample and the channels of a group; `weight` and `bias` are `[C]`.
    fn group_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        spec: &GroupNormSpec,
    ) -> DispatchTensor;

    /// `convolution(group_norm(x)) + residual`, each part where it is given, at once where a device has kernels for that.
    fn norm_and_convolution(
        &self,
        x: &DispatchTensor,
        norm: Option<&NormOperands<'_>>,
        convolution: &ConvolutionOperands<'_>,
        residual: Option<&DispatchTensor>,
    ) -> DispatchTensor;

    /// `softmax(q k^T / sqrt(C)) v` of `[B, S, C]`, in the type of `v`: attention of one head over more channels than the plan's backend
    /// takes.
    fn attention(&self, [q, k, v]: [&DispatchTensor; 3]) -> DispatchTensor {
        let [q, k, v] = [q, k, v].map(|it| Tensor::from_dispatch(it.clone()));
        crate::attention::in_strips(q, k, v).into_dispatch()
    }

    /// Whether a convolution of one tap on every value is computed here rather than as a linear layer of the plan.
    fn takes_points(&self) -> bool {
        false
    }
}

/// [`Convolutions::norm_and_convolution`] of its parts.
pub(crate) fn composed_unit(
    convolutions: &dyn Convolutions,
    x: &DispatchTensor,
    norm: Option<&NormOperands<'_>>,
    convolution: &ConvolutionOperands<'_>,
    residual: Option<&DispatchTensor>,
) -> DispatchTensor {
    let normed = norm.map(|norm| convolutions.group_norm(x, norm.weight, norm.bias, &norm.spec));
    let ConvolutionOperands {
        weight,
        bias,
        geometry,
    } = convolution;
    let y = convolutions.convolution(normed.as_ref().unwrap_or(x), weight, *bias, geometry);
    match residual {
        Some(residual) => {
            let sum = Tensor::<5>::from_dispatch(residual.clone()) + Tensor::from_dispatch(y);
            sum.into_dispatch()
        }
        None => y,
    }
}

/// Those for `device`: [`HostConvolutions`] on the processor; elsewhere `CubeConvolutions`, where the crate is built with feature
/// `cube`, or else [`BurnConvolutions`].
pub fn convolutions_for(device: &ComputeDevice) -> Arc<dyn Convolutions> {
    if device.is_processor() {
        return Arc::new(HostConvolutions);
    }
    #[cfg(feature = "cube")]
    return Arc::new(CubeConvolutions::default());
    #[cfg(not(feature = "cube"))]
    Arc::new(BurnConvolutions)
}

/// A tensor's axes.
///
/// # Panics
/// If it has another rank: a bug of the caller.
fn axes<const D: usize>(tensor: &DispatchTensor) -> [usize; D] {
    let shape = shape(tensor);
    <[usize; D]>::try_from(shape)
        .unwrap_or_else(|shape| panic!("a tensor of {D} axes expected, not {shape:?}"))
}

/// Outputs, inputs and taps of a convolution's weight.
fn weight_axes(weight: &DispatchTensor) -> (usize, usize, [usize; 3]) {
    match *shape(weight).as_slice() {
        [outputs, inputs, rows, columns] => (outputs, inputs, [1, rows, columns]),
        [outputs, inputs, frames, rows, columns] => (outputs, inputs, [frames, rows, columns]),
        ref shape => panic!("a convolution's weight has four axes or five, not {shape:?}"),
    }
}
