//! One component of a pipeline: a folder in its folder.

use crate::{FolderError, Tensors, WeightFiles, read_json};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// What a component's folder holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A model: `config.json` and weights.
    Model,
    /// A tokenizer: its vocabulary.
    Tokenizer,
    /// `scheduler_config.json`.
    Scheduler,
    /// Anything else, such as an image processor.
    Other,
}

/// A component that a pipeline has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Its key in `model_index.json`.
    pub name: String,
    /// The Python library that its class is from.
    pub library: String,
    /// Its class.
    pub class: String,
    /// Its folder.
    pub folder: PathBuf,
}

impl Component {
    /// What its folder holds, by the name of its class.
    pub fn kind(&self) -> Kind {
        let class = self.class.as_str();
        let ends = |ending: &str| class.ends_with(ending);
        if ends("Tokenizer") || ends("TokenizerFast") {
            return Kind::Tokenizer;
        }
        if ends("Scheduler") {
            return Kind::Scheduler;
        }
        if ends("Processor") || ends("FeatureExtractor") || ends("ImageProcessorFast") {
            return Kind::Other;
        }
        Kind::Model
    }

    /// The constants of a model, from its `config.json`.
    ///
    /// Diffusers writes its class as `_class_name`, transformers as the first of `architectures`.
    ///
    /// # Errors
    /// [`FolderError::Folder`] if there is none; [`FolderError::File`] if it is damaged, or of another class than
    /// `model_index.json` says.
    pub fn config(&self) -> Result<Map<String, Value>, FolderError> {
        let path = self.folder.join("config.json");
        let config: Map<String, Value> = read_json(&path)?.ok_or_else(|| self.lacks("config.json"))?;
        match class_of(&config) {
            Some(class) if class != self.class => Err(FolderError::File {
                path,
                problem: format!(
                    "it is the config of a {class}, and `model_index.json` says that {} is a {}; the folders of two models are \
                     mixed, so download the folder again",
                    self.name, self.class
                ),
            }),
            _ => Ok(config),
        }
    }

    /// The files of its weights: those of `variant` if it has them, else the plain ones.
    ///
    /// # Errors
    /// As [`WeightFiles::find`].
    pub fn weight_files(&self, variant: Option<&str>) -> Result<WeightFiles, FolderError> {
        WeightFiles::find(&self.folder, variant)
    }

    /// Its tensors, opened and not read.
    ///
    /// # Errors
    /// As [`WeightFiles::find`] and [`Tensors::open`].
    pub fn tensors(&self, variant: Option<&str>) -> Result<Tensors, FolderError> {
        Tensors::open(&self.weight_files(variant)?)
    }

    /// Its folder lacks a file.
    pub(crate) fn lacks(&self, file: &str) -> FolderError {
        FolderError::Folder {
            folder: self.folder.clone(),
            problem: format!(
                "there is no `{file}`, which a {} needs; the download was not finished, so download the folder again",
                self.class
            ),
        }
    }
}

/// The class that a `config.json` says it is of.
pub(crate) fn class_of(config: &Map<String, Value>) -> Option<&str> {
    let diffusers = config.get("_class_name");
    let transformers = config.get("architectures").and_then(|list| list.get(0));
    diffusers.or(transformers).and_then(Value::as_str)
}

/// The constants of the model whose weights lie in `folder`, without a pipeline around it.
pub(crate) fn config_of_folder(folder: &Path) -> Result<Option<Map<String, Value>>, FolderError> {
    read_json(&folder.join("config.json"))
}
