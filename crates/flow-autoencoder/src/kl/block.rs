//! Residual blocks and the middle.

use super::plane;
use crate::attention::attention;
use crate::config::KlConfig;
use crate::convolutions::Geometry;
use crate::layers::{Convolution, GroupNorm, Place};
use burn::tensor::Tensor;
use flow_core::Init;
use flow_core::exec::Linear;
use flow_core::params::LayoutBuilder;

/// `shortcut(x) + conv2(silu(norm2(conv1(silu(norm1(x))))))`.
#[derive(Debug)]
pub(super) struct Resnet {
    norm1: GroupNorm,
    conv1: Convolution,
    norm2: GroupNorm,
    conv2: Convolution,
    shortcut: Option<Convolution>,
}

impl Resnet {
    pub fn new(mut parts: LayoutBuilder<'_>, channels: [usize; 2], config: &KlConfig) -> Self {
        let ([inputs, outputs], groups) = (channels, config.norm_num_groups);
        Self {
            norm1: GroupNorm::new(parts.under("norm1"), inputs, groups),
            conv1: plane(parts.under("conv1"), channels),
            norm2: GroupNorm::new(parts.under("norm2"), outputs, groups),
            conv2: plane(parts.under("conv2"), [outputs; 2]),
            shortcut: (inputs != outputs).then(|| {
                let parts = parts.under("conv_shortcut");
                Convolution::plane(parts, channels, 1, Geometry::same([1; 3]))
            }),
        }
    }

    pub fn forward(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        let h = self.conv1.after_norm(at, &self.norm1, x.clone(), None);
        let x = match &self.shortcut {
            Some(shortcut) => shortcut.forward(at, x),
            None => x,
        };
        self.conv2.after_norm(at, &self.norm2, h, Some(x))
    }
}

/// Attention of one head over all pixels, with a norm before it and the input added after it.
#[derive(Debug)]
struct Attention {
    norm: GroupNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
}

impl Attention {
    fn new(mut parts: LayoutBuilder<'_>, channels: usize, groups: usize) -> Self {
        let norm = GroupNorm::new(parts.under("group_norm"), channels, groups);
        let mut linear = |name: &str| {
            let mut parts = parts.under(name);
            Linear {
                weight: parts.param("weight", [channels; 2], Init::XavierUniform),
                bias: Some(parts.param("bias", [channels], Init::Zeros)),
            }
        };
        Self {
            norm,
            query: linear("to_q"),
            key: linear("to_k"),
            value: linear("to_v"),
            out: linear("to_out.0"),
        }
    }

    fn forward(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        let axes = x.dims();
        let [batch, frames, height, width, channels] = axes;
        let normed = self.norm.forward(at, x.clone());
        let normed: Tensor<3> = normed.reshape([batch * frames, height * width, channels]);
        let [q, k, v] = [&self.query, &self.key, &self.value].map(|it| at.exec.linear(it, normed.clone()));
        let h = at.exec.linear(&self.out, attention(at, q, k, v));
        x + h.reshape(axes)
    }
}

/// The middle: a residual block, attention, a residual block.
#[derive(Debug)]
pub(super) struct Middle {
    first: Resnet,
    attention: Option<Attention>,
    last: Resnet,
}

impl Middle {
    pub fn new(mut parts: LayoutBuilder<'_>, channels: usize, config: &KlConfig) -> Self {
        let attention = config
            .mid_block_add_attention
            .then(|| Attention::new(parts.under("attentions.0"), channels, config.norm_num_groups));
        Self {
            first: Resnet::new(parts.under("resnets.0"), [channels; 2], config),
            attention,
            last: Resnet::new(parts.under("resnets.1"), [channels; 2], config),
        }
    }

    pub fn forward(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        let x = self.first.forward(at, x);
        let x = match &self.attention {
            Some(attention) => attention.forward(at, x),
            None => x,
        };
        self.last.forward(at, x)
    }
}
