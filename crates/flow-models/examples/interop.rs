//! Exchanges LoRA files and models with diffusers and `peft`: `cargo xtask interop` runs this before and after
//! `tests/interop/check.py`.
//!
//! `interop write FOLDER` exports adapters and merged models with the velocities that they give; `interop read FOLDER` reads what
//! Python left there and compares velocities with those that Python computed.

use flow_attention::CpuAttention;
use flow_core::device::ComputeDevice;
use flow_core::exec::{Backends, CallContext, InferencePass, Stage};
use flow_core::model::{Condition, ModelInput};
use flow_core::rng::{Purpose, Stream};
use flow_core::{ParamKind, Weights};
use flow_kernels::CpuKernels;
use flow_models::lora::AdapterFile;
use flow_models::weights::{MODEL_CONFIG_KEY, config_json, describe_folder, parse};
use flow_models::{
    AdapterLayout, Architecture, ModelRegistry, StoredDtype, add_lora, export_adapters, load, load_into,
    merge, register, save, save_tensors,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Relative Euclidean distance that f32 rounding may cause between two implementations.
const TOLERANCE: f64 = 1e-5;

/// Folder of a fixture, its architecture, sizes of a latent, adapted layers.
type Fixture = (
    &'static str,
    &'static str,
    &'static [(&'static str, usize)],
    &'static [&'static str],
);

/// A fixture's model: folder, architecture, sizes of a latent, and adapted layers (all linears of the blocks' attention and
/// feed-forward parts, for `musubi-tuner`'s files of Wan have them all).
const MODELS: [Fixture; 2] = [
    (
        "sd3-lora",
        "mmdit",
        &[("latent_height", 8), ("latent_width", 6)],
        &[
            "attn*.to_*",
            "attn.add_*",
            "ff.net*",
            "norm_out.linear",
            "norm1*.linear",
            "proj_out",
        ],
    ),
    (
        "wan-lora",
        "wan",
        &[("latent_frames", 2), ("latent_height", 4), ("latent_width", 6)],
        &["attn1.to_*", "attn2.to_*", "ffn.net*"],
    ),
];

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [task, folder] = arguments.as_slice() else {
        return Err("usage: interop write|read FOLDER".into());
    };
    for (name, architecture, sides, targets) in MODELS {
        let model = Exchange::new(name, architecture, sides)?;
        let folder = folder.join(name);
        match task.to_str() {
            Some("write") => model.write(&folder, targets)?,
            Some("read") => model.read(&folder)?,
            _ => return Err("the task is `write` or `read`".into()),
        }
    }
    Ok(())
}

struct Exchange {
    name: &'static str,
    model: Arc<dyn Architecture>,
    base: Weights,
    io: Tensors,
}

impl Exchange {
    fn new(name: &'static str, architecture: &str, sides: &[(&str, usize)]) -> Result<Self, Box<dyn Error>> {
        let device = ComputeDevice::cpu();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(name);
        let mut settings: Value = serde_json::from_str(&fs::read_to_string(folder.join("config.json"))?)?;
        for (key, side) in sides {
            settings[*key] = (*side).into();
        }
        let mut registry = ModelRegistry::new();
        register(&mut registry).expect("a new registry");
        let model = registry.build(architecture, &settings, &device)?;
        let (base, _) = load(&*model, &folder, &device)?;
        let io = tensors(&folder.join("io.safetensors"))?;
        Ok(Self {
            name,
            model,
            base,
            io,
        })
    }

