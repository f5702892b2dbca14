//! A diffusers folder, `model.path`: what it says of the model, its text encoders, its autoencoder.

use super::described::{Said, said_by_constants};
use super::paths::{hub_help, start_in_config};
use super::{Environment, PipelineFolders};
use crate::decoder::ImageDecoder;
use crate::encoded::PromptEncoders;
use crate::error::TrainError;
use crate::timesteps::shifted;
use flow_config::{Config, EncodersText, TextConfig};
use flow_core::ModelSpec;
use flow_diffusers::{Family, Scheduler, ShiftKind};
use flow_pipeline::{Pipeline, PromptCache, PromptSettings, Size};
use serde_json::{Value, json};
use std::path::Path;

/// Where encoded prompts are kept in `run.dir`, unless the config says otherwise.
const CACHE: &str = "prompt-cache";

/// The diffusers folder that a config names, opened by `folders` if it was not yet.
///
/// # Errors
/// If it names none, or the folder is not there or not whole.
pub fn pipeline(config: &Config, base: &Path, folders: &PipelineFolders) -> Result<Pipeline, TrainError> {
    let model = &config.model;
    let Some(path) = &model.path else {
        return Err(TrainError::setting("there is no diffusers folder").with_help("set `model.path` to one"));
    };
    let folder = base.join(path);
    if !folder.exists() {
        let help = hub_help(path).unwrap_or_else(|| "Check the path".into());
        return Err(TrainError::setting(format!(
            "there is nothing at `{}`, which `model.path` names",
            folder.display()
        ))
        .with_help(format!("{}. {help}", start_in_config(path, base)))
        .about("model.path"));
    }
    Ok(folders.open(&folder, model.variant.as_deref())?)
}

/// The size of what the model of a diffusers folder makes: the config's, and where it is silent that of the pipeline.
pub fn folder_size(config: &Config, pipeline: &Pipeline) -> Size {
    let Size {
        width,
        height,
        frames,
    } = pipeline.defaults().size;
    Size {
        width: config.model.width.unwrap_or(width),
        height: config.model.height.unwrap_or(height),
        frames: config.model.frames.unwrap_or(frames),
    }
}

/// What the diffusers folder of a config says: architecture, weights, text encoders, noise levels, guidance. `None` if it names none.
///
/// # Errors
/// If the folder is not there or not whole, or of a pipeline that is not computed here.
pub fn said_by_folder(
    config: &Config,
    base: &Path,
    folders: &PipelineFolders,
) -> Result<Option<Said>, TrainError> {
    let Some(path) = &config.model.path else {
        return Ok(None);
    };
    let pipeline = pipeline(config, base, folders)?;
    let constants = pipeline.transformer_constants(folder_size(config, &pipeline))?;
    let constants = constants.as_object().cloned().unwrap_or_default();
    let mut said = Said {
        from: base.join(path).join("model_index.json"),
        values: Vec::new(),
    };
    said.push("model.architecture", pipeline.architecture().into());
    said_by_constants(&mut said, pipeline.architecture(), &constants);
    let weights = path.join(pipeline.transformer_weights_below()?);
    let Some(weights) = weights.to_str() else {
        return Err(TrainError::setting(format!(
            "the path `{}`, which `model.path` names, is not UTF-8, and a config is",
            path.display()
        ))
        .with_help("rename the folder, or name it by another way")
        .about("model.path"));
    };
    said.suggest("model.weights", weights.into());
    let defaults = pipeline.defaults();
    said.suggest("text.kind", "encoders".into());
    if let TextConfig::Encoders(_) | TextConfig::Words(_) = config.text {
        said.suggest("text.tokens", defaults.text_tokens.into());
    }
    noise_levels(&mut said, &pipeline)?;
    let guidance = match pipeline.embeds_guidance() {
        true => "sampling.embedded_guidance_scale",
        false => "sampling.guidance_scale",
    };
    said.suggest(guidance, json!(defaults.guidance_scale));
    // Pictures of hundreds of pixels need no enlarging.
    said.suggest("evaluation.grid.scale", 1.into());
    Ok(Some(said))
}

/// The noise levels of the pipeline's scheduler, which hold for any number of steps.
fn noise_levels(said: &mut Said, pipeline: &Pipeline) -> Result<(), TrainError> {
    let euler = match pipeline.scheduler() {
        Scheduler::FlowMatchEuler(euler) => euler,
        Scheduler::UniPc(unipc) => {
            // `linspace(1, 1/1000, T + 1)` without its end is `linspace(1, 1/T, T)` to a thousandth, for every number of steps.
            said.suggest("scheduler.shift.kind", "static".into());
            said.suggest("scheduler.shift.value", json!(unipc.flow_shift));
            return Ok(());
        }
    };
    let least = 1.0 / euler.num_train_timesteps as f64;
    // FLUX and Qwen-Image give their levels to the scheduler, which end at 1/T; SD3 takes those of the scheduler.
    let gives_levels = matches!(pipeline.family(), Family::Flux | Family::QwenImage);
    match &euler.dynamic {
        None => {
            if !gives_levels {
                said.suggest("scheduler.sigma_min", json!(shifted(least, euler.shift)));
            }
            said.suggest("scheduler.shift.kind", "static".into());
            said.suggest("scheduler.shift.value", json!(euler.shift));
        }
        Some(dynamic) if dynamic.kind == ShiftKind::Exponential => {
            if !gives_levels {
                said.suggest("scheduler.sigma_min", json!(least));
            }
            let line = [
                ("kind", json!("dynamic")),
                ("base_tokens", json!(dynamic.base_image_seq_len)),
                ("max_tokens", json!(dynamic.max_image_seq_len)),
                ("base_shift", json!(dynamic.base_shift)),
                ("max_shift", json!(dynamic.max_shift)),
            ];
            for (key, value) in line {
                said.suggest(format!("scheduler.shift.{key}"), value);
            }
        }
        Some(_) => {
            return Err(TrainError::setting(
                "the folder's `scheduler/scheduler_config.json` has `time_shift_type = \"linear\"`, which no sampler of training has",
            )
            .with_help("set `scheduler.shift` in the config")
            .about("scheduler.shift"));
        }
    }
    if let Some(terminal) = euler.shift_terminal {
        said.suggest("scheduler.shift_terminal", json!(terminal));
    }
    Ok(())
}

