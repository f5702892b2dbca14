//! A training run from a program.

use super::{Error, compute_beside};
use crate::Registries;
use flow_accel::Acceleration;
use flow_checkpoint::MemoryProbe;
use flow_config::{Config, OnExists};
use flow_exchange::{Alone, Exchange};
use flow_models::Architecture;
use flow_report::{Continuation, Manifest, Opened, RunDirectory, RunStatus, RunSummary};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::{Observer, Silent};
use flow_trainer::setup::{self, Environment};
use flow_trainer::{TrainError, Trainer};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Trains as `config` says, and writes the run to `run.dir`. Relative paths start from the current folder; [`Training`] has
/// more to choose.
///
/// # Errors
/// Whatever is wrong with the config, or stops the run; what was written before stays.
pub fn train(config: &Config) -> Result<Trained, Error> {
    Training::new(config).run()
}

/// A run that came to its end, or was interrupted by its observer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Trained {
    /// Whether it finished.
    pub status: RunStatus,
    /// Where it is written, as an absolute path.
    pub directory: PathBuf,
    /// Rewards before and after with their intervals, the audit, time and memory.
    pub summary: RunSummary,
    /// The files and folders of its weights, as absolute paths; none if it was interrupted.
    pub weights: Vec<PathBuf>,
}

/// A run before it starts.
#[must_use = "it trains when `run` is called"]
pub struct Training<'a> {
    config: &'a Config,
    base: PathBuf,
    registries: Option<&'a Registries>,
    observer: Option<&'a mut dyn Observer>,
    memory_probe: Option<Arc<dyn MemoryProbe>>,
    exchange: Arc<dyn Exchange>,
}

impl<'a> Training<'a> {
    /// With nobody watching, the registries that this workspace brings, and paths from the current folder.
    pub fn new(config: &'a Config) -> Self {
        Self {
            config,
            base: PathBuf::from("."),
            registries: None,
            observer: None,
            memory_probe: None,
            exchange: Arc::new(Alone),
        }
    }

    /// Relative paths of the config start from this folder, as those of a file do from its own
    /// ([`flow_config::base_dir`]).
    pub fn base(mut self, folder: impl AsRef<Path>) -> Self {
        self.base = folder.as_ref().to_owned();
        self
    }

    /// Who watches, and may interrupt.
    pub fn observer(mut self, observer: &'a mut dyn Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Models, rewards, kernels and accelerators of the program's own.
    pub fn registries(mut self, registries: &'a Registries) -> Self {
        self.registries = Some(registries);
        self
    }

    /// What measures memory on the processor: a [`flow_checkpoint::CountingAllocator`] that the program has as its global
    /// allocator. Without it, `checkpointing.policy = "budget"` is refused there.
    pub fn memory_probe(mut self, memory_probe: Arc<dyn MemoryProbe>) -> Self {
        self.memory_probe = Some(memory_probe);
        self
    }

    /// To the other ranks of the run, which train with the same config; for processes, [`crate::distributed::join`] makes it. The first
    /// rank writes the run; the others give neither summary nor weights.
    pub fn exchange(mut self, exchange: Arc<dyn Exchange>) -> Self {
        self.exchange = exchange;
        self
    }

    /// Trains. `run.on_exists` says what becomes of a run of the same name; with `resume` it goes on from its newest
    /// checkpoint.
    ///
    /// # Errors
    /// Whatever is wrong with the config, or stops the run; what was written before stays.
    pub fn run(self) -> Result<Trained, Error> {
        let Self {
            config,
            base,
            registries,
            observer,
            memory_probe,
            exchange,
        } = self;
        let exchange = crate::distributed::with_blocks(exchange, config);
        let others = exchange.clone();
        let world = exchange.world();
        let trained = compute_beside(config, &base, registries, world, |config, environment| {
            let mut silent = Silent;
            let environment = &Environment {
                device: environment.device.clone(),
                plan: environment.plan.clone(),
                memory_probe: environment.memory_probe.clone().or(memory_probe),
                folders: environment.folders.clone(),
                exchange,
                ..*environment
            };
            let outline = setup::outline(config, &environment.plugins.models, &environment.device)?;
            let visitor = Visitor {
                config,
                environment,
                observer: observer.unwrap_or(&mut silent),
            };
            let tokens = outline.model.spec().tokens;
            let trained = visitor.with(setup::algorithm(config, environment.plugins, tokens)?)?;
            Ok(trained)
        });
        // The others wait for this one.
        trained.inspect_err(|error: &Error| others.abort(&error.to_string()))
    }
}

/// Receives the algorithm that the config names; the trainer is compiled for each of them.
struct Visitor<'a> {
    config: &'a Config,
    environment: &'a Environment<'a>,
    observer: &'a mut dyn Observer,
}

