//! Rewards: what an image is worth for its prompt, scored on worker threads beside the generation.
//!
//! A [`Reward`] turns images with prompts into numbers, larger is better.
//! Pointwise rewards score each sample by itself; group-wise ones see all samples of one prompt group at once.
//! Rewards are found by name in a [`RewardRegistry`], into which every reward is registered explicitly, and they
//! run in a [`RewardWorkers`] pool whose results do not depend on the scheduling of its threads.
//!
//! | name | kind | score |
//! |---|---|---|
//! | `digit-classifier` | pointwise | how surely a small CNN reads the image as the prompted digit |
//! | `shapes-rules` | pointwise | the share of count, colour, shape and position that rules find as prompted |
//! | `jpeg-compressibility` | pointwise | minus the size as JPEG, in kB (1000 bytes) |
//! | `target-colour` | pointwise | minus the distance of the mean colour to a target |
//! | `rank-in-group` | group-wise | the rank of another reward within the group, 0 to 1 |
//! | `diversity-in-group` | group-wise | how far the image is from the nearest other one of the group, 0 to 2 |
//!
//! ```
//! use flow_data::{CaptionedImages, Digits};
//! use flow_rewards::{RewardRegistry, RewardSample};
//! use std::path::Path;
//!
//! let registry = RewardRegistry::with_built_in()?;
//! let params = serde_json::json!({ "weights": "built-in", "mode": "probability" });
//! let params = params.as_object().cloned().unwrap_or_default();
//! let reward = registry.build("digit-classifier", &params, Path::new("."))?;
//! let example = Digits::new()?.example(0)?;
//! let scores = reward.score(&[RewardSample { image: &example.image, frames: &[], prompt: &example.prompt }])?;
//! assert!(scores[0] > 0.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod classifier;
mod colour;
mod digits;
mod diversity;
mod error;
mod jpeg;
mod lent;
mod rank;
mod registry;
mod reward;
mod rules;
pub mod shapes;
mod workers;

pub use colour::{ColourSpace, TargetColour, TargetColourSettings};
pub use digits::{ClassifierMode, ClassifierWeights, DigitClassifier, DigitClassifierSettings};
pub use diversity::{DiversityInGroup, DiversityInGroupSettings, diversity};
pub use error::RewardError;
pub use jpeg::{JpegCompressibility, JpegSettings};
pub use lent::Lent;
pub use rank::{RankInGroup, RankInGroupSettings};
pub use registry::{KindOf, MemoryOf, Params, RewardContext, RewardFactory, RewardMemory, RewardRegistry};
pub use reward::{Reward, RewardKind, RewardSample, check_finite, score_videos};
pub use shapes::{RulesMode, ShapesRules, ShapesRulesSettings};
pub use workers::{NamedReward, RewardBatch, RewardScores, RewardWorkers, Sample, Ticket};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
