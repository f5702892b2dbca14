//! The feed-forward part of a block.

use super::Parts;
use burn::tensor::Tensor;
use flow_core::exec::{Exec, Linear};
use flow_core::{Activation, Init};

/// `linear(gelu_tanh(linear(x)))`, named as diffusers' `FeedForward` with `gelu-approximate`.
#[derive(Debug)]
pub(crate) struct FeedForward {
    up: Linear,
    down: Linear,
}

impl FeedForward {
    pub fn new(mut parts: Parts<'_>, hidden: usize, inner: usize) -> Self {
        Self {
            up: parts.linear("net.0.proj", hidden, inner, Init::XavierUniform),
            down: parts.linear("net.2", inner, hidden, Init::XavierUniform),
        }
    }

    pub fn forward(&self, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let inner = exec.linear_activated(&self.up, x_bsd, Activation::GeluTanh);
        exec.linear(&self.down, inner)
    }
}
