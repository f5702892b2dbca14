//! `pretrain`: flow matching on the data set, and the classifier that serves as reward.

mod description;

use super::{CommandContext, config_report::ConfigUse, nearest, setup_diagnostics};
use crate::arguments::{ExistingFile, PretrainArguments, Purpose};
use crate::failure::{Failure, OrFailure};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress::Count;
use crate::{command_line, progress, terminal};
use description::{file_metadata, metadata, state_description};
use flow_accelerators::LowPrecisionAccelerator;
use flow_config::{Config, DType, Finetune};
use flow_data::{CaptionedImages, CaptionedPictures, Dataset, Digits};
use flow_exchange::Exchange;
use flow_models::StoredDtype;
use flow_models::weights::{MODEL_CONFIG_KEY, config_json};
use flow_pipeline::Size;
use flow_report::{Stopwatch, human_duration};
use flow_rewards::classifier::{ClassifierTraining, train_classifier};
use flow_trainer::distributed::Distribution;
use flow_trainer::optimizer::{AdamWSettings, MomentStorage, RateSchedule};
use flow_trainer::pretrain::{
    Examples, Keeping, PretrainCheckpoint, PretrainSettings, Pretrained, Pretraining, pretrain,
};
use flow_trainer::setup::{self, Environment, PipelineFolders};
use flow_trainer::shared_checkpoint::{self, Offer};
use flow_trainer::undone::{settle, shortfalls};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Trains and writes the weights.
pub fn run(arguments: &PretrainArguments, quiet: bool) -> Result<(), Failure> {
    let mut context = CommandContext::read(&arguments.config, ConfigUse::Pretraining)?;
    context.join(Purpose::Pretrain)?;
    let exchange = context.exchange.clone();
    let quiet = quiet || !exchange.world().is_first();
    // The others wait for this one.
    train_and_write(arguments, &context, quiet).inspect_err(|failure| exchange.abort(&failure.to_string()))
}

fn train_and_write(
    arguments: &PretrainArguments,
    context: &CommandContext,
    quiet: bool,
) -> Result<(), Failure> {
    let config = fresh(context.config());
    let watch = Stopwatch::start();
    let files = Files::of(&config, &context.base, &context.folders);
    let begin = files.begin_together(arguments, &config, &*context.exchange)?;
    let interrupt = Interrupt::listen()?;
    let mut text = String::new();
    if let Some((from, weights)) = begin.weights {
        if let (Some(from), false) = (&from, quiet) {
            let steps = from.steps();
            terminal::note(&format!(
                "note: goes on after step {steps} of {}",
                config.pretrain.steps
            ));
        }
        let keeping = Keeping {
            path: files.state.clone(),
            every: Duration::from_secs(arguments.save_every),
            clock: Box::new(Stopwatch::start()),
            description: state_description(&config, &context.base, &context.folders)?,
            from,
        };
        let (loss, steps) = weights_of(context, &config, &keeping, weights.as_ref(), quiet, interrupt)?;
        let Some(weights) = weights else {
            // The first process writes and speaks.
            return match steps < config.pretrain.steps {
                true => Err(Failure::Interrupted),
                false => Ok(()),
            };
        };
        if steps < config.pretrain.steps {
            let command = command_line::again(&arguments.config, "pretrain", "--resume latest");
            terminal::note(&format!(
                "interrupted after {steps} of {} steps; the state is saved in {}\nto go on: {command}",
                config.pretrain.steps,
                files.state.display()
            ));
            return Err(Failure::Interrupted);
        }
        text.push_str(&format!(
            "loss       {loss:.6} (mean of the last hundredth of {steps} steps)\n\
             time       {}\nweights    {}\n",
            human_duration(watch.wall_s()),
            weights.path().display()
        ));
    }
    if let Some(output) = begin.classifier {
        text.push_str(&classifier(&config, &output)?);
    }
    if !context.exchange.world().is_first() {
        return Ok(());
    }
    if text.is_empty() {
        text = format!(
            "{} is complete; there is nothing to do\n",
            files.weights.display()
        );
    }
    terminal::print(&text)
}

