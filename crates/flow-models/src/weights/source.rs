//! The files that a path stands for: one file, a directory, or the index of a sharded checkpoint.

use super::{Parsed, parse};
use crate::ModelError;
use bytes::Bytes;
use flow_diffusers::WeightFiles;
use memmap2::Mmap;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Ending of the index of a sharded checkpoint that is of no variant.
const INDEX_ENDING: &str = ".safetensors.index.json";
const ENDING: &str = ".safetensors";
/// The file of a pipeline's folder that says what is in it, and the folder of its transformer (diffusers).
const PIPELINE_FILE: &str = "model_index.json";
const TRANSFORMER: &str = "transformer";

/// A mapped file.
#[derive(Debug)]
pub struct FileMap {
    /// Where it is.
    pub path: PathBuf,
    /// What it holds.
    pub bytes: Bytes,
}

impl FileMap {
    /// Maps the file `path`.
    ///
    /// # Errors
    /// [`ModelError::Io`]; [`ModelError::Format`] if it is a folder.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let file = File::open(path).map_err(|source| io("open", path, source))?;
        if file.metadata().is_ok_and(|kind| kind.is_dir()) {
            return Err(format(path, "it is a folder"));
        }
        // SAFETY: the map is only read. Another program that shortens the file meanwhile would end this process with a
        // bus error; our own writers never change a file in place, they rename a new one over it.
        let map = unsafe { Mmap::map(&file) }.map_err(|source| io("map", path, source))?;
        Ok(Self {
            path: path.to_owned(),
            bytes: Bytes::from_owner(map),
        })
    }

    /// Its contents.
    ///
    /// # Errors
    /// [`ModelError::Format`] if it is damaged or no safetensors file.
    pub fn parse(&self) -> Result<Parsed<'_>, ModelError> {
        parse(&self.bytes).map_err(|problem| format(&self.path, &problem))
    }
}

/// Mapped weight files: one, those of a folder, or the shards of an index.
#[derive(Debug)]
pub struct Source {
    /// The files, in the order of their names.
    pub files: Vec<FileMap>,
    /// Which file the index says a tensor is in; empty without an index.
    pub placed: BTreeMap<String, PathBuf>,
}

/// The part of an index that matters.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The folder of weights that `path` stands for: of a pipeline's folder, its transformer's.
pub(crate) fn folder_of_weights(path: &Path) -> PathBuf {
    let inner = path.join(TRANSFORMER);
    if path.join(PIPELINE_FILE).is_file() && inner.is_dir() {
        return inner;
    }
    path.to_owned()
}

