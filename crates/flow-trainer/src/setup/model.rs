//! Architecture, weights, adapters.

use super::Environment;
use super::blocks::block_weights;
use super::paths::{hub_help, start_in_config};
use crate::absent_file::AbsentFile;
use crate::error::TrainError;
use flow_config::{Config, Finetune};
use flow_core::{Drawn, FlowModel, LowPrecision, ParamLayout, WeightStorage, Weights, device::ComputeDevice};
use flow_models::{ModelRegistry, Trained, add_lora, trained_mask};
use std::path::Path;
use std::sync::Arc;

/// A model with its weights. Cloning shares them.
#[derive(Clone, Debug)]
pub struct ModelParts {
    /// The model.
    pub model: Arc<dyn FlowModel>,
    /// Its weights, adapters included.
    pub weights: Weights,
    /// Which of them are trained.
    pub trained: Vec<bool>,
    /// Names of the linear layers with adapters.
    pub adapted: Vec<String>,
    /// Files that the config names and that are not there. Their weights are no model's: a checkpoint has to give them.
    pub absent: Vec<AbsentFile>,
}

/// A model before it has weights.
#[derive(Clone, Debug)]
pub struct ModelOutline {
    /// The model.
    pub model: Arc<dyn flow_models::Architecture>,
    /// Names and shapes of its weights, adapters included.
    pub layout: Arc<ParamLayout>,
    /// Which of them are trained.
    pub trained: Vec<bool>,
    /// Names of the linear layers with adapters.
    pub adapted: Vec<String>,
}

impl ModelOutline {
    /// Number of trained values.
    pub fn trained_values(&self) -> usize {
        let specs = self.layout.specs().iter().zip(&self.trained);
        let trained = specs.filter(|(_, trained)| **trained);
        trained
            .map(|(spec, _)| spec.shape.iter().product::<usize>())
            .sum()
    }
}

/// The model that a config describes, with its adapters. No weights are made, so this is quick for any size.
///
/// # Errors
/// A setting or adapter target that does not fit.
pub fn outline(
    config: &Config,
    models: &ModelRegistry,
    device: &ComputeDevice,
) -> Result<ModelOutline, TrainError> {
    let section = &config.model;
    let model = models.build_section(&section.architecture, &section.dimensions(), device)?;
    let mut layout = (**model.layout()).clone();
    let lora = config.model.finetune == Finetune::Lora;
    let adapted = if lora {
        let alpha = config.lora.effective_alpha() as f32;
        add_lora(
            &*model,
            &mut layout,
            &config.lora.targets,
            config.lora.rank,
            alpha,
        )?
    } else {
        Vec::new()
    };
    let trained = trained_mask(&layout, if lora { Trained::Lora } else { Trained::Full })?.to_vec();
    Ok(ModelOutline {
        model,
        layout: Arc::new(layout),
        trained,
        adapted,
    })
}

/// Builds the model, loads its weights, adds adapters.
///
/// # Errors
/// A setting, file or adapter target that does not fit, or a file that is not there.
pub fn model(config: &Config, environment: &Environment<'_>) -> Result<ModelParts, TrainError> {
    let parts = model_with_absent_files(config, environment)?;
    match parts.absent.first() {
        Some(absent) => Err(absent.error()),
        None => Ok(parts),
    }
}