impl Said {
    /// A value that the config may set otherwise.
    fn suggest(&mut self, key: impl Into<String>, value: Value) {
        self.push(key, value);
        if let Some(last) = self.values.last_mut() {
            last.may_differ = true;
        }
    }
}

/// The config with what its diffusers folder says where it is silent, which is where it has the default's value: a config that a
/// program made does not tell what somebody wrote. Without a folder it is the same.
///
/// # Errors
/// As [`said_by_folder`]; [`TrainError::Setting`] for a value of the model that contradicts the folder.
pub fn completed_by_folder(
    config: &Config,
    defaults: &Config,
    base: &Path,
    folders: &PipelineFolders,
) -> Result<Config, TrainError> {
    let Some(said) = said_by_folder(config, base, folders)? else {
        return Ok(config.clone());
    };
    let json = |config: &Config| serde_json::to_value(config).expect("a config is plain data");
    let (mut whole, defaults) = (json(config), json(defaults));
    let pointer = |key: &str| format!("/{}", key.replace('.', "/"));
    // A table that is chosen by its kind is the folder's as a whole, or the config's.
    let mut theirs: Vec<&str> = Vec::new();
    for one in &said.values {
        if theirs.iter().any(|table| one.key.starts_with(table)) {
            continue;
        }
        if let Some(table) = one.key.strip_suffix("kind") {
            let place = pointer(table.trim_end_matches('.'));
            if whole.pointer(&place) != defaults.pointer(&place) {
                theirs.push(table);
                continue;
            }
            put(&mut whole, table.trim_end_matches('.'), json!({}));
        }
        let place = pointer(&one.key);
        let found = whole.pointer(&place).filter(|value| !value.is_null());
        match found {
            Some(value) if Some(value) != defaults.pointer(&place) && one.differs(value) => {
                return Err(TrainError::setting(format!(
                    "`{}` is {value}, and {} in `{}`",
                    one.key,
                    one.value,
                    said.from.display()
                ))
                .with_help("leave it at its default: the folder decides then")
                .about(&*one.key));
            }
            Some(value) if Some(value) != defaults.pointer(&place) => {}
            _ => put(&mut whole, &one.key, one.value.clone()),
        }
    }
    serde_json::from_value(whole)
        .map_err(|error| TrainError::setting(format!("the config with what `model.path` says: {error}")))
}

/// Sets a key, and makes the tables above it.
fn put(config: &mut Value, key: &str, value: Value) {
    let mut place = config;
    for part in key.split('.') {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[part];
    }
    *place = value;
}

/// Where a run of this config keeps encoded prompts; hashes of files are those that `folders` knows.
pub fn prompt_cache(config: &Config, base: &Path, folders: &PipelineFolders) -> PromptCache {
    let cache = match &config.text {
        TextConfig::Encoders(EncodersText {
            cache: Some(cache), ..
        }) => PromptCache::new(base.join(cache)),
        // Opened from the working directory, as the runs are.
        _ => PromptCache::new(config.run.dir.join(CACHE)),
    };
    cache.with_hashes(folders.hashes())
}

/// The text encoders of the config's folder.
pub(super) fn encoders(
    config: &Config,
    text: &EncodersText,
    environment: &Environment<'_>,
) -> Result<PromptEncoders, TrainError> {
    let folders = &environment.folders;
    let pipeline = pipeline(config, environment.base, folders)?;
    let settings = PromptSettings {
        text_tokens: text.tokens.unwrap_or(pipeline.defaults().text_tokens),
        micro_batch: text.micro_batch,
    };
    let cache = prompt_cache(config, environment.base, folders);
    let encoders = PromptEncoders::new(pipeline, cache, settings, &environment.device, &environment.plan);
    Ok(encoders.with_negative_prompt(&text.negative_prompt))
}

/// What makes images of the latents of a model of `spec`.
///
/// # Errors
/// If the config names a diffusers folder whose autoencoder cannot be read, or another autoencoder, which cannot or has other latents.
pub fn decoder(
    config: &Config,
    environment: &Environment<'_>,
    spec: &ModelSpec,
) -> Result<ImageDecoder, TrainError> {
    if let Some(path) = config.model.own_autoencoder() {
        return super::latents::decoder(path, environment, spec);
    }
    if config.model.path.is_none() {
        return Ok(ImageDecoder::pixels(spec.latent));
    }
    let pipeline = pipeline(config, environment.base, &environment.folders)?;
    let autoencoder = pipeline.autoencoder(&environment.device)?;
    Ok(ImageDecoder::autoencoder(
        spec.latent,
        autoencoder,
        &environment.plan,
    ))
}
