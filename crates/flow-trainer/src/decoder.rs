//! From latents to images and videos that rewards and people see.

use crate::error::TrainError;
use flow_autoencoder::{Autoencoder, Options, ScaledLatent};
use flow_core::exec::{CallContext, InferencePass, Stage};
use flow_core::{Backends, LatentShape, RawTensor, Weights, cpu, tensors::plain};
use flow_data::{Image, ImageShape, Prompt};
use flow_report::Video;
use flow_rewards::Sample;
use std::sync::Arc;

/// Makes images or videos of latents: they are images already, or an autoencoder decodes them.
#[derive(Clone, Debug)]
pub struct ImageDecoder {
    latent: LatentShape,
    shape: ImageShape,
    frames: usize,
    autoencoder: Option<Arc<Loaded>>,
}

/// An autoencoder with its weights and what computes it.
#[derive(Debug)]
struct Loaded {
    autoencoder: Autoencoder,
    weights: Weights,
    plan: Arc<Backends>,
}

impl ImageDecoder {
    /// Of latents that are images.
    pub fn pixels(latent: LatentShape) -> Self {
        Self {
            latent,
            shape: ImageShape {
                channels: latent.channels,
                height: latent.height,
                width: latent.width,
            },
            frames: latent.frames,
            autoencoder: None,
        }
    }

    /// Of latents that `autoencoder` decodes with `weights`; `plan` computes.
    pub fn autoencoder(
        latent: LatentShape,
        (autoencoder, weights): (Autoencoder, Weights),
        plan: &Arc<Backends>,
    ) -> Self {
        let spec = autoencoder.spec();
        Self {
            latent,
            shape: ImageShape {
                channels: spec.colours_out,
                height: latent.height * spec.factor,
                width: latent.width * spec.factor,
            },
            frames: match spec.frames {
                Some(step) => 1 + (latent.frames - 1) * step,
                None => 1,
            },
            autoencoder: Some(Arc::new(Loaded {
                autoencoder,
                weights,
                plan: plan.clone(),
            })),
        }
    }

    /// The same for latents of another shape.
    #[must_use]
    pub fn of_latent(&self, latent: LatentShape) -> Self {
        // As many pixels for a value as here.
        let side = |pixels: usize, own: usize, other: usize| pixels / own.max(1) * other;
        Self {
            latent,
            shape: ImageShape {
                channels: self.shape.channels,
                height: side(self.shape.height, self.latent.height, latent.height),
                width: side(self.shape.width, self.latent.width, latent.width),
            },
            frames: self.frames,
            autoencoder: self.autoencoder.clone(),
        }
    }

    /// Shape of every image, or of every frame.
    pub fn shape(&self) -> ImageShape {
        self.shape
    }

    /// Frames of what it makes; 1 for images.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// What latents `[B, N]` are, clamped to `[-1, 1]`; `None` where a value is not finite.
    ///
    /// # Errors
    /// [`TrainError::Autoencoder`] for latents that are not the autoencoder's.
    pub fn decode(&self, latents_bn: &RawTensor) -> Result<Vec<Option<Decoded>>, TrainError> {
        let values = match &self.autoencoder {
            None => cpu::to_host(latents_bn),
            Some(loaded) => loaded.decode(latents_bn, self.latent)?,
        };
        let of_sample = self.shape.len() * self.frames;
        let decoded = |values: &[f32]| {
            let is_finite = values.iter().all(|value| value.is_finite());
            is_finite.then(|| Decoded {
                frames: (0..self.frames).map(|frame| self.frame(values, frame)).collect(),
            })
        };
        Ok(values.chunks_exact(of_sample).map(decoded).collect())
    }

    /// As [`decode`](Self::decode), of latents that must all be finite.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if a value is not finite; those of [`decode`](Self::decode).
    pub fn decode_finite(&self, latents_bn: &RawTensor) -> Result<Vec<Decoded>, TrainError> {
        let all: Option<Vec<Decoded>> = self.decode(latents_bn)?.into_iter().collect();
        all.ok_or_else(|| {
            TrainError::setting("the model made a value that is not finite; its weights are unusable")
        })
    }

    /// Frame `frame` of a sample's values, in the order channels, frames, rows, columns.
    fn frame(&self, values: &[f32], frame: usize) -> Image {
        let ImageShape {
            channels,
            height,
            width,
        } = self.shape;
        let plane = height * width;
        let of_channel = |channel: usize| &values[(channel * self.frames + frame) * plane..][..plane];
        let pixels_chw = (0..channels)
            .flat_map(of_channel)
            .map(|value| value.clamp(-1.0, 1.0))
            .collect();
        Image {
            channels,
            height,
            width,
            pixels_chw,
        }
    }
}

/// An image or a video.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// Its frames; one for an image.
    pub frames: Vec<Image>,
}

/// Frames per second of written videos, those that Wan was trained on.
const FRAME_RATE_HZ: f64 = 16.0;

/// Frames of a video that a picture of it shows.
const SHOWN: usize = 5;

impl Decoded {
    /// As a picture: the image, or some frames of a video side by side, the first and the last among them.
    pub fn picture(&self) -> Image {
        let count = self.frames.len().min(SHOWN);
        let place = |at: usize| at * (self.frames.len() - 1) / (count - 1).max(1);
        let shown: Vec<&Image> = (0..count).map(|at| &self.frames[place(at)]).collect();
        Image::side_by_side(&shown)
    }

    /// As a video to be written; none for an image.
    ///
    /// # Errors
    /// If the frames are too large for a file.
    pub fn video(&self) -> Result<Option<Video>, TrainError> {
        let [first, _, ..] = self.frames.as_slice() else {
            return Ok(None);
        };
        let pixels = self.frames.iter().flat_map(Image::to_rgb8).collect();
        let (height, width) = (first.height, first.width);
        Ok(Some(Video::new(
            self.frames.len(),
            height,
            width,
            pixels,
            FRAME_RATE_HZ,
        )?))
    }

    /// As a sample that rewards score.
    pub fn sample(self, prompt: &Prompt, group: u64) -> Sample {
        let mut frames = self.frames;
        let prompt = prompt.clone();
        match frames.len() {
            1 => Sample {
                image: frames.remove(0),
                frames: Vec::new(),
                prompt,
                group,
            },
            _ => Sample {
                image: frames[0].clone(),
                frames,
                prompt,
                group,
            },
        }
    }
}

impl Loaded {
    /// Values of the images, one after the other.
    fn decode(&self, latents_bn: &RawTensor, latent: LatentShape) -> Result<Vec<f32>, TrainError> {
        let rows = burn::tensor::Tensor::<2>::from_dispatch(latents_bn.clone());
        let pass = InferencePass::new(&self.weights, self.plan.clone());
        let exec = pass.exec(CallContext::single(Stage::Evaluation));
        let scaled = ScaledLatent::of_rows(rows, latent)?;
        let unscaled = self.autoencoder.scaling().unscale(scaled);
        let pictures = self.autoencoder.decode(&exec, unscaled, &Options::default())?;
        Ok(cpu::to_host(&plain(&pictures.into_tensor().into_dispatch())))
    }
}
