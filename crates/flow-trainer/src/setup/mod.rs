//! From a config to the trainer of a run, and to its parts.
//!
//! Every mapping from a section of the config to a part stands here; nothing below reads the config.

mod blocks;
mod checkpointing;
mod described;
mod elsewhere;
mod examples;
mod exploration;
mod folder;
mod folders;
mod latents;
mod model;
mod networks;
mod optimizer;
mod paths;
mod rewards;
mod schedule;
mod served;
mod settings;
mod sizes;
mod staleness;
mod teachers;

pub use checkpointing::{TrainingSteps, regions};
pub use described::{Said, said_by_adapter, said_by_weights};
pub use elsewhere::algorithm_fits;
pub(crate) use examples::LatentSource;
pub use examples::{captions, has_examples, latent_examples, models_of_sizes, pixel_examples};
pub use folder::{completed_by_folder, decoder, folder_size, pipeline, prompt_cache, said_by_folder};
pub use folders::PipelineFolders;
pub use latents::{encoded_images, own_autoencoder, sentence_encoder};
pub use model::{ModelOutline, ModelParts, model, outline};
pub use optimizer::settings as optimizer_settings;
pub use paths::{start_in_config, start_on_command_line};
pub use rewards::{BuiltRewards, ScoredPrompts, rewards};
pub use schedule::{average, deterministic, schedule, step_sigmas};

use crate::algorithm::{Algorithm, AlgorithmContext, Memory, ReferenceWeights, SlowCopy};
use crate::branching::Branches;
use crate::conditions::Conditioner;
use crate::description::Description;
use crate::distributed::Distribution;
use crate::error::TrainError;
use crate::frozen::FrozenWeights;
use crate::geometry::{BatchGeometry, PromptSampler};
use crate::geometry_history::GeometryHistory;
use crate::optimizer::AdamW;
use crate::plugins::Plugins;
use crate::policy::Policy;
use crate::records::Records;
use crate::rollout::Sampler;
use crate::scheduler::Schedule;
use crate::text::EncodedText;
use crate::trainer::{EvaluationSettings, PolicyWeights, Progress, TrainState, Trainer};
use crate::undone::{Undone, settle, shortfalls};
use flow_accel::{Acceleration, AcceleratorRegistry, Arrangement};
use flow_checkpoint::{MemoryProbe, Policy as CheckpointPolicy};
use flow_config::{Config, EvalWeights, TextConfig};
use flow_core::{Backends, ModelSpec, RegionEngine, RegionKind, device::ComputeDevice};
use flow_data::{Dataset, Prompt};
use flow_exchange::Exchange;
use flow_registry::Refusal;
use flow_validate::{TrainerKind, checkpoint_policy, resolve};
use std::path::Path;
use std::sync::Arc;

/// What the facade provides: a device, a plan, and registries of what can be asked for by name.
#[derive(Debug)]
pub struct Environment<'a> {
    /// Where tensors live.
    pub device: ComputeDevice,
    /// Who computes where no accelerator does. It gives the same bits in rollout and training.
    pub plan: Arc<Backends>,
    /// Accelerators.
    pub accelerators: &'a AcceleratorRegistry,
    /// What the config can name.
    pub plugins: &'a Plugins,
    /// Folder that relative paths of the config start from.
    pub base: &'a Path,
    /// Measures the device's memory, which a budget of activation checkpointing needs.
    pub memory_probe: Option<Arc<dyn MemoryProbe>>,
    /// Diffusers folders that were opened.
    pub folders: PipelineFolders,
    /// To the other ranks of a run on several processes.
    pub exchange: Arc<dyn Exchange>,
}

impl Environment<'_> {
    /// The same with another engine of regions in its plan.
    fn with_regions(&self, regions: Arc<dyn RegionEngine>) -> Self {
        let plan = Backends {
            regions,
            ..(*self.plan).clone()
        };
        Self {
            device: self.device.clone(),
            plan: Arc::new(plan),
            memory_probe: self.memory_probe.clone(),
            folders: self.folders.clone(),
            exchange: self.exchange.clone(),
            ..*self
        }
    }
}

/// The data set of a config.
///
/// # Errors
/// If there is none of its name, or a setting is outside its range.
pub fn dataset(config: &Config, environment: &Environment<'_>) -> Result<Arc<dyn Dataset>, TrainError> {
    let registry = &environment.plugins.data;
    Ok(registry.build(&config.data.kind, &config.data.params, environment.base)?)
}

