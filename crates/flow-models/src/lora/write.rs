//! LoRA files as other programs read them.

use super::original::OriginalLayer;
use super::peft::{CONFIG_FILE, METADATA_KEY, PREFIX, WEIGHTS_FILE};
use super::{AdapterConfig, stem};
use crate::weights::{StoredDtype, replace, save_tensors};
use crate::{Architecture, ModelError};
use flow_core::{ParamLayout, Weights};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// The file that `load_lora_weights` of diffusers (0.42.1, `loaders/lora_base.py`) looks for.
pub(super) const DIFFUSERS_FILE: &str = "pytorch_lora_weights.safetensors";
const KOHYA_FILE: &str = "lora_kohya.safetensors";
/// What diffusers puts before the names of a pipeline's transformer.
const DIFFUSERS_PREFIX: &str = "transformer.";

/// Who is to read a LoRA file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdapterLayout {
    /// `pipeline.load_lora_weights` of diffusers: `pytorch_lora_weights.safetensors`. The scale is folded into `B`, so it is
    /// right in readers that know of none.
    Diffusers,
    /// `peft`: `adapter_model.safetensors` with `adapter_config.json`.
    Peft,
    /// `kohya-ss`, `musubi-tuner` and ComfyUI: `lora_kohya.safetensors`, under the names of the program that published the
    /// model.
    Kohya,
}

/// Writes the adapters of `weights` to `directory`, which is made if need be, in each of `layouts`.
///
/// # Errors
/// [`ModelError::Adapter`] if there are none or they differ in rank or scale; else as
/// [`save`](crate::weights::save).
pub fn export_adapters(
    model: &dyn Architecture,
    weights: &Weights,
    directory: &Path,
    layouts: &[AdapterLayout],
    dtype: StoredDtype,
    metadata: &BTreeMap<String, String>,
) -> Result<(), ModelError> {
    let config = config_of(weights.layout())?;
    fs::create_dir_all(directory).map_err(io("create", directory))?;
    let export = Export {
        weights,
        directory,
        config: &config,
        dtype,
        metadata,
    };
    for layout in layouts {
        match layout {
            AdapterLayout::Diffusers => export.diffusers(DIFFUSERS_FILE.as_ref())?,
            AdapterLayout::Peft => export.peft()?,
            AdapterLayout::Kohya => export.kohya(model.original_layers())?,
        }
    }
    Ok(())
}

/// Writes the adapters of `weights` to the file `path`, as [`AdapterLayout::Diffusers`] has them.
///
/// # Errors
/// As [`export_adapters`].
pub fn save_adapters(
    weights: &Weights,
    path: &Path,
    dtype: StoredDtype,
    metadata: &BTreeMap<String, String>,
) -> Result<(), ModelError> {
    let config = config_of(weights.layout())?;
    let export = Export {
        weights,
        directory: path.parent().unwrap_or(Path::new("")),
        config: &config,
        dtype,
        metadata,
    };
    export.diffusers(path.file_name().unwrap_or(DIFFUSERS_FILE.as_ref()))
}

struct Export<'a> {
    weights: &'a Weights,
    directory: &'a Path,
    config: &'a AdapterConfig,
    dtype: StoredDtype,
    metadata: &'a BTreeMap<String, String>,
}

/// A tensor to be written.
struct Tensor {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Export<'_> {
    fn diffusers(&self, file: &OsStr) -> Result<(), ModelError> {
        let rank = self.config.rank;
        // These three, for one that a version of `peft` does not know makes diffusers fail. Those that know of no metadata
        // take alpha = r, and so does this.
        let said = json!({
            "transformer.r": rank,
            "transformer.lora_alpha": rank,
            "transformer.target_modules": self.config.targets,
        });
        let tensors = self.factors(DIFFUSERS_PREFIX, self.scale());
        self.write(file, tensors, Some(said))
    }

    fn peft(&self) -> Result<(), ModelError> {
        let AdapterConfig { rank, alpha, targets } = self.config;
        // For diffusers' `load_lora_adapter(..., prefix = "base_model.model")`, which would take alpha = r otherwise.
        let said = json!({
            "base_model.model.r": rank,
            "base_model.model.lora_alpha": alpha,
            "base_model.model.target_modules": targets,
        });
        self.write(WEIGHTS_FILE.as_ref(), self.factors(PREFIX, 1.0), Some(said))?;
        let config = json!({
            "peft_type": "LORA", "task_type": null, "base_model_name_or_path": null, "inference_mode": true,
            "r": rank, "lora_alpha": alpha, "target_modules": targets, "init_lora_weights": true,
            "bias": "none", "lora_dropout": 0.0, "fan_in_fan_out": false, "modules_to_save": null,
            "rank_pattern": {}, "alpha_pattern": {}, "use_rslora": false, "use_dora": false,
        });
        let path = self.directory.join(CONFIG_FILE);
        let pretty = format!("{config:#}\n");
        replace(&path, &mut |file| file.write_all(pretty.as_bytes())).map_err(io("write", &path))
    }

