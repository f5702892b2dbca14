//! A plug-in of each sort that a config names, from outside of flow-train.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod bars;
mod reward_weighted;
mod slim;
mod symmetry;

pub use bars::{Bars, BarsSettings};
pub use reward_weighted::RewardWeighted;
pub use slim::SlimDimensions;
pub use symmetry::{Axis, Symmetry};

use flow_registry::NameTaken;
use flow_trainer::Plugins;

/// Adds all of them.
///
/// # Errors
/// [`NameTaken`] if one of the names is taken.
pub fn register(plugins: &mut Plugins) -> Result<(), NameTaken> {
    bars::register(&mut plugins.data)?;
    reward_weighted::register(&mut plugins.algorithms)?;
    slim::register(&mut plugins.models)?;
    symmetry::register(&mut plugins.rewards)
}