    /// `base`, the unchanged model; `adapter`, adapters with random factors in every layout; `weights`, the same merged.
    fn write(&self, folder: &Path, targets: &[&str]) -> Result<(), Box<dyn Error>> {
        let device = ComputeDevice::cpu();
        let targets: Vec<String> = targets.iter().map(|it| (*it).to_owned()).collect();
        let mut weights = self.with_adapters(4, 6.0, &targets)?;
        for (index, spec) in weights.layout().clone().specs().iter().enumerate() {
            if spec.kind == ParamKind::Adapter {
                let mut values = vec![0.0; spec.shape.iter().product()];
                Stream::new(3, Purpose::Test)
                    .at(index as u64, 0)
                    .fill_normal(&mut values);
                values.iter_mut().for_each(|value| *value *= 0.15);
                weights.set_host(index, values)?;
            }
        }
        for name in ["base", "weights", "adapter"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let none = BTreeMap::new();
        let layouts = [
            AdapterLayout::Diffusers,
            AdapterLayout::Peft,
            AdapterLayout::Kohya,
        ];
        export_adapters(
            &*self.model,
            &weights,
            &folder.join("adapter"),
            &layouts,
            StoredDtype::F32,
            &none,
        )?;
        let metadata = BTreeMap::from([(MODEL_CONFIG_KEY.to_owned(), config_json(&*self.model).to_string())]);
        let merged = merge(&weights, self.model.layout(), &device)?;
        for (place, values) in [("base", &self.base), ("weights", &merged)] {
            let place = folder.join(place);
            save(
                values,
                &place.join("final.safetensors"),
                StoredDtype::F32,
                &metadata,
            )?;
            describe_folder(&*self.model, &place, "final.safetensors", None)?;
        }
        // A second model in one folder, as an average is.
        save(
            &self.base,
            &folder.join("weights/average.safetensors"),
            StoredDtype::F32,
            &metadata,
        )?;
        describe_folder(
            &*self.model,
            &folder.join("weights"),
            "average.safetensors",
            Some("average"),
        )?;
        let outputs = [self.velocity(&weights), self.velocity(&self.base)];
        let shape = self.io["out"].0.clone();
        let listed = ["adapted", "base"].iter().enumerate();
        let listed = listed.map(|(index, name)| ((*name).to_owned(), shape.clone(), index));
        let path = folder.join("velocities.safetensors");
        save_tensors(
            listed.collect(),
            &|index| outputs[index].clone(),
            &path,
            StoredDtype::F32,
            &none,
        )?;
        println!(
            "{}: adapters on {} layers",
            self.name,
            weights.layout().adapters().count()
        );
        Ok(())
    }

    /// Every folder of `theirs` has a LoRA file, or a model, and `out.safetensors`.
    fn read(&self, folder: &Path) -> Result<(), Box<dyn Error>> {
        let base = self.velocity(&self.base);
        let mut entries: Vec<PathBuf> = fs::read_dir(folder.join("theirs"))?
            .map(|entry| entry.map(|it| it.path()))
            .collect::<Result<_, _>>()?;
        entries.sort();
        for entry in entries {
            let expected = tensors(&entry.join("out.safetensors"))?
                .remove("out")
                .ok_or("no output")?
                .1;
            let path = entry.join("lora");
            let found = if path.is_dir() {
                let file = AdapterFile::read(&*self.model, &path)?;
                let config = file.config();
                let mut weights = self.with_adapters(config.rank, config.alpha, &config.targets)?;
                file.fill(&mut weights)?;
                self.velocity(&weights)
            } else {
                let mut weights = self.base.clone();
                load_into(&mut weights, &entry.join("model"))?;
                self.velocity(&weights)
            };
            let (distance, change) = (distance(&found, &expected), distance(&expected, &base));
            let name = entry
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            println!(
                "{}: {name}: {distance:.1e} from Python's output, which is {change:.1e} from the base model's",
                self.name
            );
            if distance.is_nan() || distance > TOLERANCE || change < 1e-3 {
                return Err(format!("{}: {name} does not give the output of Python", self.name).into());
            }
        }
        Ok(())
    }

    fn with_adapters(&self, rank: usize, alpha: f32, targets: &[String]) -> Result<Weights, Box<dyn Error>> {
        let mut layout = (**self.model.layout()).clone();
        add_lora(&*self.model, &mut layout, targets, rank, alpha)?;
        let mut weights = Weights::init(Arc::new(layout), 5, &ComputeDevice::cpu());
        for index in 0..self.base.layout().len() {
            weights.set(index, self.base.stored()[index].clone())?;
        }
        Ok(weights)
    }

    fn velocity(&self, weights: &Weights) -> Vec<f32> {
        let device = ComputeDevice::cpu();
        let values = |name: &str| self.io[name].1.clone();
        let text = self.io["in.encoder_hidden_states"].0.clone();
        let pooled = self.io.get("in.pooled_projections");
        let input = ModelInput {
            x: device.tensor(values("in.hidden_states"), [2, self.model.spec().latent.values()]),
            sigma: device.tensor(values("in.timestep").iter().map(|it| it / 1000.0).collect(), [2]),
            condition: Condition {
                text: Some(device.tensor(values("in.encoder_hidden_states"), [2, text[1], text[2]])),
                pooled: pooled.map(|(shape, values)| device.tensor(values.clone(), [2, shape[1]])),
                ..Condition::default()
            },
        };
        let plan = Arc::new(Backends::new(
            Arc::new(CpuAttention),
            Arc::new(CpuKernels::default()),
        ));
        let rollout = InferencePass::new(weights, plan);
        let velocity = self
            .model
            .velocity(&rollout.exec(CallContext::single(Stage::Rollout)), input);
        velocity.into_data().iter().collect()
    }
}

fn tensors(path: &Path) -> Result<Tensors, Box<dyn Error>> {
    let bytes = fs::read(path)?;
    let parsed = parse(&bytes)?;
    let values = |it: &flow_models::weights::StoredTensor<'_>| it.to_f32().ok_or("no floats");
    let tensors = parsed.tensors.iter();
    tensors
        .map(|it| Ok((it.name.clone(), (it.shape.clone(), values(it)?))))
        .collect()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|it| it * it).sum::<f64>();
    let difference = square(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    (difference / square(&mut b.iter().map(|it| f64::from(*it)))).sqrt()
}
