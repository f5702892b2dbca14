//! An autoencoder of a folder, whichever it is: of diffusers, or a TAESD's two files.

use crate::config::AutoencoderConfig;
use crate::open::{folder_of, refuse_pointers};
use crate::tiny::{config_of_decoder, open_half};
use crate::{Autoencoder, AutoencoderError, config_of, open, open_tiny};
use flow_core::Weights;
use flow_core::device::ComputeDevice;
use flow_models::weights::{FileMap, Source};
use std::fs;
use std::path::{Path, PathBuf};

/// The file of settings of an autoencoder of diffusers, and of a pipeline.
const SETTINGS: [&str; 2] = ["config.json", "model_index.json"];
/// What the names of a TAESD's files end in.
const HALVES: [&str; 2] = ["encoder.safetensors", "decoder.safetensors"];

/// An autoencoder's folder: what is in it, before its weights are read.
#[derive(Clone, Debug)]
pub struct AutoencoderFolder {
    path: PathBuf,
    config: AutoencoderConfig,
    /// Encoder and decoder of a TAESD; of diffusers there are none.
    halves: Option<[PathBuf; 2]>,
}

impl AutoencoderFolder {
    /// The folder `path`: as [`open`] takes one where there is a `config.json`, else that of a TAESD, with one file whose name ends in
    /// `encoder.safetensors` and one whose name ends in `decoder.safetensors`. Of weights the header is read at most.
    ///
    /// # Errors
    /// [`AutoencoderError::Folder`] for a folder that has neither, or several files for one half; those of [`config_of`] and, of the
    /// decoder, [`open_tiny`].
    pub fn open(path: &Path) -> Result<Self, AutoencoderError> {
        let has_settings = SETTINGS.iter().any(|name| path.join(name).is_file());
        if has_settings || !path.is_dir() {
            return Ok(Self {
                path: path.to_owned(),
                config: config_of(path)?,
                halves: None,
            });
        }
        let names = names_of(path)?;
        let [encoder, decoder] = HALVES.map(|ending| half(path, &names, ending));
        let halves = [encoder?, decoder?];
        Ok(Self {
            path: path.to_owned(),
            config: AutoencoderConfig::Tiny(config_of_decoder(&halves[1])?),
            halves: Some(halves),
        })
    }

    /// Its settings.
    pub fn config(&self) -> &AutoencoderConfig {
        &self.config
    }

    /// Its files of weights, mapped and not read.
    ///
    /// # Errors
    /// [`AutoencoderError::Io`], [`AutoencoderError::LfsPointer`]; [`AutoencoderError::Weights`] for a folder without weights.
    pub fn weight_files(&self) -> Result<Vec<FileMap>, AutoencoderError> {
        if let Some(halves) = &self.halves {
            return halves.iter().map(|path| open_half(path)).collect();
        }
        let folder = folder_of(&self.path)?;
        refuse_pointers(&folder)?;
        Ok(Source::open(&folder)?.files)
    }

    /// The autoencoder and its weights, frozen.
    ///
    /// # Errors
    /// Those of [`open`], or of a TAESD [`open_tiny`].
    pub fn load(&self, device: &ComputeDevice) -> Result<(Autoencoder, Weights), AutoencoderError> {
        match &self.halves {
            None => open(&self.path, device),
            Some([encoder, decoder]) => open_tiny(encoder, decoder, device),
        }
    }
}

/// The names of the files in a folder, sorted.
fn names_of(folder: &Path) -> Result<Vec<String>, AutoencoderError> {
    let io = |source| AutoencoderError::Io {
        action: "list",
        path: folder.to_owned(),
        source,
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        names.push(entry.map_err(io)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The one file whose name has this ending.
fn half(folder: &Path, names: &[String], ending: &str) -> Result<PathBuf, AutoencoderError> {
    let found: Vec<&String> = names.iter().filter(|name| name.ends_with(ending)).collect();
    let problem = match found.as_slice() {
        [one] => return Ok(folder.join(one)),
        [] => format!(
            "it has neither the `config.json` of an autoencoder of diffusers nor, as that of a TAESD has, a file whose name ends in \
             `{ending}`"
        ),
        several => format!(
            "several files could be this half of a TAESD, those whose names end in `{ending}`: {}; leave one",
            several
                .iter()
                .map(|name| format!("`{name}`"))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    Err(AutoencoderError::Folder {
        path: folder.to_owned(),
        problem,
    })
}
