//! Rewards of pretrained networks, computed in the process by the encoders of `flow-text-encoder`.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod aesthetic;
mod batches;
mod clip;
mod clip_diversity;
mod clip_score;
mod computation;
mod hpsv2;
mod image_reward;
mod memory;
mod open_clip;
mod pickle;
mod pickscore;
pub mod pixels;
mod problem;
mod weight_file;

pub use aesthetic::{Aesthetic, AestheticSettings};
pub use clip_diversity::{ClipDiversity, ClipDiversitySettings};
pub use clip_score::{ClipScore, ClipScoreFormula, ClipScorePreprocessing, ClipScoreSettings};
pub use computation::{Computation, RewardDevice};
pub use hpsv2::{HpsV2, HpsV2Settings};
pub use image_reward::{ImageReward, ImageRewardSettings};
pub use pickscore::{PickScore, PickScoreSettings};

use flow_registry::NameTaken;
use flow_rewards::RewardRegistry;

/// Adds the rewards of this crate to a registry.
///
/// # Errors
/// [`NameTaken`] if there is a reward of one of their names.
pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
    ClipScore::register(registry)?;
    ClipDiversity::register(registry)?;
    PickScore::register(registry)?;
    Aesthetic::register(registry)?;
    HpsV2::register(registry)?;
    ImageReward::register(registry)
}
