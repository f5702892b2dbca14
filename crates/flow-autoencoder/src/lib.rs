//! Autoencoders of latent diffusion: latents to pictures and videos, and back.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod attention;
mod autoencoder;
mod causal;
pub mod config;
pub mod convolutions;
mod error;
mod folder;
mod kl;
mod latent;
mod layers;
mod moments;
mod open;
mod pictures;
mod tiling;
mod tiny;

pub use autoencoder::{Autoencoder, AutoencoderSpec, Options};
pub use config::{AutoencoderConfig, CausalConfig, KlConfig, TinyConfig};
pub use convolutions::{BurnConvolutions, Convolutions, HostConvolutions};
pub use error::AutoencoderError;
pub use folder::AutoencoderFolder;
pub use latent::{Latent, LatentScaling, ScaledLatent};
pub use moments::Moments;
pub use open::{config_of, open, open_weights};
pub use pictures::Pictures;
pub use tiling::Tiling;
pub use tiny::open_tiny;
