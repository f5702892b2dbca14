//! TAESD: a small autoencoder that was distilled from a large one, for previews.
//!
//! Source: madebyollin/taesd, `taesd.py`, whose weight names it has. It reads and gives latents in the units of a diffusion
//! model.

use crate::autoencoder::{AutoencoderSpec, Network};
use crate::convolutions::Geometry;
use crate::layers::{Convolution, Place};
use crate::tiling::Tiling;
use crate::{Autoencoder, AutoencoderError, LatentScaling};
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use flow_core::device::ComputeDevice;
use flow_core::params::LayoutBuilder;
use flow_core::{ParamLayout, Weights};
use flow_models::weights::{Parsed, parse};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Pixels of a side of the picture for one of the latent.
const FACTOR: usize = 8;
/// Side of pictures that tiles are cut for.
const TILE: usize = 64;
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
    Block(Block),
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
        layers.push(Layer::Block(Block::new(parts.under(1), width)));
        for stage in 0..3 {
            let first = 2 + 4 * stage;
            let step = Convolution::plane_without_bias(parts.under(first), [width; 2], 3);
            layers.push(Layer::Convolution(step.with_geometry(halved)));
            layers.extend((1..4).map(|at| Layer::Block(Block::new(parts.under(first + at), width))));
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
            layers.extend((0..3).map(|at| Layer::Block(Block::new(parts.under(first + at), width))));
            let step = Convolution::plane_without_bias(parts.under(first + 4), [width; 2], 3);
            layers.push(Layer::Convolution(
                step.with_geometry(Geometry::upsampled([1, 3, 3])),
            ));
        }
        layers.push(Layer::Block(Block::new(parts.under(18), width)));
        layers.push(Layer::Convolution(same(parts.under(19), [width, 3])));
        Self(layers)
    }
}

/// The network of a TAESD.
#[derive(Debug)]
struct Tiny {
    encoder: Sequence,
    decoder: Sequence,
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
/// weights, in which the names of the files stand behind `encoder.` and `decoder.`. F32, BF16 or F16 in the files, f32 in
/// memory. Latents are those of the diffusion model, so its scaling changes nothing; the encoder knows no variance.
///
/// # Errors
/// [`AutoencoderError::Io`], [`AutoencoderError::LfsPointer`]; [`AutoencoderError::Folder`] for a file that is no half of a TAESD.
pub fn open_tiny(
    encoder: &Path,
    decoder: &Path,
    device: &ComputeDevice,
) -> Result<(Autoencoder, Weights), AutoencoderError> {
    let files = [("encoder", encoder), ("decoder", decoder)];
    let bytes = files.map(|(_, path)| read(path));
    let [encoder_bytes, decoder_bytes] = bytes;
    let bytes = [encoder_bytes?, decoder_bytes?];
    let [of_encoder, of_decoder] = [0, 1].map(|which| parse_file(files[which].1, &bytes[which]));
    let parsed = [of_encoder?, of_decoder?];
    let first = parsed[1].tensors.iter().find(|it| it.name == "1.weight");
    let Some([width, latent, 3, 3]) = first.map(|it| &*it.shape) else {
        return Err(no_half(
            decoder,
            "a decoder has a tensor `1.weight` of [width, latent channels, 3, 3]",
        ));
    };
    let autoencoder = autoencoder(*width, *latent, device);
    let mut weights = Weights::zeros(autoencoder.layout().clone(), device);
    for ((half, path), parsed) in files.iter().zip(&parsed) {
        fill(&mut weights, half, path, parsed)?;
    }
    Ok((autoencoder, weights))
}

fn autoencoder(width: usize, latent: usize, device: &ComputeDevice) -> Autoencoder {
    let mut layout = ParamLayout::default();
    let mut parts = LayoutBuilder::new(&mut layout);
    let network = Tiny {
        encoder: Sequence::encoder(parts.under("encoder"), width, latent),
        decoder: Sequence::decoder(parts.under("decoder"), width, latent),
    };
    let spec = AutoencoderSpec {
        latent_channels: latent,
        colours_in: 3,
        colours_out: 3,
        factor: FACTOR,
        frames: None,
        clamps: false,
        tiling: Tiling::overlapping_a_quarter(TILE),
    };
    let scaling = LatentScaling::Uniform {
        factor: 1.0,
        shift: 0.0,
    };
    Autoencoder::of_network(spec, scaling, layout, Arc::new(network), device)
}

fn read(path: &Path) -> Result<Vec<u8>, AutoencoderError> {
    let bytes = fs::read(path).map_err(|source| AutoencoderError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    if bytes.starts_with(crate::open::LFS) {
        return Err(AutoencoderError::LfsPointer {
            path: path.to_owned(),
        });
    }
    Ok(bytes)
}

fn parse_file<'b>(path: &Path, bytes: &'b [u8]) -> Result<Parsed<'b>, AutoencoderError> {
    parse(bytes).map_err(|problem| no_half(path, &problem))
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
        weights
            .set_host(index, values)
            .map_err(flow_models::ModelError::from)?;
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
