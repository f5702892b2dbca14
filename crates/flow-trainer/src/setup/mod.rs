//! From a config to the parts of a run.
//!
//! Every mapping from a section of the config to a part stands here; nothing below reads the config.

mod blocks;
mod checkpointing;
mod described;
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
mod sizes;
mod staleness;
mod teachers;

pub use checkpointing::{TrainingSteps, regions};
pub use described::{Said, said_by_adapter, said_by_weights};
pub(crate) use examples::LatentSource;
pub use examples::{captions, has_examples, latent_examples, models_of_sizes, pixel_examples};
pub use folder::{completed_by_folder, decoder, folder_size, pipeline, prompt_cache, said_by_folder};
pub use folders::PipelineFolders;
pub use latents::{encoded_images, own_autoencoder, sentence_encoder};
pub use model::{ModelOutline, ModelParts, model, outline};
pub use optimizer::settings as optimizer_settings;
pub use paths::{start_in_config, start_on_command_line};
pub use rewards::{BuiltRewards, RewardParts, ScoredPrompts, rewards};
pub use schedule::{average, deterministic, schedule, step_sigmas};

use crate::algorithm::{Algorithm, AlgorithmContext, Memory, ReferenceWeights, SlowCopy};
use crate::branching::Branches;
use crate::conditions::Conditioner;
use crate::description::Description;
use crate::distributed::Distribution;
use crate::error::TrainError;
use crate::frozen::FrozenWeights;
use crate::geometry::PromptSampler;
use crate::geometry_history::GeometryHistory;
use crate::optimizer::AdamW;
use crate::plugins::Plugins;
use crate::policy::Policy;
use crate::records::Records;
use crate::rollout::Sampler;
use crate::session::{
    AuditMode, EvaluationSettings, Parts, PolicyWeights, SessionSettings, TrainState, WatchSettings,
};
use crate::text::EncodedText;
use crate::undone::{Undone, settle, shortfalls};
use flow_accel::{Acceleration, AcceleratorRegistry, Arrangement};
use flow_checkpoint::{MemoryProbe, Policy as CheckpointPolicy};
use flow_config::{Config, EvalWeights, OnPolicyAudit, TextConfig};
use flow_core::{Backends, CallModel, ModelSpec, RegionEngine, RegionKind, device::ComputeDevice};
use flow_data::{Dataset, Prompt};
use flow_exchange::Exchange;
use flow_validate::{Trainer, checkpoint_policy, resolve};
use std::num::NonZeroUsize;
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
    pub gauge: Option<Arc<dyn MemoryProbe>>,
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
            gauge: self.gauge.clone(),
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
        let tokens = Conditioner::new(dataset, spec, guided, device).map_err(TrainError::Setting)?;
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
        TextConfig::Words(words) => EncodedText::words(dataset, width, words.tokens, words.seed, device),
        TextConfig::File(file) => {
            let path = environment.base.join(&file.path);
            let read = EncodedText::file(dataset, width, &path, device);
            read.map_err(|problem| match path.exists() {
                true => problem,
                false => format!("{problem}; {}", start_in_config(&file.path, environment.base)),
            })
        }
    };
    let text = text.map_err(TrainError::Setting)?;
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
        return Err(TrainError::Setting(format!(
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
        return Err(TrainError::Setting(format!(
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
    trainer: &Trainer,
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
        &Trainer::of(config, &environment.plugins.catalog()),
        &[],
    )
}

/// As [`common`], for a trainer that may not be the config's, which calls the model under these guidance scales beside those of the
/// config.
fn common_for(
    config: &Config,
    environment: &Environment<'_>,
    model: ModelParts,
    trainer: &Trainer,
    guidance_scales: &[f64],
) -> Result<Common, TrainError> {
    let dataset = dataset(config, environment)?;
    let spec = model.model.spec();
    fits(config, environment.base, spec, &*dataset)?;
    let decoder = folder::decoder(config, environment, spec)?;
    let kernels = &environment.plan.kernels;
    if spec.regions.contains(&RegionKind::Moe) && kernels.ops().experts.is_none() {
        return Err(TrainError::Setting(format!(
            "the model has experts, and the kernels `{}` of this device compute none; set `model.dit.moe.experts = 0`, or \
             `device.kind = \"cpu\"`",
            kernels.name()
        )));
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
    let sampler = Sampler {
        policy: Policy::new(model.model.clone(), config.eval_guidance_scale() as f32),
        kernels: acceleration.kernels().clone(),
        device: environment.device.clone(),
        seed: config.evaluation.seed,
        size: 0,
    };
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

/// Assembles a run. Files of weights that are not there are named in [`Parts::absent`]: a checkpoint can stand in for them, and
/// nothing else can.
///
/// # Errors
/// Whatever does not fit, with how to mend it.
pub fn parts<A: Algorithm>(
    config: &Config,
    environment: &Environment<'_>,
    algorithm: A,
) -> Result<Parts<A>, TrainError> {
    // Before anything is loaded: the contents of files as they are when the run begins.
    let mut description = Description::of(config, environment.base, &environment.folders)?;
    let model = model::model_with_absent_files(config, environment)?;
    let parts = parts_of(config, environment, model, algorithm)?;
    description.add_prompts(&*parts.dataset);
    Ok(Parts {
        frozen: FrozenWeights::of(&description, parts.state.weights.current.layout()),
        description,
        ..parts
    })
}

/// As [`parts`], of a model that is there already: one of the same `[model]` and precision. What files hold is not looked at, so
/// that a run which goes on with these parts is compared by the names of files alone.
///
/// # Errors
/// Whatever does not fit, with how to mend it.
pub fn parts_of<A: Algorithm>(
    config: &Config,
    environment: &Environment<'_>,
    model: ModelParts,
    algorithm: A,
) -> Result<Parts<A>, TrainError> {
    let trainer = Trainer {
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
        strict,
    } = common_for(config, environment, model, &trainer, &algorithm.guidance_scales())?;
    staleness::check(config.sampling.staleness, &algorithm, &acceleration)?;
    let records = Records::of(config, environment, &algorithm, &dataset)?;
    let device = &environment.device;
    let sampling = &config.sampling;
    let geometry = exploration::geometry(config)?;
    let distribution = Distribution::of_config(&config.distributed, environment.exchange.clone());
    distribution.fits(&geometry)?;
    if environment.exchange.world().is_several() && acceleration.audit_share() > 0.0 {
        return Err(TrainError::Setting(
            "an accelerator of `acceleration.rollout` compares some of its samples with exact ones and learns from them, which several \
             processes would each do by their own samples; take another policy than `auto`, or start one process"
                .into(),
        ));
    }
    let tokens = model.model.spec().tokens;
    let prompts = dataset.train_prompts();
    teachers::check_prompts(algorithm.teachers(), &*dataset, &prompts)?;
    let schedule = schedule(config, tokens)?;
    let policy = Policy::new(model.model.clone(), sampling.guidance_scale as f32);
    let mut checkpoint_plan = None;
    if let CheckpointPolicy::Budget { peak_gib } = checkpoint_policy(config) {
        let positions = algorithm.positions(&schedule, config.run.seed, 0, 0);
        let branches = Branches::new(&sampling.branching, geometry.group_size(), &schedule, 0);
        let positions = branches.positions(positions).len();
        let units = positions * geometry.micro_batches() / geometry.updates();
        let passes = device.concurrency().min(units).max(1);
        let prompts = (&conditioner, &prompts[..]);
        let steps = checkpointing::training_steps(config, &model, prompts, passes, environment);
        // The steps that are measured have accelerators of their own.
        let measured = acceleration.set_up(&model.weights)?;
        // Called as it is: a recording of the first pass would be replayed in place of those that are measured.
        let plan = Backends {
            velocities: Arc::new(CallModel),
            ..(**measured.training()).clone()
        };
        let accelerated = Environment {
            plan: Arc::new(plan),
            ..environment.with_regions(measured.training().regions.clone())
        };
        let (regions, record) = checkpointing::planned(peak_gib, &steps, &accelerated)?;
        let planned = environment.with_regions(regions);
        (acceleration, notices) = self::acceleration(config, &planned, model.model.spec(), &trainer)?;
        notices.extend(dataset.notes());
        checkpoint_plan = Some(record);
    }
    let sampler = Sampler {
        policy,
        kernels: acceleration.kernels().clone(),
        device: device.clone(),
        seed: config.run.seed,
        size: 0,
    };
    let own = (&model.model, &evaluation.decoder);
    let others = sizes::others_of_rollouts(config, environment, own, &evaluation.sizes)?;
    let explorer = exploration::explorer(config, environment, &acceleration, (tokens, &others[..]))?;
    let average = average(config)?;
    // Averages are f32, in one piece.
    let slow = || model.weights.whole(&*environment.plan.kernels);
    let networks = networks::networks(config, environment, &algorithm, &model);
    let weights = PolicyWeights {
        average: average.as_ref().map(|_| slow()),
        old: algorithm.keeps(SlowCopy::Old).then(slow),
        sampling: algorithm.keeps(SlowCopy::Sampling).then(slow),
        reference: (algorithm.reference() == Some(ReferenceWeights::Snapshot)).then(|| model.weights.clone()),
        previous: None,
        teachers: teachers::teachers(config, environment, &model, algorithm.teachers())?,
        current: model.weights,
    };
    let layout = weights.current.layout();
    let shards = distribution.shards(&weights.current, &model.trained);
    let optimizer = AdamW::sharded(optimizer_settings(config), layout, model.trained, shards, device);
    let threads = rewards::threads(environment.exchange.world().local_ranks);
    let of = |prompts| ScoredPrompts {
        dataset: &*dataset,
        prompts,
    };
    let mut built = BuiltRewards::default();
    // Records are scored by nobody; evaluation needs no reward where there is none.
    let trained_on = match records {
        Some(_) => RewardParts::none()?,
        None => rewards(&config.rewards, environment, of(&prompts), threads, &mut built)?,
    };
    let evaluated_by = match config.effective_eval_rewards() {
        [] if records.is_some() && evaluation.every == 0 => RewardParts::none()?,
        eval_rewards => rewards(
            eval_rewards,
            environment,
            of(&evaluation.prompts),
            threads,
            &mut built,
        )?,
    };
    let keep = NonZeroUsize::new(config.checkpoints.keep).unwrap_or(NonZeroUsize::MAX);
    let settings = SessionSettings {
        seed: config.run.seed,
        iterations: config.run.steps as u64,
        geometry,
        initial_noise: sampling.initial_noise,
        branching: sampling.branching.clone(),
        staleness: sampling.staleness,
        advantage: (&config.advantage).into(),
        average,
        audit: match config.audit.on_policy {
            OnPolicyAudit::Stop => AuditMode::Stop,
            OnPolicyAudit::Warn => AuditMode::Warn,
            OnPolicyAudit::Off => AuditMode::Off,
        },
        drift_groups: config.audit.drift_groups,
        drift_every: config.audit.drift_every as u64,
        watch: WatchSettings {
            every: config.watch.every as u64,
            window: config.watch.window,
            least_fall: config.watch.least_fall,
            judges: config.judges(),
        },
        lossless: acceleration.is_exact_on_policy(),
        strict,
        checkpoint_every: config.checkpoints.every as u64,
        checkpoints_kept: keep,
        tensorboard_every: if config.logging.tensorboard {
            config.logging.every.max(1) as u64
        } else {
            0
        },
        html_report: config.logging.html_report,
    };
    Ok(Parts {
        settings,
        algorithm,
        acceleration,
        notices,
        absent: model.absent,
        checkpoint_plan,
        sampler,
        schedule,
        others,
        explorer,
        conditioner,
        prompt_sampler: PromptSampler::with_repeats(
            prompts.len(),
            sampling.prompts_per_step,
            config.run.seed,
        )?
        .following(GeometryHistory::new(&geometry)),
        description: Description::of_config(config),
        frozen: FrozenWeights::InCheckpoint,
        catalog: environment.plugins.catalog(),
        prompts,
        dataset,
        records,
        rewards: (trained_on.workers, trained_on.weights),
        evaluation_rewards: (evaluated_by.workers, evaluated_by.weights),
        evaluation,
        state: TrainState {
            iteration: 0,
            weights,
            optimizer,
            networks,
            memory: Memory::default(),
        },
        distribution,
    })
}