impl Visitor<'_> {
    fn with(self, algorithm: Box<dyn Algorithm>) -> Result<Trained, TrainError> {
        let Self {
            config,
            environment,
            observer,
        } = self;
        let trainer = setup::trainer(config, environment, algorithm)?;
        let outline = setup::outline(config, &environment.plugins.models, &environment.device)?;
        if !environment.exchange.world().is_first() {
            let directory = config.run.dir.join(&config.run.name);
            let goes_on = config.run.on_exists == OnExists::Resume;
            return Ok(Trained {
                status: trainer.join(&directory, goes_on)?.train(observer)?,
                directory,
                summary: RunSummary::default(),
                weights: Vec::new(),
            });
        }
        let policy = match config.run.on_exists {
            OnExists::Error => flow_report::OnExists::Error,
            OnExists::Resume => flow_report::OnExists::Resume,
            OnExists::Overwrite => flow_report::OnExists::Overwrite,
            OnExists::New => flow_report::OnExists::New,
        };
        if policy != flow_report::OnExists::Resume {
            // Before an older run is moved aside.
            trainer.expect_files()?;
        }
        let directory = RunDirectory::open(&config.run.dir, &config.run.name, policy)?;
        directory
            .notices()
            .iter()
            .for_each(|notice| observer.notice(notice));
        let record = trainer.checkpoint_plan.clone();
        let command: Vec<String> = std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let here = std::env::current_dir().unwrap_or_default();
        let mut manifest = Manifest::new(&directory.name(), command, json!(config), &here);
        manifest.versions.extend(crate::versions());
        manifest.device = crate::manifest_device(config, environment, &trainer.acceleration);
        let goes_on = *directory.opened() == Opened::Resumed
            && match directory.continuation()? {
                Continuation::FromCheckpoint => true,
                Continuation::FromStart => {
                    trainer.expect_files()?;
                    directory.supersede_all()?;
                    false
                }
            };
        let mut trainer = if goes_on {
            trainer.resume(directory, None, manifest, observer)?
        } else {
            trainer.start(directory, &manifest)?
        };
        if let Some(record) = record {
            let plan = format!("{:#}\n", json!(record));
            let path = trainer.directory().path().join("plan.json");
            flow_report::atomic_write(&path, "plan", |out| out.write_all(plan.as_bytes()))?;
        }
        let status = trainer.train(observer)?;
        finished(&trainer, &*outline.model, config, status)
    }
}

/// Writes the weights of a run that came to its end.
fn finished<A: Algorithm>(
    trainer: &Trainer<A, Acceleration>,
    model: &dyn Architecture,
    config: &Config,
    status: RunStatus,
) -> Result<Trained, TrainError> {
    let directory = trainer.directory();
    let mut weights = Vec::new();
    if status == RunStatus::Finished {
        let metadata = crate::weights_metadata(config, &directory.name(), trainer.state.iteration);
        // Weights of a process before this one are not written over.
        let before = directory.supersede_weights()?;
        weights = trainer.export(model, config, &directory.weights(), &metadata)?;
        directory.drop_same(&before)?;
    }
    // Wherever they are used next.
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Ok(Trained {
        status,
        directory: absolute(directory.path()),
        summary: directory.read_summary()?.unwrap_or_default(),
        weights: weights.iter().map(|path| absolute(path)).collect(),
    })
}
