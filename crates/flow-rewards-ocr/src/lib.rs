//! The OCR reward of Flow-GRPO: whether an image shows the text that its prompt asks for.
//!
//! | name | kind | score |
//! |---|---|---|
//! | `ocr` | pointwise | how near the text that PP-OCR reads in the image is to the text in the prompt |
//!
//! The arithmetic is that of Flow-GRPO's `ocr.py`; the reader is PP-OCR, as there, from ONNX files that a user names, run in pure Rust
//! by [`rten`]. [`Reader`] is the interface between the two.
//!
//! ```
//! use flow_data::{Image, ImageShape, Prompt};
//! use flow_rewards::{Reward, RewardSample};
//! use flow_rewards_ocr::{OcrReward, OcrSettings, ReadError, ReadLine, ReadRequest, Reader};
//! use std::sync::Arc;
//!
//! /// Reads the same in every image.
//! struct Fixed(&'static str);
//!
//! impl Reader for Fixed {
//!     fn read(&self, requests: &[ReadRequest<'_>]) -> Result<Vec<Vec<ReadLine>>, ReadError> {
//!         let line = ReadLine { text: self.0.into(), confidence: 1.0, probabilities: vec![] };
//!         Ok(vec![vec![line]; requests.len()])
//!     }
//!     fn unknown_letters(&self, _: &[char]) -> Vec<char> {
//!         vec![]
//!     }
//! }
//!
//! let reward = OcrReward::with_reader(OcrSettings::new("not-read"), Arc::new(Fixed("0PEN")))?;
//! let image = Image::filled(ImageShape { channels: 3, height: 8, width: 8 }, 0.0);
//! let prompt = Prompt::free(0, "a sign that says \"Open\"");
//! let scores = reward.score(&[RewardSample { image: &image, frames: &[], prompt: &prompt }])?;
//! assert_eq!(scores, [0.75]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod ctc;
mod paddle;
mod reader;
mod reward;
mod settings;
mod text;

pub use paddle::PaddleReader;
pub use reader::{ReadError, ReadLine, ReadRequest, Reader};
pub use reward::OcrReward;
pub use settings::{OcrMode, OcrSettings, OcrTarget};
pub use text::{distance, distance_score, normalised};

use flow_registry::NameTaken;
use flow_rewards::RewardRegistry;

/// Adds the reward of this crate to a registry.
///
/// # Errors
/// [`NameTaken`] if there is a reward of the name `ocr`.
pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
    OcrReward::register(registry)
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
