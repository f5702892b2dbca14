//! The weights that a run leaves for other programs.

use super::Trainer;
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::export::{export, export_saved};
use flow_accel::Acceleration;
use flow_config::Config;
use flow_models::Architecture;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Writes the weights of a run that came to its end below `folder`, and gives the paths: [`export`], of the rank that writes files. Where
    /// ranks have parts of the trained weights, or one alone has their lower halves, they are taken from the checkpoint of the last iteration, and no other rank is needed.
    ///
    /// # Errors
    /// If a file cannot be written, or that checkpoint not be read.
    ///
    /// # Panics
    /// On another rank than the first.
    pub fn export(
        &self,
        model: &dyn Architecture,
        config: &Config,
        folder: &Path,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Vec<PathBuf>, TrainError> {
        let state = &self.state;
        if !state.lacks_trained_values() {
            return export(&state.weights, model, config, folder, metadata);
        }
        let files = self.files.as_ref().expect("the first rank writes the run");
        let newest = files.checkpoints.latest()?.found;
        let newest = newest.filter(|reader| reader.step() == state.iteration);
        let reader = newest.ok_or_else(|| TrainError::NoCheckpoint {
            directory: files.checkpoints.directory().to_owned(),
            skipped: format!(
                " of iteration {}, from which the weights are exported",
                state.iteration
            ),
        })?;
        export_saved(&reader, &state.weights, model, folder, metadata)
    }
}
