//! What the networks of rewards hold in memory.

use crate::computation::RewardDevice;
use crate::weight_file::WeightFile;
use flow_rewards::{RewardError, RewardMemory};
use std::path::Path;

/// Weights of a CLIP as transformers saves it: its image side.
pub const IMAGE_SIDE: &[&str] = &["vision_model.", "visual_projection."];

/// All weights of a file.
pub const ALL: &[&str] = &[""];

/// What the weights at `path` will hold of memory whose names begin with one of `prefixes`, of `reward`, which computes on `device`.
/// Headers are read, and no weight.
pub fn memory(
    reward: &str,
    path: &Path,
    prefixes: &[&str],
    device: RewardDevice,
) -> Result<RewardMemory, RewardError> {
    let values = WeightFile::open(path).and_then(|file| file.count_values(prefixes));
    Ok(RewardMemory {
        values: values.map_err(|refused| refused.of(reward))?,
        is_on_run_device: device == RewardDevice::Run,
    })
}