/// What makes the config's prompts into what a model of `spec` reads; `guided`: with the empty prompt beside each.
///
/// # Errors
/// If the two do not fit, or the file of encoded prompts is not there or not right.
pub fn conditioner(
    config: &Config,
    environment: &Environment<'_>,
    dataset: &dyn Dataset,
    spec: &ModelSpec,
    guided: bool,
) -> Result<Conditioner, TrainError> {
    let device = &environment.device;
    let embedded = spec
        .guidance
        .then_some(config.sampling.embedded_guidance_scale as f32);
    let Some(width) = spec.text else {
        let tokens = Conditioner::new(dataset, spec, guided, device).map_err(TrainError::setting)?;
        return Ok(tokens.with_embedded_guidance(embedded));
    };
    let text = match &config.text {
        TextConfig::Encoders(encoders) => {
            let encoders = folder::encoders(config, encoders, environment)?;
            return Ok(Conditioner::encoders(encoders, guided, device).with_embedded_guidance(embedded));
        }
        TextConfig::Bert(bert) => {
            let sentences = latents::sentences(bert, environment, width)?;
            return Ok(Conditioner::sentences(sentences, guided, device).with_embedded_guidance(embedded));
        }
        TextConfig::Words(words) => {
            EncodedText::words(dataset, width, words.tokens, words.seed, device).map_err(Refusal::because)
        }
        TextConfig::File(file) => {
            let path = environment.base.join(&file.path);
            let read = EncodedText::file(dataset, width, &path, device);
            read.map_err(|problem| match path.exists() {
                true => Refusal::because(problem),
                false => Refusal::new(problem, start_in_config(&file.path, environment.base)),
            })
        }
    };
    let text = text.map_err(|refusal| TrainError::setting(refusal).about("text"))?;
    Ok(Conditioner::encoded(text, guided, device).with_embedded_guidance(embedded))
}

/// Held-out prompts for evaluation, evenly spread over those there are.
pub fn evaluation_prompts(dataset: &dyn Dataset, wanted: usize) -> Vec<Prompt> {
    let held_out = dataset.held_out_prompts();
    let count = wanted.min(held_out.len());
    (0..count)
        .map(|index| held_out[index * held_out.len() / count].clone())
        .collect()
}

/// Checks that images of a model of `spec`, decoded by the autoencoder that `config` names, if any, have the shape of those of `dataset`;
/// relative paths start from `base`. A model of a diffusers folder fits any data set.
///
/// # Errors
/// [`TrainError::Setting`] with both shapes; an autoencoder that is not there, or has other latents.
pub fn fits(config: &Config, base: &Path, spec: &ModelSpec, dataset: &dyn Dataset) -> Result<(), TrainError> {
    let latent = spec.latent;
    if config.model.path.is_some() {
        return Ok(());
    }
    if latent.frames != 1 {
        return Err(TrainError::setting(format!(
            "the model makes {} frames, and without `model.path`, a diffusers folder, there is no autoencoder for videos",
            latent.frames
        )));
    }
    if let Some(path) = config.model.own_autoencoder() {
        let folder = own_autoencoder(path, base, latent)?;
        return latents::decodes_to_images(folder.config(), latent, dataset);
    }
    let of_pairs = || dataset.preferences().and_then(|pairs| pairs.images);
    let Some(images) = dataset.captioned_images().or_else(of_pairs) else {
        return Ok(());
    };
    let shape = images.image_shape();
    if (latent.channels, latent.height, latent.width) != (shape.channels, shape.height, shape.width) {
        return Err(TrainError::setting(format!(
            "the model makes images of {}x{}x{}, data set `{}` has {}x{}x{} (channels, height, width)",
            latent.channels,
            latent.height,
            latent.width,
            dataset.name(),
            shape.channels,
            shape.height,
            shape.width
        )));
    }
    Ok(())
}

/// Model, data and conditioner, as sampling and evaluation need them too. `S` is an [`Acceleration`] once it is set up.
pub struct Common<S = Arrangement> {
    /// The data set.
    pub dataset: Arc<dyn Dataset>,
    /// Model and weights.
    pub model: ModelParts,
    /// From prompts to conditions; with the empty condition.
    pub conditioner: Conditioner,
    /// The sampler of evaluation.
    pub evaluation: EvaluationSettings,
    /// The accelerators of the config.
    pub acceleration: S,
    /// What is worth knowing about them.
    pub notices: Vec<String>,
    /// Whether what an accelerator does not do is an error.
    pub strict: bool,
}

