//! Folders of diffusers as whole pipelines: prompts to embeddings, embeddings to pictures.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod buckets;
mod cache;
mod cut;
mod error;
mod generate;
mod guidance;
mod latents;
mod pictures;
mod pipeline;
mod prompts;
mod schedule;
mod sentences;
mod size;
mod sizes;

pub use buckets::PictureBuckets;
pub use cache::{CacheUse, EncodedPrompts, FileHashes, PromptCache};
pub use cut::CutPrompt;
pub use error::PipelineError;
pub use generate::{Generation, Guidance, generate};
pub use guidance::GuidanceRule;
pub use latents::{EncodedPictures, LatentCache, LatentCacheUse, PictureSource};
pub use pictures::PictureEncoder;
pub use pipeline::{Defaults, Pipeline};
pub use prompts::{EncodedPrompt, PromptSettings, conditions};
pub use schedule::sigmas;
pub use sentences::SentenceEncoder;
pub use size::Size;
pub use sizes::{Decoding, ModelSize};
