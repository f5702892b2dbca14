//! `AutoencoderKL`: the autoencoder of Stable Diffusion 3 and FLUX.1.
//!
//! Source: Rombach et al. 2022, arXiv:2112.10752, and diffusers 0.42.1 `AutoencoderKL`, whose weight names and numerics it
//! has.

mod block;

use crate::autoencoder::Network;
use crate::config::KlConfig;
use crate::convolutions::Geometry;
use crate::layers::{Convolution, GroupNorm, Place};
use block::{Middle, Resnet};
use burn::tensor::Tensor;
use flow_core::params::LayoutBuilder;

/// Taps of most convolutions.
const SIDE: usize = 3;

/// Residual blocks at one size, and the step to the next.
#[derive(Debug)]
struct Stage {
    resnets: Vec<Resnet>,
    step: Option<Convolution>,
}

impl Stage {
    fn forward(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        let x = self.resnets.iter().fold(x, |x, resnet| resnet.forward(at, x));
        match &self.step {
            Some(step) => step.forward(at, x),
            None => x,
        }
    }
}

/// An encoder or a decoder.
#[derive(Debug)]
struct Side {
    conv_in: Convolution,
    stages: Vec<Stage>,
    middle: Middle,
    norm_out: GroupNorm,
    conv_out: Convolution,
}

impl Side {
    fn head(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        self.conv_out.after_norm(at, &self.norm_out, x, None)
    }
}

/// The network of an [`AutoencoderKL`](crate::Autoencoder).
#[derive(Debug)]
pub(crate) struct Kl {
    encoder: Side,
    quant: Option<Convolution>,
    post_quant: Option<Convolution>,
    decoder: Side,
}

fn plane(parts: LayoutBuilder<'_>, channels: [usize; 2]) -> Convolution {
    Convolution::plane(parts, channels, SIDE, Geometry::same([1, SIDE, SIDE]))
}

impl Kl {
    pub fn new(mut parts: LayoutBuilder<'_>, config: &KlConfig) -> Self {
        let latent = config.latent_channels;
        let point = |parts: LayoutBuilder<'_>, channels| {
            Convolution::plane(parts, [channels; 2], 1, Geometry::same([1; 3]))
        };
        Self {
            encoder: encoder(parts.under("encoder"), config),
            quant: config
                .use_quant_conv
                .then(|| point(parts.under("quant_conv"), 2 * latent)),
            post_quant: config
                .use_post_quant_conv
                .then(|| point(parts.under("post_quant_conv"), latent)),
            decoder: decoder(parts.under("decoder"), config),
        }
    }
}

fn encoder(mut parts: LayoutBuilder<'_>, config: &KlConfig) -> Side {
    let widths = &config.block_out_channels;
    let conv_in = plane(parts.under("conv_in"), [config.in_channels, widths[0]]);
    let mut width = widths[0];
    let stages = widths.iter().enumerate().map(|(index, next)| {
        let mut stage = parts.under(format_args!("down_blocks.{index}"));
        let resnets = (0..config.layers_per_block).map(|layer| {
            let from = std::mem::replace(&mut width, *next);
            Resnet::new(
                stage.under(format_args!("resnets.{layer}")),
                [from, *next],
                config,
            )
        });
        let resnets = resnets.collect();
        let is_last = index + 1 == widths.len();
        let step = (!is_last).then(|| {
            let parts = stage.under("downsamplers.0.conv");
            plane(parts, [*next; 2]).with_geometry(Geometry::halved())
        });
        Stage { resnets, step }
    });
    let stages = stages.collect();
    let deepest = widths[widths.len() - 1];
    Side {
        conv_in,
        stages,
        middle: Middle::new(parts.under("mid_block"), deepest, config),
        norm_out: GroupNorm::new(parts.under("conv_norm_out"), deepest, config.norm_num_groups),
        conv_out: plane(parts.under("conv_out"), [deepest, 2 * config.latent_channels]),
    }
}

fn decoder(mut parts: LayoutBuilder<'_>, config: &KlConfig) -> Side {
    let widths: Vec<usize> = config.block_out_channels.iter().rev().copied().collect();
    let conv_in = plane(parts.under("conv_in"), [config.latent_channels, widths[0]]);
    let middle = Middle::new(parts.under("mid_block"), widths[0], config);
    let mut width = widths[0];
    let stages = widths.iter().enumerate().map(|(index, next)| {
        let mut stage = parts.under(format_args!("up_blocks.{index}"));
        let resnets = (0..config.layers_per_block + 1).map(|layer| {
            let from = std::mem::replace(&mut width, *next);
            Resnet::new(
                stage.under(format_args!("resnets.{layer}")),
                [from, *next],
                config,
            )
        });
        let resnets = resnets.collect();
        let is_last = index + 1 == widths.len();
        let step = (!is_last).then(|| {
            let parts = stage.under("upsamplers.0.conv");
            plane(parts, [*next; 2]).with_geometry(Geometry::upsampled([1, SIDE, SIDE]))
        });
        Stage { resnets, step }
    });
    let stages = stages.collect();
    let last = widths[widths.len() - 1];
    Side {
        conv_in,
        stages,
        middle,
        norm_out: GroupNorm::new(parts.under("conv_norm_out"), last, config.norm_num_groups),
        conv_out: plane(parts.under("conv_out"), [last, config.out_channels]),
    }
}

impl Network for Kl {
    fn encode(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        let side = &self.encoder;
        let x = side.conv_in.forward(at, x);
        let x = side.stages.iter().fold(x, |x, stage| stage.forward(at, x));
        let x = side.head(at, side.middle.forward(at, x));
        match &self.quant {
            Some(quant) => quant.forward(at, x),
            None => x,
        }
    }

    fn decode(&self, at: Place<'_>, z: Tensor<5>) -> Tensor<5> {
        let side = &self.decoder;
        let z = match &self.post_quant {
            Some(post_quant) => post_quant.forward(at, z),
            None => z,
        };
        let x = side.middle.forward(at, side.conv_in.forward(at, z));
        let x = side.stages.iter().fold(x, |x, stage| stage.forward(at, x));
        side.head(at, x)
    }
}