impl Common<Acceleration> {
    /// What accelerators fell short of since this was last asked; `within` says in words what they were in force in.
    ///
    /// # Errors
    /// The first of it, if `acceleration.strict` is set.
    pub fn shortfalls(&self, within: &str) -> Result<Vec<Undone>, TrainError> {
        let activity = self.acceleration.take_activity();
        settle(shortfalls(&activity, within), self.strict)
    }
}

impl Common {
    /// Sets the accelerators up with the weights there are, which are those that are computed with.
    ///
    /// # Errors
    /// If an accelerator cannot work with these weights.
    pub fn set_up(self) -> Result<Common<Acceleration>, TrainError> {
        let acceleration = self.acceleration.set_up(&self.model.weights)?;
        Ok(Common {
            acceleration,
            dataset: self.dataset,
            model: self.model,
            conditioner: self.conditioner,
            evaluation: self.evaluation,
            notices: self.notices,
            strict: self.strict,
        })
    }
}

/// The accelerators of a config, for a model and a trainer, and what is worth knowing about them.
///
/// # Errors
/// [`TrainError::Acceleration`] with everything that forbids them.
pub fn acceleration(
    config: &Config,
    environment: &Environment<'_>,
    model: &ModelSpec,
    trainer: &TrainerKind,
) -> Result<(Arrangement, Vec<String>), TrainError> {
    let (findings, acceleration) = resolve(
        config,
        environment.accelerators,
        &environment.plan,
        model,
        trainer,
    );
    match acceleration {
        Some(acceleration) => Ok((acceleration, findings.iter().map(ToString::to_string).collect())),
        None => Err(TrainError::Acceleration(findings)),
    }
}

/// Assembles what sampling and evaluation need.
///
/// # Errors
/// Whatever does not fit, with how to mend it.
pub fn common(config: &Config, environment: &Environment<'_>) -> Result<Common, TrainError> {
    common_for(
        config,
        environment,
        model(config, environment)?,
        &TrainerKind::of(config, &environment.plugins.catalog()),
        &[],
    )
}

/// As [`common`], for a trainer that may not be the config's, which calls the model under these guidance scales beside those of the
/// config.
fn common_for(
    config: &Config,
    environment: &Environment<'_>,
    model: ModelParts,
    trainer: &TrainerKind,
    guidance_scales: &[f64],
) -> Result<Common, TrainError> {
    let dataset = dataset(config, environment)?;
    let spec = model.model.spec();
    fits(config, environment.base, spec, &*dataset)?;
    let decoder = folder::decoder(config, environment, spec)?;
    let kernels = &environment.plan.kernels;
    if spec.regions.contains(&RegionKind::Moe) && kernels.ops().experts.is_none() {
        return Err(TrainError::setting(format!(
            "the model has experts, and the kernels `{}` of this device compute none",
            kernels.name()
        ))
        .with_help("set `model.dit.moe.experts = 0`, or `device.kind = \"cpu\"`")
        .about("model"));
    }
    // Conditions carry the empty branch whenever one of rollout, loss and evaluation is guided; a policy without guidance
    // does not look at it. A model that embeds its scale is told that of a reference.
    let scales = [config.sampling.guidance_scale, config.eval_guidance_scale()];
    let of_losses = guidance_scales.iter().filter(|_| !spec.guidance);
    let guided = scales.iter().chain(of_losses).any(|scale| *scale != 1.0);
    let conditioner = conditioner(config, environment, &*dataset, spec, guided)?;
    let environment = &environment.with_regions(checkpointing::regions(config, spec)?);
    let (acceleration, mut notices) = acceleration(config, environment, spec, trainer)?;
    notices.extend(dataset.notes());
    let text_tokens = conditioner.text_tokens();
    served::check(config, &acceleration, spec, &environment.device, text_tokens)?;
    let policy = Policy::new(model.model.clone(), config.eval_guidance_scale() as f32);
    let sampler = sampler(environment, &acceleration, policy, config.evaluation.seed);
    let sizes = sizes::prompt_sizes(config, environment, &*dataset, &*model.model)?;
    let scale = config.eval_guidance_scale();
    let own = (&model.model, &decoder);
    let others = sizes::others(config, environment, own, &sizes, scale, deterministic)?;
    for at in &others {
        let spec = at.policy.model.spec();
        served::check(config, &acceleration, spec, &environment.device, text_tokens)?;
    }
    let grid = &config.evaluation.grid;
    let evaluation = EvaluationSettings {
        every: config.evaluation.every as u64,
        prompts: evaluation_prompts(&*dataset, config.evaluation.prompts),
        images_per_prompt: config.evaluation.images_per_prompt,
        sampler,
        schedule: deterministic(config, spec.tokens)?,
        decoder,
        sizes,
        others,
        with_average: config.evaluation.weights == EvalWeights::Ema,
        grid: (grid.rows, grid.columns, grid.scale as u32),
    };
    Ok(Common {
        dataset,
        model,
        conditioner,
        evaluation,
        acceleration,
        notices,
        strict: config.acceleration.strict,
    })
}

