//! Weights that a command is given in the place of the config's.

use super::nearest;
use crate::arguments::ConfigArguments;
use crate::failure::{Failure, OrFailure};
use flow_config::Config;
use flow_trainer::setup;
use std::path::{Path, PathBuf};

/// Weights that a command was given instead of `model.weights`.
#[derive(Clone, Debug)]
pub enum Given {
    /// A model, to be loaded in place of `model.weights`.
    Model(PathBuf),
    /// Adapters, to be loaded on top of it.
    Adapter(PathBuf),
}

/// The config's place, with `weights` to be used instead of its own.
pub fn instead(arguments: &ConfigArguments, weights: Option<&Path>) -> ConfigArguments {
    ConfigArguments {
        weights: weights.map(Path::to_owned),
        ..arguments.clone()
    }
}

/// Fails if there are no weights at all: random ones make noise.
pub fn expect(config: &Config) -> Result<(), Failure> {
    if config.model.weights.is_some() {
        return Ok(());
    }
    Err(Failure::Input(
        "there are no weights; set `model.weights`, or pass `--weights FILE` (a run leaves them in its folder `weights`, and \
         `flow-train pretrain` makes some)"
            .into(),
    ))
}

/// What the path of `--weights` stands for: a file or folder of weights, of an adapter, or of a run.
pub fn find(path: &Path) -> Result<Given, Failure> {
    // Paths on the command line start from the working directory, those of a config from its folder.
    let path = std::path::absolute(path)
        .map_err(|error| Failure::Input(format!("cannot tell where {} is: {error}", path.display())))?;
    let path = of_run(&path)?;
    if !path.exists() {
        return Err(missing(&path));
    }
    if path.extension().is_some_and(|ending| ending == "ckpt") {
        let run = path.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        return Err(Failure::Input(format!(
            "`{}` is a checkpoint, from which `train --resume` goes on; the weights of a finished run are in `{}`",
            path.display(),
            run.join("weights").display()
        )));
    }
    Ok(if flow_models::lora::is_adapter(&path).or_bad_input()? {
        Given::Adapter(path)
    } else {
        Given::Model(path)
    })
}

/// What a run leaves in its folder of weights: a model, or adapters alone.
const LEFT: [&str; 3] = ["final.safetensors", "merged.safetensors", "adapter"];

/// The weights of a run, if `path` is a run's folder, or its folder of weights with adapters alone.
fn of_run(path: &Path) -> Result<PathBuf, Failure> {
    let left = |weights: &Path| {
        let places = LEFT.iter().map(|name| weights.join(name));
        places.into_iter().find(|place| place.exists())
    };
    let adapter = path.join("adapter");
    if adapter.is_dir() && left(path).as_ref() == Some(&adapter) {
        return Ok(adapter);
    }
    let is_run = path.join("run.json").is_file() || path.join("metrics.jsonl").is_file();
    if !is_run && !path.join("checkpoints").is_dir() {
        return Ok(path.to_owned());
    }
    if let Some(found) = left(&path.join("weights")) {
        return Ok(found);
    }
    Err(Failure::Input(format!(
        "`{}` is the folder of a run that has no weights yet: they are written at its end. `train --resume latest` goes on with it",
        path.display()
    )))
}

fn missing(path: &Path) -> Failure {
    let here = std::env::current_dir().unwrap_or_default();
    Failure::Input(format!(
        "there is nothing at `{}`, which `--weights` names{}; {}",
        path.display(),
        nearest::path_in_words(path, |_| true),
        setup::start_on_command_line(&here)
    ))
}
