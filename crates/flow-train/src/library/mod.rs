//! Runs for programs: what `flow-train train` and `flow-train sample` do, in one call.

mod sampling;
mod training;

pub use sampling::{Sampling, sample};
pub use training::{Trained, Training, train};

use crate::{EnvironmentError, NameTaken, Registries};
use flow_config::{Config, Report};
use flow_exchange::World;
use flow_trainer::TrainError;
use flow_trainer::setup::{self, Environment, PipelineFolders};
use std::path::Path;

/// Why a run did not come about, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The config is wrong by itself.
    #[error(transparent)]
    Config(#[from] Report),
    /// Two plugins have one name.
    #[error(transparent)]
    Registries(#[from] NameTaken),
    /// The config asks for what this build or machine does not have.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// A prompt that the data set does not have.
    #[error(transparent)]
    Prompt(#[from] flow_data::PromptError),
    /// The parts do not fit, or the run stopped.
    #[error(transparent)]
    Train(#[from] TrainError),
}

/// Completes the config by what its diffusers folder says, checks it, makes its runtime options effective and calls `task` with it in its
/// worker threads, with its device open.
fn compute<T: Send>(
    config: &Config,
    base: &Path,
    registries: Option<&Registries>,
    task: impl FnOnce(&Config, &Environment<'_>) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    compute_beside(config, base, registries, World::ALONE, task)
}

/// As [`compute`], beside the others of the same run on this machine.
fn compute_beside<T: Send>(
    config: &Config,
    base: &Path,
    registries: Option<&Registries>,
    world: World,
    task: impl FnOnce(&Config, &Environment<'_>) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let built_in;
    let registries = match registries {
        Some(registries) => registries,
        None => {
            built_in = Registries::built_in()?;
            &built_in
        }
    };
    let catalog = registries.catalog();
    let folders = PipelineFolders::default();
    let config = &setup::completed_by_folder(config, catalog.defaults(), base, &folders)?;
    let resolved = flow_config::check(&catalog, config)?;
    crate::apply_runtime_options(&resolved, base)?;
    crate::worker_pool_beside(config, world.local_ranks)?.install(|| {
        let own = crate::distributed::own_device(config, world);
        let environment = Environment {
            folders,
            ..crate::environment(&own, base, registries)?
        };
        task(config, &environment)
    })
}
