//! `pretrain`: flow matching on the data set, and the classifier that serves as reward.

use super::{Loaded, survey::Use};
use crate::arguments::ConfigArguments;
use crate::failure::{Failure, OrFailure};
use crate::interrupt::Interrupt;
use crate::{progress, terminal};
use flow_config::{Architecture, Config, DataConfig, Finetune};
use flow_data::Digits;
use flow_models::StoredDtype;
use flow_report::{Stopwatch, human_duration};
use flow_rewards::classifier::{ClassifierTraining, train_classifier};
use flow_trainer::optimizer::{AdamWSettings, FloatDType, RateSchedule};
use flow_trainer::pretrain::{PretrainSettings, Pretraining, pretrain};
use flow_trainer::setup;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Trains and writes the weights.
pub fn run(arguments: &ConfigArguments, quiet: bool) -> Result<(), Failure> {
    let loaded = Loaded::read(arguments, Use::Pretraining)?;
    let config = fresh(loaded.config());
    let watch = Stopwatch::start();
    let output = under(&loaded.base, &config.pretrain.output);
    parent(&output)?;
    let interrupt = Interrupt::listen()?;
    let (loss, steps, output) = loaded.compute(&config, |environment| {
        let common = setup::common(&config, environment)
            .and_then(|common| common.set_up())
            .or_bad_input()?;
        let settings = settings(&config);
        // Fewer lines than steps, and at least some.
        let every = (settings.steps / 50).max(1);
        let mut observer = progress::observer(settings.steps, every, quiet, interrupt);
        let parts = Pretraining {
            model: &common.model.model,
            plan: common.acceleration.training(),
            dataset: &*common.dataset,
            conditioner: &common.conditioner,
            device: &environment.device,
        };
        let trained = pretrain(&parts, common.model.weights, &settings, &mut *observer).or_failed()?;
        drop(observer);
        let steps = trained.losses.len();
        let metadata = metadata(&config, steps, trained.final_loss);
        // What a few steps gave does not take the place of weights that are there.
        let is_partial = steps < config.pretrain.steps && output.exists();
        let output = match is_partial {
            true => output.with_extension("partial.safetensors"),
            false => output.clone(),
        };
        flow_models::save(&trained.weights, &output, StoredDtype::F32, &metadata).or_failed()?;
        Ok((trained.final_loss, steps, output))
    })?;
    let mut text = format!("loss       {loss:.6} (mean of the last hundredth of {steps} steps)\n");
    text.push_str(&format!("time       {}\n", human_duration(watch.wall_s())));
    text.push_str(&format!("weights    {}\n", output.display()));
    if steps < config.pretrain.steps {
        terminal::print(&text)?;
        terminal::note(&format!(
            "interrupted after {steps} of {} steps: the weights are the average so far{}. Pretraining begins anew next time",
            config.pretrain.steps,
            match under(&loaded.base, &config.pretrain.output) {
                kept if kept != output => format!(", and {} is as it was", kept.display()),
                _ => String::new(),
            }
        ));
        return Err(Failure::Interrupted);
    }
    if config.pretrain.classifier.enabled && matches!(config.data, DataConfig::Digits(_)) {
        text.push_str(&classifier(&config, &loaded.base)?);
    }
    terminal::print(&text)
}

/// The config as pretraining takes it: all weights, from random values of its own seed.
pub fn fresh(config: &Config) -> Config {
    let mut config = config.clone();
    config.model.weights = None;
    config.model.finetune = Finetune::Full;
    config.run.seed = config.pretrain.seed;
    // There is no rollout.
    config.acceleration.rollout.clear();
    config
}

fn settings(config: &Config) -> PretrainSettings {
    let pretrain = &config.pretrain;
    PretrainSettings {
        steps: pretrain.steps as u64,
        batch: pretrain.batch,
        label_noise: pretrain.label_noise,
        condition_dropout: pretrain.condition_dropout,
        balance_weight: pretrain.balance_weight,
        average_decay: pretrain.ema_decay,
        seed: pretrain.seed,
        optimizer: AdamWSettings {
            learning_rate: pretrain.learning_rate,
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            weight_decay: pretrain.weight_decay,
            max_grad_norm: 1.0,
            warmup_steps: pretrain.warmup as u64,
            schedule: RateSchedule::Constant,
            moments: FloatDType::F32,
            seed: pretrain.seed,
        },
    }
}

/// What made the weights, so that they can be made again and compared.
fn metadata(config: &Config, steps: usize, final_loss: f64) -> BTreeMap<String, String> {
    let pretrain = &config.pretrain;
    // Where the files lie does not matter to what is in them.
    let mut relevant = json!({ "model": config.model, "data": config.data, "pretrain": pretrain });
    if let Some(section) = relevant["pretrain"].as_object_mut() {
        section.remove("output");
        section.remove("classifier");
    }
    // Nor does what the model does not have. Both came later, and weights made before keep their hash.
    if config.model.architecture != Architecture::Wan {
        remove(&mut relevant["model"], "wan");
    }
    if config.model.dit.moe.experts == 0 {
        remove(&mut relevant["model"]["dit"], "moe");
        remove(&mut relevant["pretrain"], "balance_weight");
    }
    let pairs = [
        ("flow-train.version", env!("CARGO_PKG_VERSION").to_owned()),
        (
            "flow-train.config_blake3",
            blake3::hash(relevant.to_string().as_bytes()).to_hex().to_string(),
        ),
        ("flow-train.seed", pretrain.seed.to_string()),
        ("flow-train.steps", steps.to_string()),
        ("flow-train.final_loss", format!("{final_loss:.9}")),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value)).into()
}

fn remove(table: &mut Value, key: &str) {
    if let Some(table) = table.as_object_mut() {
        table.shift_remove(key);
    }
}

/// Trains the classifier and says what came of it.
fn classifier(config: &Config, base: &Path) -> Result<String, Failure> {
    let wanted = &config.pretrain.classifier;
    let digits = Digits::new().or_failed()?;
    let mut settings = ClassifierTraining {
        seed: wanted.seed,
        channels: [wanted.channels, 2 * wanted.channels],
        batch_size: wanted.batch,
        learning_rate: wanted.learning_rate as f32,
        weight_decay: wanted.weight_decay as f32,
        ..ClassifierTraining::default()
    };
    // The classifier counts in passes over its images: as many as the steps need.
    let split = digits
        .split(settings.validation_fraction, settings.split_seed)
        .or_failed()?;
    let steps_per_epoch = split.train.len().div_ceil(wanted.batch);
    settings.epochs = u32::try_from(wanted.steps.div_ceil(steps_per_epoch)).unwrap_or(u32::MAX);
    let (classifier, report) = train_classifier(&settings, &digits).or_bad_input()?;
    let output = under(base, &wanted.output);
    parent(&output)?;
    classifier.save(&output).or_failed()?;
    Ok(format!(
        "classifier {} ({} steps, {:.1} % of {} unseen images read right)\n",
        output.display(),
        report.steps,
        100.0 * report.val_accuracy,
        report.val_images
    ))
}

/// A path of the config, which starts from the config's folder; `./` before it would say nothing.
fn under(base: &Path, path: &Path) -> PathBuf {
    if base == Path::new(".") {
        path.to_owned()
    } else {
        base.join(path)
    }
}

/// Makes the folder that a file goes to, before the work and not after it.
fn parent(path: &Path) -> Result<(), Failure> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    fs::create_dir_all(folder)
        .map_err(|error| Failure::Input(format!("cannot make the folder {}: {error}", folder.display())))
}