/// The algorithm that a config names; `tokens` is the model's sequence length.
///
/// # Errors
/// If there is none of its name, or a constant is outside its range.
pub fn algorithm(
    config: &Config,
    plugins: &Plugins,
    tokens: usize,
) -> Result<Box<dyn Algorithm>, TrainError> {
    plugins.algorithms.build(&AlgorithmContext { config, tokens })
}

/// Builds the trainer of a run. Files of weights that are not there are named in [`Trainer::absent`]: a checkpoint can stand in for them, and
/// nothing else can.
///
/// # Errors
/// Whatever does not fit, with how to mend it.
pub fn trainer<A: Algorithm>(
    config: &Config,
    environment: &Environment<'_>,
    algorithm: A,
) -> Result<Trainer<A>, TrainError> {
    // Before anything is loaded: the contents of files as they are when the run begins.
    let mut description = Description::of(config, environment.base, &environment.folders)?;
    let model = model::model_with_absent_files(config, environment)?;
    let mut trainer = trainer_with_model(config, environment, model, algorithm)?;
    description.add_prompts(&*trainer.dataset);
    trainer.frozen = FrozenWeights::of(&description, trainer.state.weights.current.layout());
    trainer.description = description;
    Ok(trainer)
}

/// As [`trainer`], of a model that is there already: one of the same `[model]` and precision. What files hold is not looked at, so
/// that a run which goes on with this trainer is compared by the names of files alone.
///
/// # Errors
/// Whatever does not fit, with how to mend it.
pub fn trainer_with_model<A: Algorithm>(
    config: &Config,
    environment: &Environment<'_>,
    model: ModelParts,
    algorithm: A,
) -> Result<Trainer<A>, TrainError> {
    let kind = TrainerKind {
        name: algorithm.name().into(),
        paradigm: Some(algorithm.paradigm()),
    };
    let Common {
        dataset,
        model,
        conditioner,
        evaluation,
        mut acceleration,
        mut notices,
        ..
    } = common_for(config, environment, model, &kind, &algorithm.guidance_scales())?;
    staleness::check(config.sampling.staleness, &algorithm, acceleration.audit_share())?;
    let records = Records::of(config, environment, &algorithm, &dataset)?;
    let device = &environment.device;
    let sampling = &config.sampling;
    let geometry = exploration::geometry(config)?;
    let distribution = Distribution::of_config(&config.distributed, environment.exchange.clone());
    distribution.fits(&geometry)?;
    expect_alone(environment, &acceleration)?;
    let tokens = model.model.spec().tokens;
    let prompts = dataset.train_prompts();
    teachers::check_prompts(algorithm.teachers(), &*dataset, &prompts)?;
    let schedule = schedule(config, tokens)?;
    let policy = Policy::new(model.model.clone(), sampling.guidance_scale as f32);
    let mut checkpoint_plan = None;
    if let CheckpointPolicy::Budget { peak_gib } = checkpoint_policy(config) {
        let losses = losses_of_update(config, &algorithm, &schedule, &geometry);
        let passes = device.concurrency().min(losses).max(1);
        let prompts = (&conditioner, &prompts[..]);
        let steps = checkpointing::training_steps(config, &model, prompts, passes, environment);
        let (regions, record) = checkpointing::planned(peak_gib, &steps, acceleration, environment)?;
        let planned = environment.with_regions(regions);
        (acceleration, notices) = self::acceleration(config, &planned, model.model.spec(), &kind)?;
        notices.extend(dataset.notes());
        checkpoint_plan = Some(record);
    }
    let sampler = sampler(environment, &acceleration, policy, config.run.seed);
    let own = (&model.model, &evaluation.decoder);
    let others = sizes::others_of_rollouts(config, environment, own, &evaluation.sizes)?;
    let explorer = exploration::explorer(config, environment, &acceleration, (tokens, &others[..]))?;
    let average = average(config)?;
    let absent = model.absent.clone();
    let (state, whole) = first_state(
        config,
        environment,
        &algorithm,
        model,
        &distribution,
        average.is_some(),
    )?;
    notices.extend(whole);
    let scored = (&prompts[..], &evaluation);
    let (rewards, evaluation_rewards) =
        rewards::of_run(config, environment, &*dataset, scored, records.is_some())?;
    let settings = settings::settings(config, geometry, average, acceleration.is_exact_on_policy());
    let prompt_sampler =
        PromptSampler::with_repeats(prompts.len(), sampling.prompts_per_step, config.run.seed)?;
    Ok(Trainer {
        settings,
        algorithm,
        acceleration,
        notices,
        absent,
        checkpoint_plan,
        sampler,
        schedule,
        others,
        explorer,
        conditioner,
        prompt_sampler: prompt_sampler.following(GeometryHistory::new(&geometry)),
        description: Description::of_config(config),
        frozen: FrozenWeights::InCheckpoint,
        catalog: environment.plugins.catalog(),
        prompts,
        dataset,
        records,
        rewards,
        evaluation_rewards,
        evaluation,
        state,
        distribution,
        progress: Progress::begun(),
        files: None,
    })
}

