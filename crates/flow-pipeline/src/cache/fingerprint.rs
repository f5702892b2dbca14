//! A hash of everything that decides what a pipeline's encoders make of a text.

use crate::{Pipeline, PipelineError};
use flow_diffusers::safetensors::replace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

/// What the hashes of the encoders' files are kept in, beside the prompts.
const HASHES: &str = "files.json";

/// A file that was hashed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Hashed {
    bytes: u64,
    changed_ns: u128,
    blake3: String,
}

/// Hashes of files by their paths.
type Known = BTreeMap<String, Hashed>;

/// Hashes of files that this process has read, with their sizes and times of change. Clones share them: what one cache of prompts has
/// hashed another one need not hash.
#[derive(Clone, Debug, Default)]
pub struct FileHashes(Arc<Mutex<Known>>);

impl FileHashes {
    fn known(&self) -> Known {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, hashed: Known) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(hashed);
    }
}

/// A hash of texts, in which one cannot go over into the next.
pub(crate) fn of_texts<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// A hash of the pipeline's class and the contents of its tokenizers and text encoders. Those of files that `hashes` or `cache` knows
/// are taken from there; all are put into `hashes`, and with `keep` into `cache`.
pub(super) fn of_encoders(
    cache: &Path,
    hashes: &FileHashes,
    pipeline: &Pipeline,
    keep: bool,
) -> Result<String, PipelineError> {
    of_files(cache, hashes, pipeline, files(pipeline)?, keep)
}

/// As [`of_encoders`], of the autoencoder with the weights that the pipeline reads.
pub(crate) fn of_autoencoder(
    cache: &Path,
    hashes: &FileHashes,
    pipeline: &Pipeline,
) -> Result<String, PipelineError> {
    let weights = pipeline
        .folder()
        .component("vae")?
        .weight_files(pipeline.variant())?;
    let config = pipeline.autoencoder_folder().join("config.json");
    let files = [config].into_iter().chain(weights.files.iter().cloned());
    of_files(cache, hashes, pipeline, files.collect(), true)
}

fn of_files(
    cache: &Path,
    hashes: &FileHashes,
    pipeline: &Pipeline,
    files: Vec<PathBuf>,
    keep: bool,
) -> Result<String, PipelineError> {
    let list = cache.join(HASHES);
    let stored = fs::read(&list)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let stored: Known = stored.unwrap_or_default();
    let mut known = stored.clone();
    known.extend(hashes.known());
    let mut parts = vec![pipeline.folder().class().to_owned()];
    for path in files {
        let name = path.strip_prefix(pipeline.folder().folder()).unwrap_or(&path);
        parts.push(name.to_string_lossy().into_owned());
        parts.push(hashed(&path, &mut known)?);
    }
    hashes.add(known.clone());
    if keep && known != stored {
        let io = |source| PipelineError::Io {
            action: "write",
            path: list.clone(),
            source,
        };
        fs::create_dir_all(cache).map_err(io)?;
        let text = serde_json::to_vec_pretty(&known).unwrap_or_default();
        replace(&list, &mut |out| out.write_all(&text)).map_err(io)?;
    }
    Ok(of_texts(parts.iter().map(String::as_str)))
}

/// The files of tokenizers and text encoders, sorted; of weights, those of the variant.
fn files(pipeline: &Pipeline) -> Result<Vec<PathBuf>, PipelineError> {
    let mut all = Vec::new();
    for component in pipeline.folder().components() {
        let folder = pipeline.part(&component.name);
        if component.name.starts_with("text_encoder") {
            all.push(folder.join("config.json"));
            all.extend(component.weight_files(pipeline.variant())?.files.iter().cloned());
        } else if component.name.starts_with("tokenizer") {
            let io = |source| PipelineError::Io {
                action: "list",
                path: folder.clone(),
                source,
            };
            for entry in fs::read_dir(&folder).map_err(io)? {
                let path = entry.map_err(io)?.path();
                if path.is_file() {
                    all.push(path);
                }
            }
        }
    }
    all.sort();
    Ok(all)
}

/// The hash of a file's contents: the known one, where size and time are the same.
fn hashed(path: &Path, known: &mut Known) -> Result<String, PipelineError> {
    let io = |source| PipelineError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    };
    let full = fs::canonicalize(path).map_err(io)?;
    let about = fs::metadata(&full).map_err(io)?;
    let changed = about
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let (bytes, changed_ns) = (about.len(), changed.map_or(0, |time| time.as_nanos()));
    let name = full.to_string_lossy().into_owned();
    if let Some(hashed) = known.get(&name)
        && (hashed.bytes, hashed.changed_ns) == (bytes, changed_ns)
    {
        return Ok(hashed.blake3.clone());
    }
    let mut hasher = blake3::Hasher::new();
    // On all threads: the files of T5-XXL are 10 GB.
    hasher.update_mmap_rayon(&full).map_err(io)?;
    let blake3 = hasher.finalize().to_hex().to_string();
    let hashed = Hashed {
        bytes,
        changed_ns,
        blake3: blake3.clone(),
    };
    known.insert(name, hashed);
    Ok(blake3)
}
