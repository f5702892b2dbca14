//! Weights of a run as files for other programs.

use crate::error::TrainError;
use crate::trainer::PolicyWeights;
use flow_config::{AdapterLayout, Config};
use flow_core::device::ComputeDevice;
use flow_models::weights::{MODEL_CONFIG_KEY, config_json, describe_folder};
use flow_models::{Architecture, StoredDtype};
use flow_report::CheckpointReader;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the average, in files and as diffusers' `variant`.
const AVERAGE: &str = "average";

/// Writes a run's weights below `folder` and gives the paths.
///
/// All weights trained: `final.safetensors`, and `average.safetensors` if an average is kept. Adapters trained: the folder `adapter`
/// with the files that `lora.export` names, `merged.safetensors` if it names that, and the same of the average with `average-` before
/// the names. Beside whole models `config.json` and an index, by which diffusers' `from_pretrained` opens the folder, and the average
/// as the variant of that name. `model` is the config's; `metadata` is free text for the files.
///
/// # Errors
/// If a file cannot be written.
pub fn export(
    weights: &PolicyWeights,
    model: &dyn Architecture,
    config: &Config,
    folder: &Path,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<PathBuf>, TrainError> {
    let layouts: Vec<_> = config.lora.export.iter().filter_map(layout).collect();
    let merges = config.lora.export.contains(&AdapterLayout::Merged);
    let mut described = metadata.clone();
    described.insert(MODEL_CONFIG_KEY.into(), config_json(model).to_string());
    let mut written = Vec::new();
    let sets = std::iter::once((None, &weights.current))
        .chain(weights.average.as_ref().map(|set| (Some(AVERAGE), set)));
    for (set, weights) in sets {
        let name = if weights.layout().has_adapters() {
            let prefix = set.map(|set| format!("{set}-")).unwrap_or_default();
            let adapter = folder.join(format!("{prefix}adapter"));
            if !layouts.is_empty() {
                flow_models::export_adapters(model, weights, &adapter, &layouts, StoredDtype::F32, metadata)?;
                written.push(adapter);
            }
            if !merges {
                continue;
            }
            let name = format!("{prefix}merged.safetensors");
            // On the host, where it is computed: the device need not hold another model.
            let values = flow_models::merge(weights, model.layout(), &ComputeDevice::cpu())?;
            flow_models::save(&values, &folder.join(&name), StoredDtype::F32, &described)?;
            name
        } else {
            let name = format!("{}.safetensors", set.unwrap_or("final"));
            flow_models::save(weights, &folder.join(&name), StoredDtype::F32, &described)?;
            name
        };
        describe_folder(model, folder, &name, set)?;
        written.push(folder.join(name));
    }
    Ok(written)
}

/// As [`export`] of a run that trains all weights, from a checkpoint of it in their place: one tensor after another, where no process has all.
///
/// # Errors
/// If the checkpoint cannot be read, or a file not be written.
pub(crate) fn export_saved(
    reader: &CheckpointReader,
    weights: &PolicyWeights,
    model: &dyn Architecture,
    folder: &Path,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<PathBuf>, TrainError> {
    let mut described = metadata.clone();
    described.insert(MODEL_CONFIG_KEY.into(), config_json(model).to_string());
    let layout = weights.current.layout();
    let specs = layout.specs().iter().enumerate();
    let tensors = specs.map(|(index, spec)| (spec.name.clone(), spec.shape.clone(), index));
    let tensors: Vec<_> = tensors.collect();
    let average = weights.average.is_some().then_some((Some(AVERAGE), "average"));
    let mut written = Vec::new();
    for (set, section) in std::iter::once((None, "current")).chain(average) {
        let name = format!("{}.safetensors", set.unwrap_or("final"));
        let path = folder.join(&name);
        let unread = RefCell::new(None);
        let values = |index: usize| -> Vec<f32> {
            let spec = &layout.specs()[index];
            match reader.section(&format!("{section}/{}", spec.name)) {
                Ok(bytes) => {
                    let values = bytes.as_chunks::<4>().0.iter();
                    values.map(|bytes| f32::from_le_bytes(*bytes)).collect()
                }
                Err(error) => {
                    unread.borrow_mut().get_or_insert(error);
                    vec![0.0; spec.shape.iter().product()]
                }
            }
        };
        let saved = flow_models::save_tensors(tensors.clone(), &values, &path, StoredDtype::F32, &described);
        if let Some(error) = unread.take() {
            // Nobody is to take it for the weights.
            let _ = std::fs::remove_file(&path);
            return Err(error.into());
        }
        saved?;
        describe_folder(model, folder, &name, set)?;
        written.push(path);
    }
    Ok(written)
}

/// The layout of a file of adapters; none for a whole model.
fn layout(wanted: &AdapterLayout) -> Option<flow_models::AdapterLayout> {
    match wanted {
        AdapterLayout::Diffusers => Some(flow_models::AdapterLayout::Diffusers),
        AdapterLayout::Peft => Some(flow_models::AdapterLayout::Peft),
        AdapterLayout::Kohya => Some(flow_models::AdapterLayout::Kohya),
        AdapterLayout::Merged => None,
    }
}