/// Trains the weights and writes them; gives the final loss and the steps that were taken. An interrupted pretraining leaves
/// its state, and a finished one removes it.
fn weights_of(
    context: &CommandContext,
    config: &Config,
    keeping: &Keeping,
    output: Option<&Output>,
    quiet: bool,
    interrupt: Interrupt,
) -> Result<(f64, usize), Failure> {
    parent(&keeping.path)?;
    context.compute(config, |environment| {
        let dataset = setup::dataset(config, environment).or_bad_input()?;
        // Pictures first: their autoencoder is dropped before the transformer is loaded.
        let LearntFrom {
            examples,
            sizes,
            notices,
        } = examples(config, environment, &dataset, quiet)?;
        let common = setup::common(config, environment)
            .and_then(|common| common.set_up())
            .or_bad_input()?;
        let prepared = match config.model.path {
            Some(_) => common
                .conditioner
                .prepare(setup::captions(&*dataset).or_bad_input()?.iter()),
            // At once, so that a sentence encoder is loaded once.
            None => common.conditioner.prepare(dataset.prompts().iter()),
        };
        for notice in notices
            .iter()
            .chain(&prepared.or_failed()?)
            .chain(&dataset.notes())
        {
            if !quiet {
                terminal::note(&format!("note: {notice}"));
            }
        }
        let settings = settings(config);
        // Fewer lines than steps, and at least some.
        let every = (settings.steps / 50).max(1);
        let mut observer = progress::observer(settings.steps, every, quiet, interrupt);
        let models = match sizes {
            Some(sizes) => setup::models_of_sizes(config, environment, &common.model.model, &sizes),
            None => Ok(vec![common.model.model.clone()]),
        };
        let models = models.or_bad_input()?;
        let parts = Pretraining {
            models: &models,
            plan: common.acceleration.training(),
            dataset: &*examples,
            conditioner: &common.conditioner,
            device: &environment.device,
            distribution: &Distribution::of_config(&config.distributed, environment.exchange.clone()),
        };
        let trained = pretrain(
            &parts,
            common.model.weights,
            &settings,
            Some(keeping),
            &mut *observer,
        )
        .or_failed()?;
        let fell_short = shortfalls(&common.acceleration.take_activity(), "pretraining");
        for undone in &fell_short {
            observer.notice(&undone.to_string());
        }
        drop(observer);
        let steps = trained.losses.len();
        if let (true, Some(output)) = (steps == config.pretrain.steps, output) {
            write(config, environment, &trained, output)?;
            // It is whole in the weights; that it cannot be removed harms nothing.
            let _ = fs::remove_file(&keeping.path);
        }
        // The weights are right, and took longer than the config says.
        settle(fell_short, config.acceleration.strict).or_failed()?;
        Ok((trained.final_loss, steps))
    })
}

/// What is learnt from.
struct LearntFrom<'a> {
    examples: Box<dyn Examples + 'a>,
    /// Of pictures in latents the sizes that they are fitted to.
    sizes: Option<Vec<Size>>,
    /// What is worth knowing.
    notices: Vec<String>,
}

/// Pictures in the latents of a diffusers folder, images in those of an autoencoder of their own, or images as they are.
fn examples<'a>(
    config: &Config,
    environment: &Environment<'_>,
    dataset: &'a Arc<dyn Dataset>,
    quiet: bool,
) -> Result<LearntFrom<'a>, Failure> {
    if config.model.own_autoencoder().is_some() {
        let images = dataset.captioned_images().map_or(0, CaptionedImages::len);
        let (mut count, mut before) = (Count::new("encoding", images, quiet), 0);
        let found = setup::encoded_images(config, environment, dataset, &mut |done| {
            (before..done).for_each(|_| count.advance());
            before = done;
        });
        drop(count);
        return Ok(LearntFrom {
            examples: Box::new(found.or_bad_input()?),
            sizes: None,
            notices: Vec::new(),
        });
    }
    if config.model.path.is_none() {
        return Ok(LearntFrom {
            examples: Box::new(setup::pixel_examples(&**dataset).or_bad_input()?),
            sizes: None,
            notices: Vec::new(),
        });
    }
    let pictures = dataset.captioned_pictures().map_or(0, CaptionedPictures::len);
    let mut count = Count::new("encoding", pictures, quiet);
    let found = setup::latent_examples(config, environment, dataset, &mut |_| count.advance());
    drop(count);
    let (examples, notices) = found.or_bad_input()?;
    Ok(LearntFrom {
        sizes: Some(examples.sizes().to_vec()),
        examples: Box::new(examples),
        notices,
    })
}

