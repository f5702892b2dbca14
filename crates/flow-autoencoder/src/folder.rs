//! An autoencoder of a folder, whichever it is: of diffusers, or a TAESD's two files.

use crate::{Autoencoder, AutoencoderError, open, open_tiny};
use flow_core::Weights;
use flow_core::device::ComputeDevice;
use std::fs;
use std::path::{Path, PathBuf};

/// The file of settings of an autoencoder of diffusers, and of a pipeline.
const SETTINGS: [&str; 2] = ["config.json", "model_index.json"];
/// What the names of a TAESD's files end in.
const HALVES: [&str; 2] = ["encoder.safetensors", "decoder.safetensors"];

/// The autoencoder in the folder `path` and its weights: as [`open`] reads one where there is a `config.json`, else a TAESD, as
/// [`open_tiny`] reads it, of the one file whose name ends in `encoder.safetensors` and the one whose name ends in
/// `decoder.safetensors`.
///
/// # Errors
/// [`AutoencoderError::Folder`] for a folder that has neither, or several files for one half; those of [`open`] and [`open_tiny`].
pub fn open_any(path: &Path, device: &ComputeDevice) -> Result<(Autoencoder, Weights), AutoencoderError> {
    let has_settings = SETTINGS.iter().any(|name| path.join(name).is_file());
    if has_settings || !path.is_dir() {
        return open(path, device);
    }
    let names = names_of(path)?;
    let [encoder, decoder] = HALVES.map(|ending| half(path, &names, ending));
    open_tiny(&encoder?, &decoder?, device)
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