/// What a run begins with: the policy's weights with the copies that are kept of them, their optimizer, and the networks beside them. And a
/// notice if processes share out the optimizer's state, but not the lower halves of weights.
fn first_state<A: Algorithm>(
    config: &Config,
    environment: &Environment<'_>,
    algorithm: &A,
    model: ModelParts,
    distribution: &Distribution,
    has_average: bool,
) -> Result<(TrainState, Option<String>), TrainError> {
    // Averages are f32, in one piece.
    let slow = || model.weights.whole(&*environment.plan.kernels);
    let networks = networks::networks(config, environment, algorithm, &model);
    let mut weights = PolicyWeights {
        average: has_average.then(slow),
        old: algorithm.keeps(SlowCopy::Old).then(slow),
        sampling: algorithm.keeps(SlowCopy::Sampling).then(slow),
        reference: (algorithm.reference() == Some(ReferenceWeights::Snapshot)).then(|| model.weights.clone()),
        previous: None,
        teachers: teachers::teachers(config, environment, &model, algorithm.teachers())?,
        current: model.weights,
    };
    let shards = distribution.shards(&weights.current, &model.trained);
    let whole = shards
        .as_ref()
        .and_then(|shards| weights.share_lower_halves(shards));
    let notice = whole.map(|reason| {
        format!(
            "processes share out moments, but no halves of weights, and 4 bytes of a value travel: {reason}"
        )
    });
    let layout = weights.current.layout();
    let device = &environment.device;
    let optimizer = AdamW::sharded(optimizer_settings(config), layout, model.trained, shards, device);
    let state = TrainState {
        iteration: 0,
        weights,
        optimizer,
        networks,
        memory: Memory::default(),
    };
    Ok((state, notice))
}

/// A sampler with the kernels of `acceleration`, for pictures of the first size.
fn sampler(environment: &Environment<'_>, acceleration: &Arrangement, policy: Policy, seed: u64) -> Sampler {
    Sampler {
        policy,
        kernels: acceleration.kernels().clone(),
        device: environment.device.clone(),
        seed,
        size: 0,
    }
}

/// That a policy which learns from some of its own samples has all of them.
fn expect_alone(environment: &Environment<'_>, acceleration: &Arrangement) -> Result<(), TrainError> {
    let ranks = environment.exchange.world().ranks;
    match flow_validate::learns_alone(ranks, acceleration.audit_share()) {
        None => Ok(()),
        Some((problem, help)) => Err(TrainError::setting(problem)
            .with_help(help)
            .about("acceleration.rollout")),
    }
}

/// Losses of the first optimizer step: one for each micro-batch and position.
fn losses_of_update(
    config: &Config,
    algorithm: &impl Algorithm,
    schedule: &Schedule,
    geometry: &BatchGeometry,
) -> usize {
    let positions = algorithm.positions(schedule, config.run.seed, 0, 0);
    let branches = Branches::new(&config.sampling.branching, geometry.group_size(), schedule, 0);
    let positions = branches.positions(positions).len();
    positions * geometry.micro_batches() / geometry.updates()
}
