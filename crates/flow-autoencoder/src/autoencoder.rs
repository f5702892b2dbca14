//! An autoencoder: what it is, and its two directions.

use crate::causal::{CHUNK, Causal};
use crate::config::AutoencoderConfig;
use crate::convolutions::{Convolutions, convolutions_for};
use crate::kl::Kl;
use crate::layers::Place;
use crate::tiling::Tiling;
use crate::tiny::Tiny;
use crate::{AutoencoderError, Latent, LatentScaling, Moments, Pictures};
use burn::tensor::{FloatDType, Tensor};
use flow_core::device::ComputeDevice;
use flow_core::params::LayoutBuilder;
use flow_core::{Exec, LatentShape, ParamLayout};
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

/// The two directions of a network, on values `[B, T, H, W, C]`.
pub(crate) trait Network: Debug + Send + Sync {
    /// Means and logarithms of variances, one after the other along the channels.
    fn encode(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5>;
    /// Pictures in -1 to 1, or beyond.
    fn decode(&self, at: Place<'_>, z: Tensor<5>) -> Tensor<5>;
}

/// What an autoencoder is, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoencoderSpec {
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Colours that the encoder reads.
    pub colours_in: usize,
    /// Colours that the decoder gives.
    pub colours_out: usize,
    /// Pixels of a side of the picture for one of the latent.
    pub factor: usize,
    /// Frames of a video for one of the latent, but for the first, which is one of one; `None` if it makes pictures only.
    pub frames: Option<usize>,
    /// Whether the decoder's values stop at -1 and 1.
    pub clamps: bool,
    /// Tiles that diffusers takes if told to tile.
    pub tiling: Tiling,
}

/// How much is computed at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Tiles, for pictures larger than one. Results differ from those without: a tile does not see beyond its edge.
    pub tiling: Option<Tiling>,
    /// Samples at once; none: one on the processor, and elsewhere as many as have half a million pixels in all frames together, one
    /// at least: more of them take memory and save no time. No value depends on it on the processor.
    pub samples: Option<usize>,
}

/// An autoencoder of latent diffusion: a description that holds weight handles and no weights. It computes through
/// [`Exec`], so it serves any weights of its layout, and gradients of its inputs and weights come as those of a model do.
#[derive(Clone, Debug)]
pub struct Autoencoder {
    spec: AutoencoderSpec,
    scaling: LatentScaling,
    layout: Arc<ParamLayout>,
    network: Arc<dyn Network>,
    convolutions: Arc<dyn Convolutions>,
    one_by_one: bool,
}

/// Pixels that are worked on at once on a device.
pub(crate) const PIXELS: usize = 1 << 19;

impl Autoencoder {
    /// The autoencoder that `config` describes, for computing on `device`.
    ///
    /// # Errors
    /// [`AutoencoderError::Config`].
    pub fn new(config: &AutoencoderConfig, device: &ComputeDevice) -> Result<Self, AutoencoderError> {
        config.check(Path::new("config.json"))?;
        let mut layout = ParamLayout::default();
        let parts = LayoutBuilder::new(&mut layout);
        let network: Arc<dyn Network> = match config {
            AutoencoderConfig::Kl(config) => Arc::new(Kl::new(parts, config)),
            AutoencoderConfig::Causal(config) => Arc::new(Causal::new(parts, config)),
            AutoencoderConfig::Tiny(config) => Arc::new(Tiny::new(parts, *config)),
        };
        Ok(Self {
            spec: config.spec(),
            scaling: config.scaling(),
            layout: Arc::new(layout),
            network,
            convolutions: convolutions_for(device),
            one_by_one: device.is_processor(),
        })
    }

    /// The same with other convolutions.
    pub fn with_convolutions(self, convolutions: Arc<dyn Convolutions>) -> Self {
        Self { convolutions, ..self }
    }

    /// What it is.
    pub fn spec(&self) -> &AutoencoderSpec {
        &self.spec
    }

    /// How its latents are scaled for a diffusion model.
    pub fn scaling(&self) -> &LatentScaling {
        &self.scaling
    }

    /// Its weights' names and shapes, those of diffusers.
    pub fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    /// The latent of a video of `frames` frames, or of a picture, which has one.
    ///
    /// # Errors
    /// [`AutoencoderError::Shape`] with the nearest sizes that have a latent.
    pub fn latent_shape(
        &self,
        frames: usize,
        height: usize,
        width: usize,
    ) -> Result<LatentShape, AutoencoderError> {
        self.check_size(
            [frames, height, width],
            vec![frames, height, width],
            "a size [F, H, W]",
        )?;
        let spec = &self.spec;
        Ok(LatentShape {
            channels: spec.latent_channels,
            frames: 1 + (frames - 1) / spec.frames.unwrap_or(1),
            height: height / spec.factor,
            width: width / spec.factor,
        })
    }

    /// Pictures or videos of latents in the autoencoder's own units. Gradients pass to latents and weights that are tracked.
    ///
    /// # Errors
    /// [`AutoencoderError::Shape`] for latents of another number of channels, several frames of an autoencoder of pictures,
    /// or none at all; [`AutoencoderError::Tiling`].
    pub fn decode(
        &self,
        exec: &Exec<'_>,
        latent: Latent,
        options: &Options,
    ) -> Result<Pictures, AutoencoderError> {
        let z = latent.into_tensor();
        self.check_latent(z.dims())?;
        let whole = |z: Tensor<5>| self.run(exec, z, |at, z| self.network.decode(at, z));
        let tiles = match &options.tiling {
            Some(tiling) => Some(tiling.of_decoder(self.spec.factor)?),
            None => None,
        };
        let [_, _, frames, height, width] = z.dims();
        let pixels = frames * height * width * self.spec.factor * self.spec.factor;
        let pictures = self.by_samples(z, pixels, options, |z| match &tiles {
            Some(tiles) if tiles.are_needed(&z) => tiles.assemble(&z, &whole),
            _ => whole(z),
        });
        // Behind the seams, as diffusers does for Wan; Qwen-Image's tiles it clamps when they become a picture.
        let pictures = if self.spec.clamps {
            pictures.clamp(-1.0, 1.0)
        } else {
            pictures
        };
        Ok(Pictures::new(pictures))
    }

