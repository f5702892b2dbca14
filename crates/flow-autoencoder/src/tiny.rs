//! TAESD: a small autoencoder that was distilled from a large one, for previews.
//!
//! Source: madebyollin/taesd, `taesd.py`, whose weight names it has. It reads and gives latents in the units of a diffusion
//! model.

use crate::autoencoder::Network;
use crate::config::{AutoencoderConfig, TinyConfig};
use crate::convolutions::Geometry;
use crate::layers::{Convolution, Place};
use crate::open::{LFS, frozen_weights};
use crate::{Autoencoder, AutoencoderError};
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use flow_core::Weights;
use flow_core::device::ComputeDevice;
use flow_core::params::LayoutBuilder;
use flow_models::ModelError;
use flow_models::weights::{FileMap, Parsed, parse};
use std::path::Path;

/// Latents are held within these bounds by `3 tanh(z / 3)`.
const LARGEST: f32 = 3.0;
/// The encoder knows no variance; its logarithm is given as the smallest there is.
const LOG_VARIANCE: f32 = -30.0;

/// Three convolutions with the input added.
#[derive(Debug)]
struct Block([Convolution; 3]);

impl Block {
    fn new(mut parts: LayoutBuilder<'_>, width: usize) -> Self {
        Self([0, 2, 4].map(|index| same(parts.under(format_args!("conv.{index}")), [width; 2])))
    }

    fn forward(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        let h = relu(self.0[0].forward(at, x.clone()));
        let h = relu(self.0[1].forward(at, h));
        relu(self.0[2].forward(at, h) + x)
    }
}

fn same(parts: LayoutBuilder<'_>, channels: [usize; 2]) -> Convolution {
    Convolution::plane(parts, channels, 3, Geometry::same([1, 3, 3]))
}

/// A layer of the sequence.
#[derive(Debug)]
enum Layer {
    Convolution(Convolution),
    Relu,
    Block(Box<Block>),
}

fn block(parts: LayoutBuilder<'_>, width: usize) -> Layer {
    Layer::Block(Box::new(Block::new(parts, width)))
}

/// An encoder or a decoder: a sequence, whose weights are called by their place in it.
#[derive(Debug)]
struct Sequence(Vec<Layer>);

impl Sequence {
    fn forward(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        self.0.iter().fold(x, |x, layer| match layer {
            Layer::Convolution(convolution) => convolution.forward(at, x),
            Layer::Relu => relu(x),
            Layer::Block(block) => block.forward(at, x),
        })
    }

    fn encoder(mut parts: LayoutBuilder<'_>, width: usize, latent: usize) -> Self {
        let halved = Geometry {
            stride: [1, 2, 2],
            padding: [[0, 0], [1, 1], [1, 1]],
            upsample: false,
        };
        let mut layers = vec![Layer::Convolution(same(parts.under(0), [3, width]))];
        layers.push(block(parts.under(1), width));
        for stage in 0..3 {
            let first = 2 + 4 * stage;
            let step = Convolution::plane_without_bias(parts.under(first), [width; 2], 3);
            layers.push(Layer::Convolution(step.with_geometry(halved)));
            layers.extend((1..4).map(|at| block(parts.under(first + at), width)));
        }
        layers.push(Layer::Convolution(same(parts.under(14), [width, latent])));
        Self(layers)
    }

    /// Place 0 is the bound on latents, and an upsampler stands before each convolution without bias.
    fn decoder(mut parts: LayoutBuilder<'_>, width: usize, latent: usize) -> Self {
        let mut layers = vec![
            Layer::Convolution(same(parts.under(1), [latent, width])),
            Layer::Relu,
        ];
        for stage in 0..3 {
            let first = 3 + 5 * stage;
            layers.extend((0..3).map(|at| block(parts.under(first + at), width)));
            let step = Convolution::plane_without_bias(parts.under(first + 4), [width; 2], 3);
            layers.push(Layer::Convolution(
                step.with_geometry(Geometry::upsampled([1, 3, 3])),
            ));
        }
        layers.push(block(parts.under(18), width));
        layers.push(Layer::Convolution(same(parts.under(19), [width, 3])));
        Self(layers)
    }
}

/// The network of a TAESD.
#[derive(Debug)]
pub(crate) struct Tiny {
    encoder: Sequence,
    decoder: Sequence,
}

impl Tiny {
    pub fn new(mut parts: LayoutBuilder<'_>, config: TinyConfig) -> Self {
        let TinyConfig {
            width,
            latent_channels,
        } = config;
        Self {
            encoder: Sequence::encoder(parts.under("encoder"), width, latent_channels),
            decoder: Sequence::decoder(parts.under("decoder"), width, latent_channels),
        }
    }
}

impl Network for Tiny {
    fn encode(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        let mean = self.encoder.forward(at, x * 0.5 + 0.5);
        let log_variance = Tensor::full(mean.shape(), LOG_VARIANCE, (&mean.device(), mean.dtype()));
        Tensor::cat(vec![mean, log_variance], 4)
    }

