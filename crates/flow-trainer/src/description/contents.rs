//! What the files hold that a config names: hashes by key, and of what a key's own hash leaves out by the key and a name behind it.
//!
//! A hash of an older version stays what it was, so that its checkpoints can be compared; what later versions look at beside it has
//! hashes of its own, which are compared where both sides have them.

use crate::error::TrainError;
use crate::setup::{PipelineFolders, pipeline, prompt_cache};
use flow_config::Config;
use flow_diffusers::WeightFiles;
use flow_report::ContentHash;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The settings of an autoencoder, from its pipeline's folder.
const AUTOENCODER_CONFIG: &str = "vae/config.json";
/// The folder of the model, of a diffusers folder that is named as weights, and the file that shows one.
const TRANSFORMER: &str = "transformer";
const PIPELINE_FILE: &str = "model_index.json";
/// The files that an index of weights names.
const SHARDS: &str = "shards";
/// Endings of files that say what a network of a reward computes: weights, configs, vocabularies.
const OF_NETWORKS: [&str; 3] = ["safetensors", "json", "txt"];
/// What later versions look at beside those: models of ONNX, a detector beside the recogniser that is named.
const ONNX: &str = "onnx";

/// Hashes by the part that they are of; the empty part is the key's own.
type Found = Vec<(&'static str, ContentHash)>;
type Contents = BTreeMap<String, ContentHash>;

/// Of the diffusers folder's parts that are no weights of the model: tokenizers, text encoders with their settings, autoencoder.
/// What the settings of transformer and scheduler say are values of the config.
pub(super) fn of_folder(
    config: &Config,
    base: &Path,
    folders: &PipelineFolders,
) -> Result<Found, TrainError> {
    let pipeline = pipeline(config, base, folders)?;
    let encoders = prompt_cache(config, base, folders).fingerprint(&pipeline)?;
    let folder = pipeline.autoencoder_folder();
    let autoencoder = ContentHash::of_path(&folder, "safetensors")?;
    let whole = ContentHash::of(format!("{encoders} {autoencoder}").as_bytes());
    let settings = ContentHash::of_path(&folder.join("config.json"), "json")?;
    Ok(vec![("", whole), (AUTOENCODER_CONFIG, settings)])
}

/// Of a file, of the `.safetensors` in a folder and in that of a pipeline's transformer, or of an index and the files that it names.
pub(super) fn of_weights(path: &Path) -> Result<Found, TrainError> {
    let mut found = vec![("", ContentHash::of_path(path, "safetensors")?)];
    if path.is_file() && WeightFiles::is_index(path) {
        let files = WeightFiles::of_index(path).map_err(flow_pipeline::PipelineError::from)?;
        let mut all = String::new();
        for file in &files.files {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            all.push_str(&format!(
                "{name}\0{} ",
                ContentHash::of_path(file, "safetensors")?
            ));
        }
        found.push((SHARDS, ContentHash::of(all.as_bytes())));
    }
    let inner = path.join(TRANSFORMER);
    if path.join(PIPELINE_FILE).is_file() && inner.is_dir() {
        found.push((TRANSFORMER, ContentHash::of_path(&inner, "safetensors")?));
    }
    Ok(found)
}

/// Of all files that say what the network of a reward computes.
pub(super) fn of_network(path: &Path) -> Result<Found, TrainError> {
    if path.is_file() {
        let mut found = vec![("", ContentHash::of_path(path, "")?)];
        let folder = path
            .parent()
            .filter(|_| path.extension().is_some_and(|ending| ending == ONNX));
        if let Some(folder) = folder {
            found.push((ONNX, ContentHash::of_path(folder, ONNX)?));
        }
        return Ok(found);
    }
    let hash = |ending: &&str| ContentHash::of_path(path, ending).map(|hash| hash.to_string());
    let hashes: Vec<String> = OF_NETWORKS.iter().map(hash).collect::<Result<_, _>>()?;
    let own = ContentHash::of(hashes.join(" ").as_bytes());
    Ok(vec![("", own), (ONNX, ContentHash::of_path(path, ONNX)?)])
}

/// `model.path` and `vae/config.json` as `model.path/vae/config.json`.
pub(super) fn key_of(key: &str, part: &str) -> String {
    match part {
        "" => key.to_owned(),
        part => format!("{key}/{part}"),
    }
}

/// The hashes of a key, its own first, with their parts.
pub(super) fn of_key<'a>(
    contents: &'a Contents,
    key: &'a str,
) -> impl Iterator<Item = (&'a str, &'a ContentHash)> {
    contents.iter().filter_map(move |(found, hash)| {
        let rest = found.strip_prefix(key)?;
        match rest {
            "" => Some(("", hash)),
            rest => Some((rest.strip_prefix('/')?, hash)),
        }
    })
}

/// Several hashes in one; that of a single one is itself.
pub(super) fn in_one<'a>(hashes: impl Iterator<Item = (&'a str, &'a ContentHash)>) -> Option<ContentHash> {
    let hashes: Vec<_> = hashes.collect();
    match hashes.as_slice() {
        [] => None,
        [(_, one)] => Some(**one),
        several => {
            let text: String = several
                .iter()
                .map(|(part, hash)| format!("{part}\0{hash} "))
                .collect();
            Some(ContentHash::of(text.as_bytes()))
        }
    }
}

/// The first part of a key whose hashes differ, of those that both sides know.
pub(super) fn first_difference<'a>(
    before: &'a Contents,
    after: &'a Contents,
    key: &'a str,
) -> Option<(&'a str, &'a ContentHash, &'a ContentHash)> {
    of_key(before, key).find_map(|(part, before)| {
        let after = after.get(&key_of(key, part))?;
        (before != after).then_some((part, before, after))
    })
}

/// `sd35/vae/config.json with BLAKE3 0123456789ab…`.
pub(super) fn in_words(path: &Value, part: &str, hash: &ContentHash) -> String {
    let path = path.as_str().unwrap_or_default();
    let name = match part {
        SHARDS => format!("the files of {path}"),
        ONNX => format!("the ONNX files of {path}"),
        part => key_of(path, part),
    };
    format!("{name} with BLAKE3 {}…", hash.short())
}
