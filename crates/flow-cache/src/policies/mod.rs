//! The policies, one file each.

mod auto;
mod db_cache;
mod easy_cache;
mod faster;
mod first_block;
mod mag_cache;
mod mask;
mod pyramid;
mod step_mask;
mod taylor_seer;
mod tea_cache;

pub use auto::{Auto, AutoState};
pub use db_cache::{DbCache, DbCacheState};
pub use easy_cache::{EasyCache, EasyCacheState};
pub use faster::{FasterAttention, FasterGuidance, GuidanceState};
pub use first_block::FirstBlock;
pub use mag_cache::{MagCache, MagCacheState};
pub use mask::{Mask, PublishedMask};
pub use pyramid::Pyramid;
pub use step_mask::StepMask;
pub use taylor_seer::TaylorSeer;
pub use tea_cache::{TeaCache, TeaCacheState};

use crate::Moment;

/// A range of timesteps (noise level · 1000), both ends excluded, as published ranges are meant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timesteps {
    /// Below which nothing lies in it.
    pub above: f64,
    /// Above which nothing lies in it.
    pub below: f64,
}

impl Timesteps {
    /// Whether `moment` lies in it; not where its noise level is not known.
    pub fn contain(&self, moment: &Moment) -> bool {
        self.above < moment.timestep() && moment.timestep() < self.below
    }
}
