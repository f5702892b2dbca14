//! Residual blocks, the middle and their norm.

use super::memory::{Memory, Remembering, Slots};
use crate::attention::attention;
use crate::convolutions::Geometry;
use crate::layers::{Convolution, Place};
use burn::tensor::Tensor;
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, Handle, Init};

/// The smallest norm of a pixel's channels that is divided by (PyTorch's `normalize`).
const SMALLEST: f32 = 1e-12;

#[derive(Clone, Copy, Debug)]
enum Gamma {
    Volumes(Handle<4>),
    Pictures(Handle<3>),
}

/// `x / ‖x‖ · sqrt(C) · gamma` over the channels of a pixel: an RMS norm.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelNorm {
    gamma: Gamma,
    channels: usize,
}

impl ChannelNorm {
    /// With a weight for `[B, C, T, H, W]`.
    pub fn of_volumes(mut parts: LayoutBuilder<'_>, channels: usize) -> Self {
        let gamma = Gamma::Volumes(parts.param("gamma", [channels, 1, 1, 1], Init::Ones));
        Self { gamma, channels }
    }

    /// With a weight for `[B, C, H, W]`.
    pub fn of_pictures(mut parts: LayoutBuilder<'_>, channels: usize) -> Self {
        let gamma = Gamma::Pictures(parts.param("gamma", [channels, 1, 1], Init::Ones));
        Self { gamma, channels }
    }

    pub fn forward(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        let params = at.exec.params();
        let gamma: Tensor<1> = match self.gamma {
            Gamma::Volumes(gamma) => params.get(gamma).reshape([self.channels]),
            Gamma::Pictures(gamma) => params.get(gamma).reshape([self.channels]),
        };
        // ‖x‖ is the root of the mean square times sqrt(C). Below the smallest norm the two differ, where the result is as
        // good as zero; at zero both are zero.
        let epsilon = SMALLEST * SMALLEST / self.channels as f32;
        let normed =
            at.exec
                .kernels()
                .ops()
                .model
                .rms_norm(&x.into_dispatch(), Some(&gamma.into_dispatch()), epsilon);
        Tensor::from_dispatch(normed)
    }

    /// The norm, and `x · sigmoid(x)` of it.
    pub fn then_silu(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        at.exec.activation(self.forward(at, x), Activation::Silu)
    }
}

/// `shortcut(x) + conv2(silu(norm2(conv1(silu(norm1(x))))))`.
#[derive(Debug)]
pub(super) struct Residual {
    norm1: ChannelNorm,
    conv1: Remembering,
    norm2: ChannelNorm,
    conv2: Remembering,
    shortcut: Option<Convolution>,
}

impl Residual {
    pub fn new(mut parts: LayoutBuilder<'_>, channels: [usize; 2], slots: &mut Slots) -> Self {
        let [inputs, outputs] = channels;
        Self {
            norm1: ChannelNorm::of_volumes(parts.under("norm1"), inputs),
            conv1: Remembering::new(parts.under("conv1"), channels, slots),
            norm2: ChannelNorm::of_volumes(parts.under("norm2"), outputs),
            conv2: Remembering::new(parts.under("conv2"), [outputs; 2], slots),
            shortcut: (inputs != outputs).then(|| {
                let parts = parts.under("conv_shortcut");
                Convolution::volume(parts, channels, [1; 3], Geometry::same([1; 3]))
            }),
        }
    }

    pub fn forward(&self, at: Place<'_>, x: Tensor<5>, memory: &mut Memory) -> Tensor<5> {
        let h = self.norm1.then_silu(at, x.clone());
        let h = self.conv1.forward(at, h, memory);
        let h = self.norm2.then_silu(at, h);
        let h = self.conv2.forward(at, h, memory);
        let x = match &self.shortcut {
            Some(shortcut) => shortcut.forward(at, x),
            None => x,
        };
        h + x
    }
}

/// Attention of one head over the pixels of each frame, with a norm before it and the input added after it.
#[derive(Debug)]
struct Attention {
    norm: ChannelNorm,
    joint: Convolution,
    out: Convolution,
}

impl Attention {
    fn new(mut parts: LayoutBuilder<'_>, channels: usize) -> Self {
        let point = |parts: LayoutBuilder<'_>, outputs| {
            Convolution::plane(parts, [channels, outputs], 1, Geometry::same([1; 3]))
        };
        Self {
            norm: ChannelNorm::of_pictures(parts.under("norm"), channels),
            joint: point(parts.under("to_qkv"), 3 * channels),
            out: point(parts.under("proj"), channels),
        }
    }

    fn forward(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        let axes = x.dims();
        let [batch, frames, height, width, channels] = axes;
        let normed = self.norm.forward(at, x.clone());
        let normed: Tensor<3> = normed.reshape([batch * frames, height * width, channels]);
        let joint = self.joint.linear(at, normed);
        let [q, k, v] = [0, 1, 2].map(|which| joint.clone().narrow(2, which * channels, channels));
        let h = self.out.linear(at, attention(at, q, k, v));
        h.reshape(axes) + x
    }
}

/// The middle: a residual block, attention, a residual block.
#[derive(Debug)]
pub(super) struct Middle {
    first: Residual,
    attention: Attention,
    last: Residual,
}

impl Middle {
    pub fn new(mut parts: LayoutBuilder<'_>, channels: usize, slots: &mut Slots) -> Self {
        Self {
            first: Residual::new(parts.under("resnets.0"), [channels; 2], slots),
            attention: Attention::new(parts.under("attentions.0"), channels),
            last: Residual::new(parts.under("resnets.1"), [channels; 2], slots),
        }
    }

    pub fn forward(&self, at: Place<'_>, x: Tensor<5>, memory: &mut Memory) -> Tensor<5> {
        let x = self.first.forward(at, x, memory);
        let x = self.attention.forward(at, x);
        self.last.forward(at, x, memory)
    }
}