    /// One adapter for each layer of the original program: where that stacks several of ours, the ranks of its adapter are
    /// theirs one after the other, and its `B` is block-diagonal.
    fn kohya(&self, original: Vec<OriginalLayer>) -> Result<(), ModelError> {
        let rank = self.config.rank;
        let adapted: BTreeSet<&str> = self.config.targets.iter().map(String::as_str).collect();
        let named: BTreeSet<String> = original
            .iter()
            .flat_map(|layer| layer.parts.iter().map(|part| part.layer.clone()))
            .collect();
        let own = (self.config.targets.iter())
            .filter(|layer| !named.contains(*layer))
            .map(|layer| OriginalLayer::one(layer.clone(), layer.clone()));
        let mut tensors = Vec::new();
        for layer in original.iter().cloned().chain(own) {
            let parts: Vec<&str> = layer.parts.iter().map(|part| part.layer.as_str()).collect();
            let count = parts.iter().filter(|part| adapted.contains(*part)).count();
            if count == 0 {
                continue;
            }
            let (mut down, mut up, mut before) = (Vec::new(), Vec::new(), 0);
            for part in &layer.parts {
                let is_adapted = adapted.contains(part.layer.as_str());
                let rows = self.shape(&format!("{}.weight", part.layer))[0];
                if !is_adapted {
                    up.resize(up.len() + rows * count * rank, 0.0);
                    continue;
                }
                down.extend(self.host(&format!("{}.lora_A.weight", part.layer)));
                let mut own = self.host(&format!("{}.lora_B.weight", part.layer));
                if part.has_swapped_halves {
                    own.rotate_left(rows / 2 * rank);
                }
                for row in own.chunks(rank) {
                    up.resize(up.len() + before, 0.0);
                    up.extend(row);
                    up.resize(up.len() + (count - 1) * rank - before, 0.0);
                }
                before += rank;
            }
            let ranks = count * rank;
            let name = format!("lora_unet_{}", layer.name.replace('.', "_"));
            let shapes = (vec![ranks, down.len() / ranks], vec![up.len() / ranks, ranks]);
            let mut push = |ending: &str, shape, values| {
                let name = format!("{name}.{ending}");
                tensors.push(Tensor { name, shape, values });
            };
            push("lora_down.weight", shapes.0, down);
            push("lora_up.weight", shapes.1, up);
            push("alpha", vec![], vec![self.scale() * ranks as f32]);
        }
        self.write(KOHYA_FILE.as_ref(), tensors, None)
    }

    fn scale(&self) -> f32 {
        self.config.alpha / self.config.rank as f32
    }

    /// All factors under `prefix`, `B` times `scale`.
    fn factors(&self, prefix: &str, scale: f32) -> Vec<Tensor> {
        let layout = self.weights.layout();
        let factors = layout
            .adapters()
            .flat_map(|(_, adapter)| [(adapter.down, 1.0), (adapter.up, scale)]);
        let tensor = |(factor, scale): (flow_core::Handle<2>, f32)| {
            let spec = &layout.specs()[factor.index()];
            let mut values = self.weights.host(factor.index());
            values.iter_mut().for_each(|value| *value *= scale);
            Tensor {
                name: format!("{prefix}{}", spec.name),
                shape: spec.shape.clone(),
                values,
            }
        };
        factors.map(tensor).collect()
    }

    fn shape(&self, name: &str) -> &[usize] {
        let layout = self.weights.layout();
        let position = layout.position(name).expect("a layer of the model");
        &layout.specs()[position].shape
    }

    fn host(&self, name: &str) -> Vec<f32> {
        let position = self.weights.layout().position(name);
        self.weights.host(position.expect("a factor of an adapted layer"))
    }

    fn write(
        &self,
        file: &OsStr,
        tensors: Vec<Tensor>,
        said: Option<serde_json::Value>,
    ) -> Result<(), ModelError> {
        let mut metadata = self.metadata.clone();
        if let Some(said) = said {
            metadata.insert(METADATA_KEY.into(), said.to_string());
        }
        let listed = tensors.iter().enumerate();
        let listed = listed.map(|(index, it)| (it.name.clone(), it.shape.clone(), index));
        let path = self.directory.join(file);
        let values = |index: usize| tensors[index].values.clone();
        save_tensors(listed.collect(), &values, &path, self.dtype, &metadata)
    }
}

/// Rank, alpha and layers of a layout's adapters.
fn config_of(layout: &ParamLayout) -> Result<AdapterConfig, ModelError> {
    let mut config: Option<(usize, f32)> = None;
    let mut targets = Vec::new();
    for (weight, adapter) in layout.adapters() {
        let rank = layout.specs()[adapter.down.index()].shape[0];
        let this = (rank, adapter.scale);
        if *config.get_or_insert(this) != this {
            let problem = "adapters differ in rank or scale; a file has one of each";
            return Err(ModelError::Adapter(problem.into()));
        }
        targets.push(stem(&layout.specs()[weight.index()].name).to_owned());
    }
    let Some((rank, scale)) = config else {
        let problem = "the model has none; add some to the layout first (`add_lora`)";
        return Err(ModelError::Adapter(problem.into()));
    };
    Ok(AdapterConfig {
        rank,
        alpha: scale * rank as f32,
        targets,
    })
}

fn io(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> ModelError {
    let path = path.to_owned();
    move |source| ModelError::Io {
        action,
        path: path.clone(),
        source,
    }
}
