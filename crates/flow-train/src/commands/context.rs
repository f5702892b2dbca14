//! What commands work with: a config that was read, with what stands around it.

use super::config_report::{ConfigReport, ConfigUse, Target};
use crate::arguments::{ConfigArguments, Purpose, TargetArguments};
use crate::failure::{Failure, OrFailure, settle};
use crate::terminal;
use flow_config::{Catalog, Config, DeviceKind, Diagnostic, Resolved, Severity};
use flow_exchange::Exchange;
use flow_runtime::Applied;
use flow_train::{EnvironmentError, Registries, distributed};
use flow_trainer::TrainError;
use flow_trainer::setup::{Environment, PipelineFolders};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// A config that was read, with what stands around it.
pub(super) struct CommandContext {
    pub(super) resolved: Resolved,
    /// Where its relative paths start from.
    pub(super) base: PathBuf,
    pub(super) registries: Registries,
    /// What a config may say of their plug-ins.
    pub(super) catalog: Catalog,
    /// Options of the runtimes that are in force, once something was computed.
    pub(super) options: OnceLock<Vec<Applied>>,
    /// The device that the config was judged for.
    pub(super) target: Target,
    /// Diffusers folders that were opened.
    pub(super) folders: PipelineFolders,
    /// To the other processes of the run, if there are any.
    pub(super) exchange: Arc<dyn Exchange>,
}

impl CommandContext {
    /// Reads a config and shows its warnings, or everything that is wrong with it, also for this build and machine.
    pub(super) fn read(arguments: &ConfigArguments, wanted: ConfigUse) -> Result<Self, Failure> {
        Self::read_with(arguments, wanted, &PipelineFolders::default())
    }

    /// As [`read`](Self::read), with the diffusers folders that were opened before.
    pub(super) fn read_with(
        arguments: &ConfigArguments,
        wanted: ConfigUse,
        folders: &PipelineFolders,
    ) -> Result<Self, Failure> {
        let here = TargetArguments::default();
        // What is wrong with the launcher's variables, `join` says.
        let launch = distributed::launched().ok().flatten();
        let wanted = (wanted, launch.map_or(1, |launch| launch.ranks));
        let ConfigReport { report, context, .. } = ConfigReport::of(arguments, wanted, &here, folders)?;
        settle(&report)?;
        context.ok_or_else(|| Failure::Input(report.render()))
    }

    /// Meets the other processes of the run, if the launcher started several.
    pub(super) fn join(&mut self, purpose: Purpose) -> Result<(), Failure> {
        let launch = distributed::launched().or_bad_input()?;
        let ranks = launch.as_ref().map_or(1, |launch| launch.ranks);
        let mut report = self.resolved.located(self.refused_on(ranks, purpose));
        // Warnings were shown when the config was read.
        report.diagnostics.retain(|one| one.severity == Severity::Error);
        settle(&report)?;
        self.exchange = distributed::join(launch, self.config(), &self.base).or_failed()?;
        self.tell_order();
        Ok(())
    }

    /// What of the config is not right on so many `ranks`, for the command that it is meant for.
    pub(super) fn refused_on(&self, ranks: usize, purpose: Purpose) -> Vec<Diagnostic> {
        let config = self.config();
        match purpose {
            Purpose::Train => distributed::refused_on(config, ranks, &self.registries),
            Purpose::Pretrain => {
                let refused = flow_validate::sharded_pretraining(config.distributed.shard, ranks);
                refused.into_iter().collect()
            }
        }
    }

    /// Says how gradients are added, where that is worth a word.
    pub(super) fn tell_order(&self) {
        let world = self.exchange.world();
        let notice = distributed::notice(self.config(), world).filter(|_| world.is_first());
        if let Some(notice) = notice {
            terminal::note(&format!("note: {notice}"));
        }
    }

    pub(super) fn config(&self) -> &Config {
        &self.resolved.config
    }

    /// `config`, this one's or a variant, with a device that is here; see [`Target::stand_in`].
    pub(super) fn stand_in(&self, config: &Config) -> Config {
        self.target.stand_in(config)
    }

    /// Computes in the config's worker threads, with its device and plans, for `config`: this one's or a variant. Before
    /// that, and once, the options of the runtimes are made effective.
    pub(super) fn compute<T: Send>(
        &self,
        config: &Config,
        task: impl FnOnce(&Environment<'_>) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        self.compute_several(|| task(&self.environment(config)?))
    }

    /// Computes in the config's worker threads, all of `task` on one of them: a GPU orders what one thread asks for, and what
    /// several configs share (weights) should be used by the thread that made it. The environments are for `task` to open.
    pub(super) fn compute_several<T: Send>(
        &self,
        task: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        if self.options.get().is_none() {
            let applied = flow_train::apply_runtime_options(&self.resolved, &self.base).or_bad_input()?;
            self.options.get_or_init(|| applied);
        }
        flow_train::worker_pool_beside(self.config(), self.exchange.world().local_ranks)
            .or_bad_input()?
            .install(task)
    }

    /// Device and plans of `config`: this one's or a variant. To be called in worker threads.
    pub(super) fn environment(&self, config: &Config) -> Result<Environment<'_>, Failure> {
        self.try_environment(config).or_bad_input()
    }

    /// As [`environment`](Self::environment), with the error that names a key.
    pub(super) fn try_environment(&self, config: &Config) -> Result<Environment<'_>, EnvironmentError> {
        let own = distributed::own_device(config, self.exchange.world());
        let mut environment = Environment {
            folders: self.folders.clone(),
            exchange: self.exchange.clone(),
            ..flow_train::environment(&own, &self.base, &self.registries)?
        };
        if config.device.kind == DeviceKind::Cpu {
            environment.memory_probe = Some(Arc::new(&crate::MEMORY));
        }
        Ok(environment)
    }

    /// Options of the runtimes that are in force.
    pub(super) fn options(&self) -> &[Applied] {
        self.options.get().map_or(&[], Vec::as_slice)
    }

    /// As [`compute`](Self::compute), but the options of the runtimes are checked only, and none are in force: for commands that
    /// run no model.
    pub(super) fn inspect<T: Send>(
        &self,
        config: &Config,
        task: impl FnOnce(&Environment<'_>) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        flow_train::apply_no_runtime_options().or_bad_input()?;
        let pool = flow_train::worker_pool(config).or_bad_input()?;
        pool.install(|| task(&self.environment(config)?))
    }
}

/// Tokens of one image in the model that the config describes.
pub(super) fn tokens(config: &Config, environment: &Environment<'_>) -> Result<usize, TrainError> {
    let outline = flow_trainer::setup::outline(config, &environment.plugins.models, &environment.device)?;
    Ok(outline.model.spec().tokens)
}