    /// The distribution of latents of pictures or videos, in the autoencoder's own units.
    ///
    /// # Errors
    /// [`AutoencoderError::Shape`] for pictures of another number of colours, of sides that are no multiples of
    /// [`AutoencoderSpec::factor`], or of a number of frames that has no latent; [`AutoencoderError::Tiling`].
    pub fn encode(
        &self,
        exec: &Exec<'_>,
        pictures: Pictures,
        options: &Options,
    ) -> Result<Moments, AutoencoderError> {
        let x = pictures.into_tensor();
        self.check_pictures(x.dims())?;
        let whole = |x: Tensor<5>| self.run(exec, x, |at, x| self.network.encode(at, x));
        let tiles = match &options.tiling {
            Some(tiling) => Some(tiling.of_encoder(self.spec.factor)?),
            None => None,
        };
        let [_, _, frames, height, width] = x.dims();
        let moments = self.by_samples(x, frames * height * width, options, |x| match &tiles {
            Some(tiles) if tiles.are_needed(&x) => tiles.assemble(&x, &whole),
            _ => whole(x),
        });
        Ok(Moments::new(moments))
    }

    /// Runs `direction` on channels last and in the type that the kernels pass on.
    fn run(
        &self,
        exec: &Exec<'_>,
        x: Tensor<5>,
        direction: impl Fn(Place<'_>, Tensor<5>) -> Tensor<5>,
    ) -> Tensor<5> {
        let at = Place {
            exec,
            convolutions: &*self.convolutions,
        };
        let inner = FloatDType::from(exec.kernels().activations());
        let x = x.permute([0, 2, 3, 4, 1]).cast(inner);
        direction(at, x).cast(FloatDType::F32).permute([0, 4, 1, 2, 3])
    }

    /// `run` of some samples of `x` at a time, whose pictures have `pixels` pixels each.
    fn by_samples(
        &self,
        x: Tensor<5>,
        pixels: usize,
        options: &Options,
        run: impl Fn(Tensor<5>) -> Tensor<5>,
    ) -> Tensor<5> {
        let batch = x.dims()[0];
        let usual = if self.one_by_one {
            1
        } else {
            PIXELS / pixels.max(1)
        };
        let at_once = options.samples.unwrap_or(usual).max(1);
        if at_once >= batch {
            return run(x);
        }
        let parts = (0..batch)
            .step_by(at_once)
            .map(|first| run(x.clone().narrow(0, first, at_once.min(batch - first))));
        Tensor::cat(parts.collect(), 0)
    }

    fn check_latent(
        &self,
        [batch, channels, frames, height, width]: [usize; 5],
    ) -> Result<(), AutoencoderError> {
        let error = |problem: String| {
            Err(AutoencoderError::Shape {
                what: "a batch of latents [B, C, F, H, W]",
                found: vec![batch, channels, frames, height, width],
                problem,
            })
        };
        let expected = self.spec.latent_channels;
        if channels != expected {
            return error(format!("this autoencoder's latents have C = {expected} channels"));
        }
        if [batch, frames, height, width].contains(&0) {
            return error("there is nothing to decode".into());
        }
        if self.spec.frames.is_none() && frames != 1 {
            return error("this autoencoder makes pictures, so F must be 1".into());
        }
        Ok(())
    }

    fn check_pictures(&self, axes: [usize; 5]) -> Result<(), AutoencoderError> {
        let [batch, colours, frames, height, width] = axes;
        let what = "a batch of pictures [B, 3, F, H, W]";
        let expected = self.spec.colours_in;
        if batch == 0 || colours != expected {
            return Err(AutoencoderError::Shape {
                what,
                found: axes.to_vec(),
                problem: format!("this autoencoder reads {expected} colours of at least one picture"),
            });
        }
        self.check_size([frames, height, width], axes.to_vec(), what)
    }

    fn check_size(
        &self,
        [frames, height, width]: [usize; 3],
        found: Vec<usize>,
        what: &'static str,
    ) -> Result<(), AutoencoderError> {
        let factor = self.spec.factor;
        let error = |problem: String| Err(AutoencoderError::Shape { what, found, problem });
        for (name, side) in [("H", height), ("W", width)] {
            if side == 0 || !side.is_multiple_of(factor) {
                let below = (side / factor * factor).max(factor);
                return error(format!(
                    "{name} = {side} must be a multiple of {factor}, for instance {below} or {}",
                    below + factor
                ));
            }
        }
        match self.spec.frames {
            None if frames != 1 => error("this autoencoder reads pictures, so F must be 1".into()),
            Some(_) if frames == 0 || !(frames - 1).is_multiple_of(CHUNK) => {
                let below = 1 + frames.saturating_sub(1) / CHUNK * CHUNK;
                error(format!(
                    "F = {frames} must be 1 and a multiple of {CHUNK} more, for instance {below} or {}",
                    below + CHUNK
                ))
            }
            _ => Ok(()),
        }
    }
}
