//! LoRA files for tests: a model that diffusers wrote with what it computed, and files under other names.

use super::parity::{Named, noise_levels, tensor, text_lengths, unpacked};
use super::{fixture, noise, relative_distance, tensors, velocity};
use flow_core::device::ComputeDevice;
use flow_core::{Condition, ModelInput, Weights};
use flow_models::lora::AdapterFile;
use flow_models::weights::{parse, save_tensors};
use flow_models::{Architecture, ModelRegistry, StoredDtype, add_lora, load_into};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names, shapes and values of a file's tensors.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A model with a fixture's weights, and its input.
pub struct Oracle {
    pub name: &'static str,
    pub model: Arc<dyn Architecture>,
    pub base: Weights,
    pub io: Named,
}

impl Oracle {
    pub fn new(name: &'static str) -> Self {
        let device = ComputeDevice::cpu();
        let text = fs::read(fixture(name).join("config.json")).unwrap();
        let mut settings: Value = serde_json::from_slice(&text).unwrap();
        let sides: &[(&str, usize)] = match name {
            "sd3-lora" => &[("latent_height", 8), ("latent_width", 6)],
            "flux-lora" | "qwen-image-lora" => &[("latent_height", 8), ("latent_width", 6)],
            _ => &[("latent_frames", 2), ("latent_height", 4), ("latent_width", 6)],
        };
        for (key, side) in sides {
            settings[*key] = (*side).into();
        }
        let mut registry = ModelRegistry::new();
        flow_models::register(&mut registry).expect("a new registry");
        let architecture = match name {
            "sd3-lora" => "mmdit",
            "flux-lora" => "flux",
            "qwen-image-lora" => "qwen-image",
            _ => "wan",
        };
        let model = registry.build(architecture, &settings, &device).unwrap();
        let mut base = Weights::init(model.layout().clone(), 0, &device);
        // The folder has LoRA files, too.
        load_into(&mut base, &fixture(name)).unwrap();
        Self {
            name,
            model,
            base,
            io: match name {
                "flux-lora" | "qwen-image-lora" => unpacked(tensors(&format!("{name}/io.safetensors")), 4, 3),
                _ => tensors(&format!("{name}/io.safetensors")),
            },
        }
    }

    pub fn input(&self) -> ModelInput {
        let device = ComputeDevice::cpu();
        let values = self.model.spec().latent.values();
        let text = &self.io["in.encoder_hidden_states"].0;
        ModelInput {
            x: tensor(&device, &self.io, "in.hidden_states", [2, values]),
            sigma: match self.name {
                // These are given the noise level itself.
                "flux-lora" | "qwen-image-lora" => tensor(&device, &self.io, "in.timestep", [2]),
                _ => noise_levels(&device, &self.io),
            },
            condition: Condition {
                text: Some(tensor(
                    &device,
                    &self.io,
                    "in.encoder_hidden_states",
                    [2, text[1], text[2]],
                )),
                pooled: self
                    .io
                    .get("in.pooled_projections")
                    .map(|(shape, _)| tensor(&device, &self.io, "in.pooled_projections", [2, shape[1]])),
                guidance: (self.io.get("in.guidance")).map(|_| tensor(&device, &self.io, "in.guidance", [2])),
                text_lengths: text_lengths(&self.io),
                tokens: None,
            },
        }
    }

    /// Weights with the adapters of `path`, in a layout that the file decides.
    pub fn adapted(&self, path: &Path) -> Weights {
        let file = AdapterFile::read(&*self.model, path).unwrap();
        let config = file.config();
        let mut weights = self.with_adapters(config.rank, config.alpha, &config.targets);
        file.fill(&mut weights).unwrap();
        weights
    }

    pub fn with_adapters(&self, rank: usize, alpha: f32, targets: &[String]) -> Weights {
        let mut layout = (**self.model.layout()).clone();
        add_lora(&*self.model, &mut layout, targets, rank, alpha).unwrap();
        let mut weights = Weights::init(Arc::new(layout), 5, &ComputeDevice::cpu());
        for index in 0..self.base.layout().len() {
            weights.set(index, self.base.stored()[index].clone()).unwrap();
        }
        weights
    }

    /// Relative distance of the output with `path` from the fixture's `output`.
    pub fn distance(&self, path: &Path, output: &str) -> f64 {
        let found = velocity(&*self.model, &self.adapted(path), self.input());
        relative_distance(&found, &self.io[output].1)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        fixture(self.name).join(name)
    }
}

/// `tensors` under other names, as a file of its own.
pub fn renamed(tensors: &Tensors, path: &Path, metadata: Option<Value>, rename: impl Fn(&str) -> String) {
    let list: Vec<_> = tensors.iter().map(|(name, it)| (rename(name), it)).collect();
    let shapes = list.iter().enumerate();
    let shapes = shapes
        .map(|(index, (name, it))| (name.clone(), it.0.clone(), index))
        .collect();
    let metadata = metadata.map(|it| ("lora_adapter_metadata".to_owned(), it.to_string()));
    let metadata = metadata.into_iter().collect();
    save_tensors(
        shapes,
        &|index| list[index].1.1.clone(),
        path,
        StoredDtype::F32,
        &metadata,
    )
    .unwrap();
}

pub fn read(path: &Path) -> (Tensors, BTreeMap<String, String>) {
    let bytes = fs::read(path).unwrap();
    let parsed = parse(&bytes).unwrap();
    let tensors = parsed.tensors.iter();
    let tensors = tensors.map(|it| (it.name.clone(), (it.shape.clone(), it.to_f32().unwrap())));
    (tensors.collect(), parsed.metadata.clone())
}

pub fn peft_config(changes: &[(&str, Value)]) -> Value {
    let mut config = json!({
        "peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["to_q"], "bias": "none", "init_lora_weights": "gaussian",
        "use_rslora": false, "use_dora": false, "rank_pattern": {}, "alpha_pattern": {}, "fan_in_fan_out": false,
        "modules_to_save": null, "loftq_config": {}, "peft_version": "0.21.2", "lora_dropout": 0.1, "megatron_core": "megatron.core",
        "qalora_group_size": 16, "task_type": null, "layer_replication": null, "lora_bias": false,
    });
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    config
}

pub fn fill_with_noise(weights: &mut Weights) {
    let layout = weights.layout().clone();
    for (index, spec) in layout.specs().iter().enumerate() {
        if spec.kind == flow_core::ParamKind::Adapter {
            let count = spec.shape.iter().product();
            let values = noise(count, index as u64)
                .iter()
                .map(|value| 0.2 * value)
                .collect();
            weights.set_host(index, values).unwrap();
        }
    }
}

pub fn host_values(weights: &Weights) -> Vec<Vec<f32>> {
    (0..weights.layout().len())
        .map(|index| weights.host(index))
        .collect()
}
