//! Weight files of the classifier: safetensors with the training settings in the metadata.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::network::{NAMES, Parameters, shapes};
use super::{Classifier, ClassifierTraining};
use crate::error::RewardError;
use flow_registry::Refusal;

/// The one metadata key, so that the order of keys cannot change the file.
const METADATA_KEY: &str = "flow_rewards.digit_classifier";

impl Classifier {
    /// The weight file as bytes: six f32 tensors, and the training settings as JSON in the metadata.
    ///
    /// # Errors
    /// [`RewardError::Weights`] if the file cannot be laid out.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, RewardError> {
        let fail = |problem: String| weights_error("in memory", problem);
        let settings = serde_json::to_string(&self.training).map_err(|error| fail(error.to_string()))?;
        let named = self.parameters.named();
        let bytes: Vec<Vec<u8>> = named
            .iter()
            .map(|(_, _, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
            .collect();
        let mut views = Vec::new();
        for ((name, shape, _), bytes) in named.iter().zip(&bytes) {
            let view =
                TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(|error| fail(error.to_string()))?;
            views.push((*name, view));
        }
        let metadata = HashMap::from([(METADATA_KEY.to_owned(), settings)]);
        safetensors::serialize(views, Some(metadata)).map_err(|error| fail(error.to_string()))
    }

    /// A classifier from the bytes of a weight file; `source` says in errors where they came from.
    ///
    /// # Errors
    /// [`RewardError::Weights`] for bytes that are no safetensors file, that are cut off, that hold other tensors, or
    /// whose values are not finite.
    pub fn from_safetensors(bytes: &[u8], source: &str) -> Result<Self, RewardError> {
        let fail = |problem: String| {
            let mend = "train it again with `cargo run --release -p flow-rewards --example train_classifier`";
            weights_error(source, Refusal::new(problem, mend))
        };
        let (_, header) = SafeTensors::read_metadata(bytes)
            .map_err(|error| fail(format!("not a whole safetensors file ({error})")))?;
        let settings = header
            .metadata()
            .as_ref()
            .and_then(|metadata| metadata.get(METADATA_KEY));
        let settings = settings.ok_or_else(|| {
            fail(format!(
                "not written by this tool: the metadata have no entry `{METADATA_KEY}`"
            ))
        })?;
        let training: ClassifierTraining = serde_json::from_str(settings)
            .map_err(|error| fail(format!("metadata `{METADATA_KEY}`: {error}")))?;
        training
            .check()
            .map_err(|error| fail(format!("metadata `{METADATA_KEY}`: {error}")))?;
        let file = SafeTensors::deserialize(bytes)
            .map_err(|error| fail(format!("not a whole safetensors file ({error})")))?;
        if let Some(extra) = file.names().iter().find(|name| !NAMES.contains(name)) {
            return Err(fail(format!(
                "unknown tensor `{extra}`; the tensors are {}",
                NAMES.join(", ")
            )));
        }
        let mut parameters = Parameters::zeros(training.channels);
        for ((name, shape), values) in NAMES
            .iter()
            .zip(shapes(training.channels))
            .zip(&mut parameters.tensors)
        {
            let view = file
                .tensor(name)
                .map_err(|_| fail(format!("tensor `{name}` is missing")))?;
            if view.dtype() != Dtype::F32 || view.shape() != shape {
                let (found, dtype) = (view.shape(), view.dtype());
                return Err(fail(format!(
                    "tensor `{name}` is {dtype:?} {found:?}, expected F32 {shape:?}"
                )));
            }
            for (value, bytes) in values.iter_mut().zip(view.data().as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
            if values.iter().any(|value| !value.is_finite()) {
                return Err(fail(format!("tensor `{name}` holds values that are not finite")));
            }
        }
        Ok(Self { parameters, training })
    }

    /// Reads a weight file.
    ///
    /// # Errors
    /// [`RewardError::Weights`] if it cannot be read, and as [`Classifier::from_safetensors`].
    pub fn load(path: &Path) -> Result<Self, RewardError> {
        let file = format!("`{}`", path.display());
        let bytes = fs::read(path).map_err(|error| {
            let problem = format!("cannot be read: {error}");
            let help = "give the path of a weight file, or `built-in` or `judge`";
            weights_error(&file, Refusal::new(problem, help))
        })?;
        Self::from_safetensors(&bytes, &file)
    }

    /// Writes a weight file, by way of a temporary file beside it, so that a crash leaves the old one whole.
    ///
    /// # Errors
    /// [`RewardError::Weights`] if it cannot be written; what stood there before is untouched.
    pub fn save(&self, path: &Path) -> Result<(), RewardError> {
        let bytes = self.to_safetensors()?;
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let written = fs::File::create(&temporary)
            .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&temporary, path));
        written.map_err(|error| {
            // Whether or not there is something to remove, the error to report is the first one.
            let _ = fs::remove_file(&temporary);
            weights_error(
                &format!("`{}`", path.display()),
                format!("cannot be written: {error}"),
            )
        })
    }
}

fn weights_error(file: &str, problem: impl Into<Refusal>) -> RewardError {
    RewardError::Weights {
        file: file.to_owned(),
        problem: problem.into(),
    }
}
