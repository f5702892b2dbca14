//! `AutoencoderKLWan` and `AutoencoderKLQwenImage`: one causal three-dimensional autoencoder.
//!
//! Source: Wan 2025, arXiv:2503.20314, and diffusers 0.42.1 `AutoencoderKLWan`, whose weight names and numerics it has. A
//! frame depends on no later one. Videos pass in chunks: the encoder takes the first frame and then four at a time, the
//! decoder one frame of the latent at a time, and convolutions in time remember the last frames of what they read
//! ([`memory`]). A picture is a video of one frame: of each weight only the last taps in time count.

mod block;
mod memory;
mod resample;

use crate::autoencoder::Network;
use crate::config::CausalConfig;
use crate::convolutions::Geometry;
use crate::layers::{Convolution, Place};
use block::{ChannelNorm, Middle, Residual};
use burn::tensor::Tensor;
use flow_core::params::LayoutBuilder;
use memory::{Memory, Remembering, Slots};
use resample::Resample;

/// Frames that the encoder takes at a time after the first.
pub(crate) const CHUNK: usize = 4;

/// A part of an encoder or decoder between its ends.
#[derive(Debug)]
enum Part {
    Residual(Residual),
    Middle(Middle),
    Resample(Resample),
}

/// An encoder or a decoder.
#[derive(Debug)]
struct Side {
    conv_in: Remembering,
    parts: Vec<Part>,
    norm_out: ChannelNorm,
    conv_out: Remembering,
    /// Convolutions that remember frames.
    slots: usize,
}

impl Side {
    /// One chunk, `[B, T, H, W, C]`.
    fn forward(&self, at: Place<'_>, x: Tensor<5>, memory: &mut Memory) -> Tensor<5> {
        let x = self.conv_in.forward(at, x, memory);
        let x = self.parts.iter().fold(x, |x, part| match part {
            Part::Residual(residual) => residual.forward(at, x, memory),
            Part::Middle(middle) => middle.forward(at, x, memory),
            Part::Resample(resample) => resample.forward(at, x, memory),
        });
        self.conv_out.forward(at, self.norm_out.then_silu(at, x), memory)
    }
}

/// The network of a causal [`Autoencoder`](crate::Autoencoder).
#[derive(Debug)]
pub(crate) struct Causal {
    encoder: Side,
    quant: Convolution,
    post_quant: Convolution,
    decoder: Side,
}

impl Causal {
    pub fn new(mut parts: LayoutBuilder<'_>, config: &CausalConfig) -> Self {
        let point = |parts: LayoutBuilder<'_>, channels| {
            Convolution::volume(parts, [channels; 2], [1; 3], Geometry::same([1; 3]))
        };
        Self {
            encoder: encoder(parts.under("encoder"), config),
            quant: point(parts.under("quant_conv"), 2 * config.z_dim),
            post_quant: point(parts.under("post_quant_conv"), config.z_dim),
            decoder: decoder(parts.under("decoder"), config),
        }
    }
}

fn encoder(mut parts: LayoutBuilder<'_>, config: &CausalConfig) -> Side {
    let (widths, mut slots) = (config.widths(), Slots::default());
    // The first stage's input has the base width, whatever its multiplier.
    let mut width = config.base_dim;
    let conv_in = Remembering::new(parts.under("conv_in"), [config.in_channels, width], &mut slots);
    let mut blocks = Vec::new();
    for (index, next) in widths.iter().enumerate() {
        for _ in 0..config.num_res_blocks {
            let from = std::mem::replace(&mut width, *next);
            let parts = parts.under(format_args!("down_blocks.{}", blocks.len()));
            blocks.push(Part::Residual(Residual::new(parts, [from, *next], &mut slots)));
        }
        if let Some(in_time) = config.temporal_downsample.get(index) {
            let parts = parts.under(format_args!("down_blocks.{}", blocks.len()));
            blocks.push(Part::Resample(Resample::down(parts, *next, *in_time, &mut slots)));
        }
    }
    blocks.push(Part::Middle(Middle::new(
        parts.under("mid_block"),
        width,
        &mut slots,
    )));
    Side {
        conv_in,
        parts: blocks,
        norm_out: ChannelNorm::of_volumes(parts.under("norm_out"), width),
        conv_out: Remembering::new(parts.under("conv_out"), [width, 2 * config.z_dim], &mut slots),
        slots: slots.count(),
    }
}

fn decoder(mut parts: LayoutBuilder<'_>, config: &CausalConfig) -> Side {
    let (mut widths, mut slots) = (config.widths(), Slots::default());
    widths.reverse();
    let mut width = widths[0];
    let conv_in = Remembering::new(parts.under("conv_in"), [config.z_dim, width], &mut slots);
    let mut blocks = vec![Part::Middle(Middle::new(
        parts.under("mid_block"),
        width,
        &mut slots,
    ))];
    let steps: Vec<bool> = config.temporal_downsample.iter().rev().copied().collect();
    for (index, next) in widths.iter().enumerate() {
        let mut stage = parts.under(format_args!("up_blocks.{index}"));
        for layer in 0..config.num_res_blocks + 1 {
            let from = std::mem::replace(&mut width, *next);
            let parts = stage.under(format_args!("resnets.{layer}"));
            blocks.push(Part::Residual(Residual::new(parts, [from, *next], &mut slots)));
        }
        if let Some(in_time) = steps.get(index) {
            let parts = stage.under("upsamplers.0");
            blocks.push(Part::Resample(Resample::up(parts, width, *in_time, &mut slots)));
            width /= 2;
        }
    }
    Side {
        conv_in,
        parts: blocks,
        norm_out: ChannelNorm::of_volumes(parts.under("norm_out"), width),
        conv_out: Remembering::new(parts.under("conv_out"), [width, config.out_channels], &mut slots),
        slots: slots.count(),
    }
}

/// Runs `side` over chunks of `x [B, T, H, W, C]` that have `lengths` frames.
fn in_chunks(side: &Side, at: Place<'_>, x: &Tensor<5>, lengths: &[usize]) -> Tensor<5> {
    let (mut memory, mut first, mut outputs) = (Memory::new(side.slots), 0, Vec::new());
    for (index, length) in lengths.iter().enumerate() {
        memory.begin(index == 0, index + 1 == lengths.len());
        let chunk = x.clone().narrow(1, first, *length);
        outputs.push(side.forward(at, chunk, &mut memory));
        first += length;
    }
    Tensor::cat(outputs, 1)
}

impl Network for Causal {
    fn encode(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        let later = (x.dims()[1] - 1) / CHUNK;
        let lengths: Vec<usize> = std::iter::once(1)
            .chain(std::iter::repeat_n(CHUNK, later))
            .collect();
        self.quant.forward(at, in_chunks(&self.encoder, at, &x, &lengths))
    }

    fn decode(&self, at: Place<'_>, z: Tensor<5>) -> Tensor<5> {
        let frames = z.dims()[1];
        let z = self.post_quant.forward(at, z);
        in_chunks(&self.decoder, at, &z, &vec![1; frames])
    }
}
