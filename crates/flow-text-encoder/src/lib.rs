//! Text encoders of diffusion pipelines: CLIP, T5, UMT5 and Qwen2.5-VL's text path; BERT, which sentence encoders are; and what rewards read: CLIP's encoder of images, and BLIP.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod any;
pub mod bert;
pub mod blip;
pub mod clip;
mod config;
mod encoder;
mod error;
mod parts;
pub mod prompts;
pub mod qwen;
pub mod t5;
mod tokens;
pub mod weights;

pub use any::AnyTextEncoder;
pub use bert::{BertConfig, BertText, mean_of_tokens};
pub use blip::{BlipText, BlipTextConfig, BlipVision, BlipVisionConfig};
pub use clip::{ClipConfig, ClipOutput, ClipText, ClipVision, ClipVisionConfig, ClipVisionOutput};
pub use config::of_folder as config_of_folder;
pub use encoder::{Padding, TextEncoder};
pub use error::EncoderError;
pub use prompts::PromptEmbeds;
pub use qwen::{QwenConfig, QwenText};
pub use t5::{T5Config, T5Encoder};
pub use tokens::Tokens;
pub use weights::{Loaded, load};