/// Writes what was trained: all weights, or the adapters as `load_lora_weights` of diffusers reads them.
fn write(
    config: &Config,
    environment: &Environment<'_>,
    trained: &Pretrained,
    output: &Output,
) -> Result<(), Failure> {
    let mut metadata = metadata(config, trained.losses.len(), trained.final_loss);
    let outline = setup::outline(config, &environment.plugins.models, &environment.device).or_failed()?;
    output.make_room_and_say()?;
    if trained.weights.layout().has_adapters() {
        return flow_models::save_adapters(&trained.weights, output.path(), StoredDtype::F32, &metadata)
            .or_failed();
    }
    metadata.insert(MODEL_CONFIG_KEY.into(), config_json(&*outline.model).to_string());
    let dtype = match config.pretrain.output_dtype {
        DType::F32 => StoredDtype::F32,
        DType::Bf16 => StoredDtype::Bf16,
    };
    flow_models::save(&trained.weights, output.path(), dtype, &metadata).or_failed()
}

/// The files of a pretraining.
struct Files {
    /// Where relative paths of the config start.
    base: PathBuf,
    /// Diffusers folders that were opened.
    folders: PipelineFolders,
    weights: PathBuf,
    /// The state of one that is under way, beside the weights.
    state: PathBuf,
    /// If one is to be trained.
    classifier: Option<PathBuf>,
}

/// What a command has to do: each with the place that it goes to.
struct Begin {
    weights: Option<(Option<PretrainCheckpoint>, Option<Output>)>,
    classifier: Option<Output>,
}

impl Files {
    fn of(config: &Config, base: &Path, folders: &PipelineFolders) -> Self {
        let weights = under(base, &config.pretrain.output);
        let wanted = &config.pretrain.classifier;
        let reads = wanted.enabled && config.data.kind == "digits";
        Self {
            base: base.to_owned(),
            folders: folders.clone(),
            state: weights.with_extension("pretraining.ckpt"),
            classifier: reads.then(|| under(base, &wanted.output)),
            weights,
        }
    }

    /// As [`begin`](Self::begin), by the first process of a run; the others do the same, and write nothing.
    fn begin_together(
        &self,
        arguments: &PretrainArguments,
        config: &Config,
        exchange: &dyn Exchange,
    ) -> Result<Begin, Failure> {
        if exchange.world().is_first() {
            let own = self.begin(arguments, config)?;
            if exchange.world().is_several() {
                let from = own.weights.as_ref().map(|(from, _)| from.as_ref());
                let reader = from.flatten().map(PretrainCheckpoint::reader);
                let told = serde_json::to_vec(&(from.is_some(), reader.map(Offer::of))).or_failed()?;
                exchange.gather(&told).or_failed()?;
                if let Some(reader) = reader {
                    shared_checkpoint::give(exchange, reader).or_failed()?;
                }
            }
            return Ok(own);
        }
        let all = exchange.gather(&[]).or_failed()?;
        let (is_trained, from): (bool, Option<Offer>) = serde_json::from_slice(&all[0]).or_failed()?;
        let open = |offer: Offer| {
            let places = [offer.path().to_owned(), self.state.clone()];
            let file = format!("received/rank-{}/checkpoint", exchange.world().rank);
            let file = self.state.with_file_name(file);
            let reader = shared_checkpoint::take(exchange, &offer, &places, &file).or_failed()?;
            let described = state_description(config, &self.base, &self.folders)?;
            PretrainCheckpoint::of(reader, &described).or_bad_input()
        };
        Ok(Begin {
            weights: is_trained
                .then(|| Ok::<_, Failure>((from.map(open).transpose()?, None)))
                .transpose()?,
            classifier: None,
        })
    }