impl Source {
    /// Opens what `path` stands for: a file, a folder with one model, or an index.
    ///
    /// # Errors
    /// [`ModelError::Io`]; [`ModelError::Format`] for a folder that holds no weights or several models, or a damaged index.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let kind = fs::metadata(path).map_err(|source| io("open", path, source))?;
        if kind.is_dir() {
            return Self::directory(&folder_of_weights(path));
        }
        if WeightFiles::is_index(path) {
            return Self::index(path);
        }
        Ok(Self {
            files: vec![FileMap::open(path)?],
            placed: BTreeMap::new(),
        })
    }

    fn directory(path: &Path) -> Result<Self, ModelError> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path).map_err(|source| io("list", path, source))? {
            let entry = entry.map_err(|source| io("list", path, source))?;
            // Hidden files are those of systems: macOS puts `._NAME` beside `NAME`.
            if !entry.file_name().to_string_lossy().starts_with('.') {
                entries.push(entry.path());
            }
        }
        entries.sort();
        let ending = |ending: &str| -> Vec<&PathBuf> {
            let ends = |file: &&PathBuf| file.to_string_lossy().ends_with(ending);
            entries.iter().filter(ends).collect()
        };
        let (mut indices, files) = (ending(INDEX_ENDING), ending(ENDING));
        // `NAME.fp16.safetensors.index.json` is of a variant, where there are plain weights called `NAME`.
        let stem = |path: &Path| {
            let path = path.to_string_lossy();
            let path = path.strip_suffix(INDEX_ENDING).or(path.strip_suffix(ENDING));
            path.unwrap_or_default().to_owned()
        };
        let plain: Vec<String> = indices.iter().chain(&files).map(|path| stem(path)).collect();
        indices.retain(|index| {
            let stem = stem(index);
            let is_variant = |plain: &String| {
                stem.strip_prefix(plain.as_str())
                    .is_some_and(|rest| rest.starts_with('.'))
            };
            !plain.iter().any(is_variant)
        });
        match (indices.as_slice(), files.as_slice()) {
            ([index], _) => Self::index(index),
            ([], []) => Err(format(path, &nothing_in(path))),
            ([], files) => Ok(Self {
                files: chosen(path, files)?
                    .into_iter()
                    .map(FileMap::open)
                    .collect::<Result<_, _>>()?,
                placed: BTreeMap::new(),
            }),
            (several, _) => Err(format(
                path,
                &format!(
                    "the directory holds {} indices; name one of {}",
                    several.len(),
                    names(several)
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
            .map(|shard| FileMap::open(shard))
            .collect::<Result<_, _>>()?;
        Ok(Self { files, placed })
    }
}

/// The files of a folder without an index that make up one model. Of variants (`NAME.safetensors` and
/// `NAME.fp16.safetensors`) the plain one is taken, as diffusers does; shards are taken together.
fn chosen<'a>(folder: &Path, files: &[&'a PathBuf]) -> Result<Vec<&'a Path>, ModelError> {
    let name = |file: &Path| {
        file.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let stem = |file: &Path| name(file).strip_suffix(ENDING).unwrap_or_default().to_owned();
    let is_shard = |file: &&PathBuf| stem(file).contains("-of-");
    let whole: Vec<&&PathBuf> = files.iter().filter(|file| !is_shard(file)).collect();
    let variant_of = |file: &Path, plain: &str| {
        stem(file)
            .strip_prefix(plain)
            .is_some_and(|rest| rest.starts_with('.'))
    };
    let plain = whole.iter().find(|plain| {
        whole
            .iter()
            .all(|file| file == *plain || variant_of(file, &stem(plain)))
    });
    match (whole.as_slice(), plain) {
        ([], _) => Ok(files.iter().map(|file| file.as_path()).collect()),
        (_, Some(plain)) => Ok(vec![plain.as_path()]),
        (several, None) => {
            let usual = several.iter().find(|file| name(file) == DIFFUSERS_FILE);
            usual.map(|file| vec![file.as_path()]).ok_or_else(|| {
                let names = names(&several.iter().map(|file| **file).collect::<Vec<_>>());
                format(
                    folder,
                    &format!("the directory holds several weight files; name one of {names}"),
                )
            })
        }
    }
}

/// The file that diffusers loads from a model's folder (0.42.1, `utils/constants.py`).
pub(super) const DIFFUSERS_FILE: &str = "diffusion_pytorch_model.safetensors";

fn names(files: &[&PathBuf]) -> String {
    let name = |file: &&PathBuf| format!("`{}`", file.file_name().unwrap_or_default().to_string_lossy());
    let shown: Vec<String> = files.iter().take(12).map(name).collect();
    shown.join(", ")
}

/// What to do with a folder without weights.
fn nothing_in(path: &Path) -> String {
    let inner = path.join(TRANSFORMER);
    let has = |ending: &str| {
        fs::read_dir(path).is_ok_and(|mut entries| {
            entries.any(|entry| entry.is_ok_and(|it| it.file_name().to_string_lossy().ends_with(ending)))
        })
    };
    let hint = if inner.is_dir() {
        format!("; name `{}`", inner.display())
    } else if has(".bin") || has(".pt") || has(".pth") || has(".ckpt") {
        "; what is there are pickles, which are programs and are not run: save the model with \
         `save_pretrained(FOLDER, safe_serialization=True)`"
            .into()
    } else {
        String::new()
    };
    format!("the directory holds no `*.safetensors` and no `*.safetensors.index.json`{hint}")
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
