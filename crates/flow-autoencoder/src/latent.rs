//! Latents as an autoencoder has them and as a diffusion model has them, and the step between the two.
//!
//! The two are different types, so that no latent is scaled twice or not at all.

use crate::AutoencoderError;
use burn::tensor::{Tensor, TensorData};
use flow_core::LatentShape;

macro_rules! latent {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(Tensor<5>);

        impl $name {
            /// Of `[B, C, F, H, W]`: batch, channels, frames, rows, columns; a picture has one frame.
            pub fn new(tensor: Tensor<5>) -> Self {
                Self(tensor)
            }

            /// Of pictures `[B, C, H, W]`.
            pub fn of_pictures(tensor: Tensor<4>) -> Self {
                Self(tensor.unsqueeze_dim(2))
            }

            /// `[B, C, F, H, W]`.
            pub fn tensor(&self) -> &Tensor<5> {
                &self.0
            }

            /// `[B, C, F, H, W]`.
            pub fn into_tensor(self) -> Tensor<5> {
                self.0
            }

            /// Of rows `[B, N]` with `N` in the order of `shape`, as flow models have them.
            ///
            /// # Errors
            /// [`AutoencoderError::Shape`] if `N` is not the number of values of `shape`.
            pub fn of_rows(rows: Tensor<2>, shape: LatentShape) -> Result<Self, AutoencoderError> {
                let [batch, values] = rows.dims();
                if values != shape.values() {
                    return Err(AutoencoderError::Shape {
                        what: "a batch of latents [B, N]",
                        found: vec![batch, values],
                        problem: format!("N must be {}, the values of {shape:?}", shape.values()),
                    });
                }
                let LatentShape { channels, frames, height, width } = shape;
                Ok(Self(rows.reshape([batch, channels, frames, height, width])))
            }

            /// Rows `[B, N]`, as flow models have them.
            pub fn into_rows(self) -> Tensor<2> {
                let [batch, channels, frames, height, width] = self.0.dims();
                self.0.reshape([batch, channels * frames * height * width])
            }
        }
    };
}

latent! {
    /// Latents in the autoencoder's own units: what its decoder reads and its encoder gives.
    Latent
}
latent! {
    /// Latents in the units of a diffusion model: of about unit variance.
    ScaledLatent
}

/// How latents are scaled for a diffusion model.
#[derive(Clone, Debug, PartialEq)]
pub enum LatentScaling {
    /// `(z - shift) · factor` (diffusers' `StableDiffusion3Pipeline`, `FluxPipeline`).
    Uniform {
        /// `scaling_factor` of a `config.json`.
        factor: f32,
        /// `shift_factor`, 0 where there is none.
        shift: f32,
    },
    /// `(z - mean) / deviation` by channel (diffusers' `WanPipeline`, `QwenImagePipeline`).
    Channels {
        /// `latents_mean`.
        mean: Vec<f32>,
        /// `latents_std`.
        deviation: Vec<f32>,
    },
}

impl LatentScaling {
    /// Latents as the decoder reads them: `z / factor + shift`, or `z · deviation + mean`.
    pub fn unscale(&self, latent: ScaledLatent) -> Latent {
        let z = latent.0;
        Latent(match self {
            Self::Uniform { factor, shift } => z / *factor + *shift,
            // As diffusers has it: divided by the reciprocal, which rounds otherwise than the product.
            Self::Channels { mean, deviation } => {
                let reciprocals = by_channel(&z, deviation.iter().map(|it| 1.0 / it));
                let mean = by_channel(&z, mean.iter().copied());
                z / reciprocals + mean
            }
        })
    }

    /// Latents as a diffusion model reads them: `(z - shift) · factor`, or `(z - mean) / deviation`.
    pub fn scale(&self, latent: Latent) -> ScaledLatent {
        let z = latent.0;
        ScaledLatent(match self {
            Self::Uniform { factor, shift } => (z - *shift) * *factor,
            Self::Channels { mean, deviation } => {
                let reciprocals = by_channel(&z, deviation.iter().map(|it| 1.0 / it));
                let mean = by_channel(&z, mean.iter().copied());
                (z - mean) * reciprocals
            }
        })
    }
}

/// One value for each channel, `[1, C, 1, 1, 1]`, on the device and in the type of `like`.
fn by_channel(like: &Tensor<5>, values: impl Iterator<Item = f32>) -> Tensor<5> {
    let values: Vec<f32> = values.collect();
    let shape = [1, values.len(), 1, 1, 1];
    Tensor::from_data(TensorData::new(values, shape), (&like.device(), like.dtype()))
}