    /// What there is to do, and whether it may be done, before it is done.
    fn begin(&self, arguments: &PretrainArguments, config: &Config) -> Result<Begin, Failure> {
        let place = |path: &Path, key: &str, policy| Output::at(path, key, policy);
        let (weights_key, classifier_key) = ("pretrain.output", "pretrain.classifier.output");
        let Some(from) = &arguments.resume else {
            return self.anew(arguments.there.on_exists);
        };
        // What was there when it began was allowed for then; it is moved aside if it is still there.
        let overwrite = ExistingFile::Overwrite;
        let missing = self.classifier.as_ref().filter(|path| !path.exists());
        let classifier = missing.map(|path| place(path, classifier_key, overwrite));
        let latest = from == Path::new("latest");
        if latest && !self.state.exists() {
            if !self.weights.exists() {
                return Err(Failure::Input(format!(
                    "there is no pretraining to go on with: neither {} nor {} is there. Begin one without `--resume`",
                    self.state.display(),
                    self.weights.display()
                )));
            }
            if !self.is_complete(config) {
                return Err(Failure::Input(format!(
                    "there is no pretraining to go on with: {} is not there, and {} are not the weights of this config. \
                     Begin one with `--on-exists overwrite`, which moves them aside",
                    self.state.display(),
                    self.weights.display()
                )));
            }
            return Ok(Begin {
                weights: None,
                classifier: classifier.transpose()?,
            });
        }
        let path = if latest { &self.state } else { from };
        if !path.is_file() {
            return Err(Failure::Input(format!(
                "there is no checkpoint `{}`; pass `--resume latest`, or the file that a pretraining keeps beside its weights{}",
                path.display(),
                nearest::path_in_words(path, |path| nearest::has_ending(path, "ckpt"))
            )));
        }
        let described = state_description(config, &self.base, &self.folders)?;
        let from = PretrainCheckpoint::open(path, &described)
            .map_err(|error| setup_diagnostics::of_state(&error))?;
        Ok(Begin {
            weights: Some((Some(from), Some(place(&self.weights, weights_key, overwrite)?))),
            classifier: classifier.transpose()?,
        })
    }

    fn anew(&self, policy: ExistingFile) -> Result<Begin, Failure> {
        if self.state.exists() {
            if policy != ExistingFile::Overwrite {
                return Err(Failure::Input(format!(
                    "a pretraining of {} was stopped, and its state is {}. Go on with `--resume latest`, or begin anew with \
                     `--on-exists overwrite`, which moves it aside",
                    self.weights.display(),
                    self.state.display()
                )));
            }
            Output::at(&self.state, "pretrain.output", policy)?.make_room_and_say()?;
        }
        let weights = Output::at(&self.weights, "pretrain.output", policy)?;
        let classifier = self.classifier.as_ref();
        let classifier = classifier.map(|path| Output::at(path, "pretrain.classifier.output", policy));
        Ok(Begin {
            weights: Some((None, Some(weights))),
            classifier: classifier.transpose()?,
        })
    }

    /// Whether the weights are those that this config makes, by what their file says.
    fn is_complete(&self, config: &Config) -> bool {
        let ours = metadata(config, config.pretrain.steps, 0.0);
        let keys = ["flow-train.config_blake3", "flow-train.steps"];
        let theirs = file_metadata(&self.weights).unwrap_or_default();
        keys.iter().all(|key| theirs.get(*key) == ours.get(*key))
    }
}

/// The config as pretraining takes it: all weights, from random values of its own seed; of a diffusers folder its weights, all of
/// them or a LoRA as the config says.
pub fn fresh(config: &Config) -> Config {
    let mut config = config.clone();
    if config.model.path.is_none() {
        config.model.weights = None;
        config.model.adapter = None;
        config.model.finetune = Finetune::Full;
        // No weight is frozen.
        let stores = |name: &str| name.eq_ignore_ascii_case(LowPrecisionAccelerator::NAME);
        config.acceleration.shared.retain(|entry| !stores(&entry.name));
    }
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
            schedule: RateSchedule::default(),
            moments: MomentStorage::F32,
            seed: pretrain.seed,
        },
    }
}

/// Trains the classifier and says what came of it.
fn classifier(config: &Config, output: &Output) -> Result<String, Failure> {
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
    output.make_room_and_say()?;
    classifier.save(output.path()).or_failed()?;
    Ok(format!(
        "classifier {} ({} steps, {:.1} % of {} unseen images read right)\n",
        output.path().display(),
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
