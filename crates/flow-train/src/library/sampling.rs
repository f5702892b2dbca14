//! Images from a program.

use super::{Error, compute};
use crate::Registries;
use flow_config::Config;
use flow_data::{Image, Prompt};
use flow_trainer::decoder::Decoded;
use flow_trainer::setup;
use std::path::{Path, PathBuf};

/// One image per prompt, of the model that `config` describes. Relative paths of the config start from the current
/// folder; [`Sampling`] has more to choose.
///
/// # Errors
/// Whatever is wrong with config, weights or prompts.
pub fn sample(config: &Config, prompts: &[&str]) -> Result<Vec<Image>, Error> {
    Sampling::new(config).images(prompts)
}

/// Images of a config's model, before they are made.
#[derive(Clone, Debug)]
#[must_use = "it samples when `images` is called"]
pub struct Sampling<'a> {
    config: Config,
    base: PathBuf,
    registries: Option<&'a Registries>,
}

impl<'a> Sampling<'a> {
    /// With the config's weights, the registries that this workspace brings, and paths from the current folder.
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            base: PathBuf::from("."),
            registries: None,
        }
    }

    /// Relative paths of the config start from this folder, as those of a file do from its own
    /// ([`flow_config::base_dir`]).
    pub fn base(mut self, folder: impl AsRef<Path>) -> Self {
        self.base = folder.as_ref().to_owned();
        self
    }

    /// Other weights than the config's, for instance of a finished run ([`Trained::weights`](super::Trained::weights)).
    /// A relative path starts from the same folder as those of the config.
    pub fn weights(mut self, file: impl AsRef<Path>) -> Self {
        self.config.model.weights = Some(file.as_ref().to_owned());
        self
    }

    /// Another seed of the noise than `evaluation.seed`.
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.evaluation.seed = seed;
        self
    }

    /// Models, kernels and accelerators of the program's own.
    pub fn registries(mut self, registries: &'a Registries) -> Self {
        self.registries = Some(registries);
        self
    }

    /// One image per prompt (of a model of videos, some frames side by side), values in [-1, 1]. An image depends on the seed, on its place in the list and on its prompt
    /// alone.
    ///
    /// # Errors
    /// Whatever is wrong with config, weights or prompts; a prompt that the data set does not have.
    pub fn images(self, prompts: &[&str]) -> Result<Vec<Image>, Error> {
        compute(
            &self.config,
            &self.base,
            self.registries,
            |config, environment| {
                let common = setup::common(config, environment)?.set_up()?;
                let prompts = prompts.iter().map(|text| common.dataset.parse_prompt(text));
                let prompts: Vec<Prompt> = prompts.collect::<Result<_, _>>()?;
                let made = flow_trainer::sample(&common, &prompts, config.sampling.micro_batch)?;
                let images = made.iter().map(Decoded::picture).collect();
                // Of a config that is not strict nobody is told here.
                common.shortfalls("sampling")?;
                Ok(images)
            },
        )
    }
}
