//! The files that a path stands for: one file, a directory, or the index of a sharded checkpoint.

use crate::ModelError;
use memmap2::Mmap;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Ending of the index of a sharded checkpoint.
const INDEX_ENDING: &str = ".safetensors.index.json";

/// Mapped weight files.
pub(crate) struct Source {
    /// Path and bytes of each file, in the order of their names.
    pub files: Vec<(PathBuf, Mmap)>,
    /// Which file the index says a tensor is in; empty without an index.
    pub placed: BTreeMap<String, PathBuf>,
}

/// The part of an index that matters.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Source {
    /// Opens what `path` stands for.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let kind = fs::metadata(path).map_err(|source| io("open", path, source))?;
        if kind.is_dir() {
            return Self::directory(path);
        }
        if path.to_string_lossy().ends_with(INDEX_ENDING) {
            return Self::index(path);
        }
        Ok(Self {
            files: vec![map(path)?],
            placed: BTreeMap::new(),
        })
    }

    fn directory(path: &Path) -> Result<Self, ModelError> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path).map_err(|source| io("list", path, source))? {
            entries.push(entry.map_err(|source| io("list", path, source))?.path());
        }
        entries.sort();
        let ending = |ending: &str| -> Vec<&PathBuf> {
            let ends = |file: &&PathBuf| file.to_string_lossy().ends_with(ending);
            entries.iter().filter(ends).collect()
        };
        let (indices, files) = (ending(INDEX_ENDING), ending(".safetensors"));
        match (indices.as_slice(), files.as_slice()) {
            ([index], _) => Self::index(index),
            ([], []) => Err(format(
                path,
                "the directory holds no `*.safetensors` and no `*.safetensors.index.json`",
            )),
            ([], files) => Ok(Self {
                files: files.iter().map(|file| map(file)).collect::<Result<_, _>>()?,
                placed: BTreeMap::new(),
            }),
            (several, _) => Err(format(
                path,
                &format!(
                    "the directory holds {} indices; name the one to load",
                    several.len()
                ),
            )),
        }
    }

    fn index(path: &Path) -> Result<Self, ModelError> {
        let text = fs::read(path).map_err(|source| io("read", path, source))?;
        let index: Index = serde_json::from_slice(&text)
            .map_err(|error| format(path, &format!("no index of a sharded checkpoint: {error}")))?;
        let directory = path.parent().unwrap_or(Path::new("."));
        let mut placed = BTreeMap::new();
        for (tensor, shard) in index.weight_map {
            // A name with directories could point anywhere; no writer of such indices makes one.
            if Path::new(&shard).file_name() != Some(shard.as_ref()) {
                return Err(format(
                    path,
                    &format!("it puts `{tensor}` into `{shard}`; a shard must lie beside its index"),
                ));
            }
            placed.insert(tensor, directory.join(shard));
        }
        let mut shards: Vec<&PathBuf> = placed.values().collect();
        shards.sort();
        shards.dedup();
        let files = shards
            .into_iter()
            .map(|shard| map(shard))
            .collect::<Result<_, _>>()?;
        Ok(Self { files, placed })
    }
}

fn map(path: &Path) -> Result<(PathBuf, Mmap), ModelError> {
    let file = File::open(path).map_err(|source| io("open", path, source))?;
    // SAFETY: the map is only read. Another program that shortens the file meanwhile would end this process with a
    // bus error; our own writers never change a file in place, they rename a new one over it.
    let bytes = unsafe { Mmap::map(&file) }.map_err(|source| io("map", path, source))?;
    Ok((path.to_owned(), bytes))
}

fn io(action: &'static str, path: &Path, source: std::io::Error) -> ModelError {
    ModelError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

fn format(path: &Path, problem: &str) -> ModelError {
    ModelError::Format {
        path: path.to_owned(),
        problem: problem.into(),
    }
}
