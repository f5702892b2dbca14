//! BLIP's encoder of images and its BERT that reads them by cross attention, as ImageReward has them.
//!
//! Sources: Li et al. 2022, arXiv:2201.12086, and ImageReward, `ImageReward/models/BLIP/{vit,med,blip_pretrain}.py`, whose weight names
//! and numerics they have; timm's vision transformer and transformers' BERT are what these are made of.

mod text;
mod vision;

pub(crate) use text::{Attention, FeedForward};
pub use text::{BlipText, BlipTextConfig};
pub use vision::{BlipVision, BlipVisionConfig};

/// Before all names, in files of a model that has a BLIP within.
const PREFIX: &str = "blip.";

fn plain(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}
