//! Weights of a run as files for other programs.

use crate::error::TrainError;
use crate::session::PolicyWeights;
use flow_core::ParamLayout;
use flow_core::device::ComputeDevice;
use flow_models::StoredDtype;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes a run's weights below `folder` and gives the paths.
///
/// All weights trained: `final.safetensors`, and `average.safetensors` if an average is kept. Adapters trained:
/// the folder `adapter` as `peft` lays it out and `merged.safetensors`, and the same of the average with `average-`
/// before the names. `base` is the model's own layout, without adapters; `metadata` is free text for the files.
///
/// # Errors
/// If a file cannot be written.
pub fn export(
    weights: &PolicyWeights,
    base: &Arc<ParamLayout>,
    folder: &Path,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<PathBuf>, TrainError> {
    let mut written = Vec::new();
    let sets =
        std::iter::once(("", &weights.current)).chain(weights.average.as_ref().map(|set| ("average", set)));
    for (set, weights) in sets {
        if weights.layout().has_adapters() {
            let prefix = if set.is_empty() {
                String::new()
            } else {
                format!("{set}-")
            };
            let adapter = folder.join(format!("{prefix}adapter"));
            flow_models::export_adapters(weights, &adapter, StoredDtype::F32, metadata)?;
            let merged = folder.join(format!("{prefix}merged.safetensors"));
            // On the host, where it is computed: the device need not hold another model.
            let values = flow_models::merge(weights, base, &ComputeDevice::cpu())?;
            flow_models::save(&values, &merged, StoredDtype::F32, metadata)?;
            written.extend([adapter, merged]);
        } else {
            let name = if set.is_empty() { "final" } else { set };
            let path = folder.join(format!("{name}.safetensors"));
            flow_models::save(weights, &path, StoredDtype::F32, metadata)?;
            written.push(path);
        }
    }
    Ok(written)
}
