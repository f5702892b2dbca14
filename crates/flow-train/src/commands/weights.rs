//! Weights that a command is given in the place of the config's.

use crate::failure::{Failure, OrFailure};
use flow_config::{Config, Finetune};
use flow_core::Weights;
use std::path::{Path, PathBuf};

/// Weights that a command was given instead of `model.weights`.
pub enum Given {
    /// A model, to be loaded in place of `model.weights`.
    Model(PathBuf),
    /// Adapters, to be loaded on top of it.
    Adapter(PathBuf),
}

/// The config with `weights` in place of its own, and the adapter to load afterwards if `weights` is one.
///
/// Fails if there are no weights at all: random ones make noise.
pub fn substitute(config: &Config, weights: Option<&Path>) -> Result<(Config, Option<PathBuf>), Failure> {
    let mut config = config.clone();
    let adapter = match weights.map(classify).transpose()? {
        Some(Given::Model(path)) => {
            config.model.weights = Some(path);
            None
        }
        Some(Given::Adapter(path)) => {
            if config.model.finetune != Finetune::Lora {
                return Err(Failure::Input(format!(
                    "`{}` holds adapters, but the config has none; set `model.finetune = \"lora\"` and `[lora]` as they \
                     were in the run, or give its merged weights",
                    path.display()
                )));
            }
            Some(path)
        }
        None => None,
    };
    if config.model.weights.is_none() {
        return Err(Failure::Input(
            "there are no weights; set `model.weights`, or pass `--weights FILE` (a run leaves them in its folder \
             `weights`, and `flow-train pretrain` makes some)"
                .into(),
        ));
    }
    Ok((config, adapter))
}

fn classify(path: &Path) -> Result<Given, Failure> {
    // Paths on the command line start from the working directory, those of a config from its folder.
    let path = std::path::absolute(path)
        .map_err(|error| Failure::Input(format!("cannot tell where {} is: {error}", path.display())))?;
    const ADAPTER: &str = "adapter_model.safetensors";
    let is_adapter = path.join(ADAPTER).is_file() || path.file_name().is_some_and(|name| name == ADAPTER);
    Ok(if is_adapter {
        Given::Adapter(path)
    } else {
        Given::Model(path)
    })
}

/// Loads the adapter that [`substitute`] found, if it found one.
pub fn load_adapter(weights: &mut Weights, adapter: Option<&Path>) -> Result<(), Failure> {
    match adapter {
        Some(path) => flow_models::load_adapters(weights, path).or_bad_input(),
        None => Ok(()),
    }
}
