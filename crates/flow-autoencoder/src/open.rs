//! An autoencoder and its weights from a folder of diffusers.

use crate::config::AutoencoderConfig;
use crate::{Autoencoder, AutoencoderError};
use flow_core::Weights;
use flow_core::device::ComputeDevice;
use flow_models::{ModelError, load_into};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file of settings beside weights.
const CONFIG: &str = "config.json";
/// The file of a pipeline's folder that says what is in it, and the folder of its autoencoder.
const PIPELINE: &str = "model_index.json";
const AUTOENCODER: &str = "vae";
/// What a pointer of Git LFS begins with (git-lfs, `docs/spec.md`).
pub(crate) const LFS: &[u8] = b"version https://git-lfs";
/// Types of quantised weights, as they begin in a safetensors header.
const QUANTISED: [&str; 7] = ["F8", "F6", "F4", "I8", "U8", "I4", "U4"];

/// The autoencoder in `path` and its weights: a folder with `config.json` and one safetensors file or several, or the folder of a
/// pipeline, whose folder `vae` is taken. Weights are F32, BF16 or F16 in the files; in memory they are frozen: f32, or the type that
/// `device` computes in and no other. The encoder's are read with the decoder's.
///
/// # Errors
/// [`AutoencoderError::Folder`], [`AutoencoderError::Io`], [`AutoencoderError::LfsPointer`],
/// [`AutoencoderError::Config`], [`AutoencoderError::Quantised`]; [`AutoencoderError::Weights`] with every weight that is missing,
/// unknown, misshapen or not finite.
pub fn open(path: &Path, device: &ComputeDevice) -> Result<(Autoencoder, Weights), AutoencoderError> {
    open_weights(path, &folder_of(path)?, device)
}

/// As [`open`], with the weights of one file or index, such as those of a variant that lie beside others.
///
/// # Errors
/// As [`open`].
pub fn open_weights(
    path: &Path,
    file: &Path,
    device: &ComputeDevice,
) -> Result<(Autoencoder, Weights), AutoencoderError> {
    let folder = folder_of(path)?;
    let autoencoder = Autoencoder::new(&read_config(&folder)?, device)?;
    refuse_pointers(&folder)?;
    let mut weights = frozen_weights(&autoencoder, device);
    load_into(&mut weights, file).map_err(|error| explained(error, &folder))?;
    Ok((autoencoder, weights))
}

/// Weights that files are about to give, frozen as they come: a device that computes in bf16 never holds them in f32.
pub(crate) fn frozen_weights(autoencoder: &Autoencoder, device: &ComputeDevice) -> Weights {
    let layout = autoencoder.layout();
    let frozen = vec![false; layout.len()];
    Weights::init_adapters_on_frozen(layout.clone(), 0, device, &frozen, Arc::from([]))
}

/// The settings of the autoencoder in `path`, a folder as [`open`] takes one; its weights may be missing.
///
/// # Errors
/// As [`open`], without weights.
pub fn config_of(path: &Path) -> Result<AutoencoderConfig, AutoencoderError> {
    read_config(&folder_of(path)?)
}

pub(crate) fn folder_of(path: &Path) -> Result<PathBuf, AutoencoderError> {
    let error = |problem: &str| {
        Err(AutoencoderError::Folder {
            path: path.to_owned(),
            problem: problem.into(),
        })
    };
    if !path.exists() {
        return error(
            "there is nothing at this path; nothing is downloaded here, so name a folder on this machine",
        );
    }
    if !path.is_dir() {
        return error("it is a file; name the folder that it lies in, which has its `config.json`");
    }
    let inner = path.join(AUTOENCODER);
    match (path.join(PIPELINE).is_file(), inner.join(CONFIG).is_file()) {
        (true, true) => Ok(inner),
        (true, false) => error(
            "it is a pipeline's folder, and its folder `vae` with `config.json` is missing; download it whole",
        ),
        (false, _) if path.join(CONFIG).is_file() => Ok(path.to_owned()),
        (false, true) => error("it has no `config.json`; there is one in its folder `vae`, so name that"),
        (false, false) => error(
            "it has no `config.json`, which says what its weights are; save the model with `save_pretrained`",
        ),
    }
}

fn read_config(folder: &Path) -> Result<AutoencoderConfig, AutoencoderError> {
    let path = folder.join(CONFIG);
    let text = fs::read(&path).map_err(|source| AutoencoderError::Io {
        action: "read",
        path: path.clone(),
        source,
    })?;
    if text.starts_with(LFS) {
        return Err(AutoencoderError::LfsPointer { path });
    }
    let settings: Value = serde_json::from_slice(&text).map_err(|error| AutoencoderError::Config {
        path: path.clone(),
        setting: ".".into(),
        problem: format!("is no JSON: {error}"),
    })?;
    AutoencoderConfig::read(&settings, &path)
}

/// Files of weights that are pointers would be told to be truncated.
pub(crate) fn refuse_pointers(folder: &Path) -> Result<(), AutoencoderError> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| AutoencoderError::Io { action, path, source }
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(io("list", folder))? {
        paths.push(entry.map_err(io("list", folder))?.path());
    }
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !path.is_file() || !(name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) {
            continue;
        }
        let mut start = Vec::new();
        let file = File::open(&path).map_err(io("open", &path))?;
        let read = file.take(LFS.len() as u64).read_to_end(&mut start);
        read.map_err(io("read", &path))?;
        if start == LFS {
            return Err(AutoencoderError::LfsPointer { path });
        }
    }
    Ok(())
}

fn explained(error: ModelError, folder: &Path) -> AutoencoderError {
    if let ModelError::Mismatch(report) = &error {
        let is_quantised = |dtype: &str| QUANTISED.iter().any(|start| dtype.starts_with(start));
        if let Some(it) = report.unreadable.iter().find(|it| is_quantised(&it.dtype)) {
            return AutoencoderError::Quantised {
                path: folder.to_owned(),
                name: it.name.clone(),
                dtype: it.dtype.clone(),
            };
        }
    }
    error.into()
}