/// As [`model`], for a run that may go on from a checkpoint, which holds all weights: files that are not there are named in
/// [`ModelParts::absent`].
///
/// # Errors
/// A setting, file or adapter target that does not fit.
pub(super) fn model_with_absent_files(
    config: &Config,
    environment: &Environment<'_>,
) -> Result<ModelParts, TrainError> {
    let device = &environment.device;
    let outline = outline(config, &environment.plugins.models, device)?;
    let blocks = block_weights(config, environment, &outline)?;
    let ModelOutline {
        model,
        layout,
        trained,
        adapted,
    } = outline;
    let seed = config.lora.seed.unwrap_or(config.run.seed);
    let (forms, rounded) = low_precision(config, environment, &*model, &layout)?;
    let mut weights = match (&config.model.weights, blocks) {
        (None, None) => flow_models::initialize(&*model, &layout, seed, device),
        (Some(_), None) => {
            let forms = forms.clone();
            flow_models::initialize_adapters_on_frozen(&*model, &layout, seed, device, &trained, forms)
        }
        // An accelerator of another program may store weights so, too.
        (_, Some(_)) if forms.iter().any(Option::is_some) => {
            return Err(TrainError::setting(
                "an accelerator in `acceleration.shared` stores frozen weights in low precision, and `distributed.shard = \"weights\"` shares \
                 them out as numbers",
            )
            .with_help("remove its entry, or set `distributed.shard = \"optimizer\"`")
            .about("distributed.shard"));
        }
        (file, Some(blocks)) => {
            let drawn = match file {
                Some(_) => Drawn::Adapters,
                None => Drawn::All,
            };
            flow_models::initialize_on_parts(&*model, &layout, (seed, device), (drawn, &trained[..]), blocks)
        }
    };
    weights.store_in_low_precision(forms)?;
    weights.round_in_products(rounded);
    let mut absent = Vec::new();
    if let Some(path) = &config.model.weights {
        let file = environment.base.join(path);
        if file.exists() {
            if let Some(description) = flow_models::weights::describe(&file)? {
                description.expect(&*model)?;
            }
            flow_models::load_into(&mut weights, &file)?;
        } else {
            let help = format!(
                "{}. {}",
                no_weights_help(config, path, &file),
                capitalized(&start_in_config(path, environment.base))
            );
            absent.push(AbsentFile::Weights { file, help });
        }
    }
    if let Some(path) = &config.model.adapter {
        let file = environment.base.join(path);
        if adapted.is_empty() {
            return Err(TrainError::setting(
                "`model.adapter` names adapters to begin from, but `model.finetune` is \"full\"",
            )
            .with_help("set it to \"lora\"")
            .about("model.finetune"));
        }
        if file.exists() {
            flow_models::load_adapters(&*model, &mut weights, &file)?;
        } else {
            let start = start_in_config(path, environment.base);
            absent.push(AbsentFile::Adapter { start, file });
        }
    }
    // Two types, and this is the only place between them: flow-core lies below configs, and a config says how wide weights are, but the
    // form that f32 has in memory depends on the device.
    let storage = match config.optimizer.weights {
        flow_config::WeightStorage::Bf16 => WeightStorage::Narrow,
        // Halves cost a processor time, and it has no copies to save.
        flow_config::WeightStorage::F32 if device.is_processor() => WeightStorage::Whole,
        flow_config::WeightStorage::F32 => WeightStorage::SplitF32,
    };
    weights.store(&trained, storage, &*environment.plan.kernels);
    Ok(ModelParts {
        model,
        weights,
        trained,
        adapted,
        absent,
    })
}

/// By place, in what form a weight is in low precision.
type Forms = Arc<[Option<LowPrecision>]>;

/// How weights are stored in low precision, and what products round trained ones to, if an accelerator asks for it.
///
/// # Errors
/// If `keep` names a layer that the model does not have.
fn low_precision(
    config: &Config,
    environment: &Environment<'_>,
    model: &dyn FlowModel,
    layout: &ParamLayout,
) -> Result<(Forms, Forms), TrainError> {
    let Some(rule) = environment
        .accelerators
        .low_precision(&config.acceleration.shared)
    else {
        return Ok((Arc::from([]), Arc::from([])));
    };
    let forms = rule.select(layout, model.spec());
    let rounded = rule.select_trained(layout, model.spec());
    if !(forms.is_empty() && rounded.is_empty())
        && let Some(pattern) = rule.idle_patterns(layout, model.spec()).first()
    {
        return Err(TrainError::setting(format!(
            "`keep` of the accelerator `low_precision` has `{pattern}`, which names no layer that would be stored in {}, or multiplied in it; \
             layers outside of the model's blocks stay as they are anyway. Remove it, or write a layer's name as `lora.targets` has it",
            rule.format
        )));
    }
    Ok((forms, rounded))
}

/// What to do where `model.weights` names nothing.
fn no_weights_help(config: &Config, path: &Path, file: &Path) -> String {
    if *path == config.pretrain.output {
        return "Make it with `flow-train pretrain` and this config".into();
    }
    if let Some(help) = hub_help(path) {
        return help;
    }
    match nearest_beside(file) {
        Some(nearest) => format!("Check the path; the nearest name there is `{nearest}`"),
        None => "Check the path".into(),
    }
}

/// The name in the folder of `file` that is nearest to its own.
fn nearest_beside(file: &Path) -> Option<String> {
    let entries = std::fs::read_dir(file.parent()?).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let name = file.file_name()?.to_str()?;
    flow_registry::nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
}

/// A part of a sentence as a sentence of its own.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}