    fn decode(&self, at: Place<'_>, z: Tensor<5>) -> Tensor<5> {
        let z = (z / LARGEST).tanh() * LARGEST;
        self.decoder.forward(at, z) * 2.0 - 1.0
    }
}

/// A TAESD of its author's two files, for instance `taesd3_encoder.safetensors` and `taesd3_decoder.safetensors`, and its
/// weights, in which the names of the files stand behind `encoder.` and `decoder.`. F32, BF16 or F16 in the files; frozen in
/// memory, as [`open`](crate::open) has them. Latents are those of the diffusion model, so its scaling changes nothing; the encoder knows no
/// variance.
///
/// # Errors
/// [`AutoencoderError::Io`], [`AutoencoderError::LfsPointer`]; [`AutoencoderError::Folder`] for a file that is no half of a TAESD;
/// [`AutoencoderError::Config`] for one of a size beyond reason.
pub fn open_tiny(
    encoder: &Path,
    decoder: &Path,
    device: &ComputeDevice,
) -> Result<(Autoencoder, Weights), AutoencoderError> {
    let files = [open_half(encoder)?, open_half(decoder)?];
    let parsed = [parse_half(&files[0])?, parse_half(&files[1])?];
    let config = AutoencoderConfig::Tiny(config_of(decoder, &parsed[1])?);
    let autoencoder = Autoencoder::new(&config, device)?;
    let mut weights = frozen_weights(&autoencoder, device);
    for ((half, file), parsed) in ["encoder", "decoder"].into_iter().zip(&files).zip(&parsed) {
        fill(&mut weights, half, &file.path, parsed)?;
    }
    Ok((autoencoder, weights))
}

/// The dimensions of the TAESD whose decoder is the file `decoder`, of which the header is read.
pub(crate) fn config_of_decoder(decoder: &Path) -> Result<TinyConfig, AutoencoderError> {
    let file = open_half(decoder)?;
    config_of(decoder, &parse_half(&file)?)
}

fn config_of(decoder: &Path, parsed: &Parsed<'_>) -> Result<TinyConfig, AutoencoderError> {
    let first = parsed.tensors.iter().find(|it| it.name == "1.weight");
    let Some([width, latent_channels, 3, 3]) = first.map(|it| &*it.shape) else {
        return Err(no_half(
            decoder,
            "a decoder has a tensor `1.weight` of [width, latent channels, 3, 3]",
        ));
    };
    let config = TinyConfig {
        width: *width,
        latent_channels: *latent_channels,
    };
    AutoencoderConfig::Tiny(config).check(decoder)?;
    Ok(config)
}

/// Maps one of the two files.
pub(crate) fn open_half(path: &Path) -> Result<FileMap, AutoencoderError> {
    let file = FileMap::open(path).map_err(|error| match error {
        ModelError::Io { path, source, .. } => AutoencoderError::Io {
            action: "read",
            path,
            source,
        },
        other => other.into(),
    })?;
    if file.bytes.starts_with(LFS) {
        return Err(AutoencoderError::LfsPointer { path: file.path });
    }
    Ok(file)
}

fn parse_half(file: &FileMap) -> Result<Parsed<'_>, AutoencoderError> {
    parse(&file.bytes).map_err(|problem| no_half(&file.path, &problem))
}

fn no_half(path: &Path, problem: &str) -> AutoencoderError {
    AutoencoderError::Folder {
        path: path.to_owned(),
        problem: format!("of TAESD, encoder and decoder are a file each, and this is neither: {problem}"),
    }
}

/// Sets all weights of one half.
fn fill(weights: &mut Weights, half: &str, path: &Path, parsed: &Parsed<'_>) -> Result<(), AutoencoderError> {
    let layout = weights.layout().clone();
    let prefix = format!("{half}.");
    let mut expected = 0;
    for (index, spec) in layout.specs().iter().enumerate() {
        let Some(name) = spec.name.strip_prefix(&prefix) else {
            continue;
        };
        expected += 1;
        let error = |problem: String| no_half(path, &format!("{half}'s tensor `{name}` {problem}"));
        let stored = parsed.tensors.iter().find(|it| it.name == name);
        let stored = stored.ok_or_else(|| error("is missing".into()))?;
        if stored.shape != spec.shape {
            return Err(error(format!("has {:?}, not {:?}", stored.shape, spec.shape)));
        }
        let values = stored
            .to_f32()
            .ok_or_else(|| error(format!("is {:?}; read here are F32, BF16 and F16", stored.dtype)))?;
        if let Some(value) = values.iter().find(|it| !it.is_finite()) {
            return Err(error(format!("holds {value}")));
        }
        weights.set_host(index, values).map_err(ModelError::from)?;
    }
    if parsed.tensors.len() == expected {
        return Ok(());
    }
    let count = parsed.tensors.len();
    Err(no_half(
        path,
        &format!("{half} has {expected} tensors, the file {count}"),
    ))
}
