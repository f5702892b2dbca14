//! The feed-forward part of a block.

use super::Parts;
use flow_core::exec::FeedForward;
use flow_core::{Activation, Init};

/// `linear(gelu_tanh(linear(x)))`, named as diffusers' `FeedForward` with `gelu-approximate`.
pub(crate) fn feed_forward(mut parts: Parts<'_>, hidden: usize, inner: usize) -> FeedForward {
    FeedForward {
        up: parts.linear("net.0.proj", hidden, inner, Init::XavierUniform),
        activation: Activation::GeluTanh,
        down: parts.linear("net.2", inner, hidden, Init::XavierUniform),
    }
}
