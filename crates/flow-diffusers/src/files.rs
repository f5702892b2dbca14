//! Which files hold the weights of a model: one, or shards with an index; the plain ones, or those of a variant.
//!
//! Names are those of diffusers 0.42.1 and transformers 5.24: `diffusion_pytorch_model` or `model`, then the variant behind a dot,
//! then `.safetensors`; of shards the index is `NAME.safetensors.index.json`, with a variant `NAME.safetensors.index.VARIANT.json`.

use crate::names::list;
use crate::{FolderError, read_json};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ENDING: &str = ".safetensors";
const INDEX: &str = ".safetensors.index.";
/// Names that diffusers and transformers look for.
const STEMS: [&str; 2] = ["diffusion_pytorch_model", "model"];
/// Endings of files that are programs to Python.
const PICKLES: [&str; 5] = [".bin", ".pt", ".pth", ".ckpt", ".msgpack"];

/// The weight files of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightFiles {
    /// The folder they are in.
    pub folder: PathBuf,
    /// The files, sorted by name.
    pub files: Vec<PathBuf>,
    /// The variant that they are of.
    pub variant: Option<String>,
    /// The index that names them, if there is one.
    pub index: Option<PathBuf>,
    /// The file in which the index has each tensor; empty without an index.
    pub placed: BTreeMap<String, PathBuf>,
}

#[derive(Deserialize)]
struct IndexFile {
    weight_map: BTreeMap<String, String>,
}

/// What a folder holds, by name.
struct Listing {
    folder: PathBuf,
    names: Vec<String>,
}

impl WeightFiles {
    /// The weights in `folder`: those of `variant` (such as `fp16` or `bf16`) if it has them, and otherwise the plain ones, as
    /// diffusers does for components that come in one form only. An index counts before a single file.
    ///
    /// # Errors
    /// [`FolderError`], which names every file that is missing, the variants that are there, or the files of which one has to
    /// be named.
    pub fn find(folder: &Path, variant: Option<&str>) -> Result<Self, FolderError> {
        let listing = Listing::read(folder)?;
        if let Some(found) = variant
            .map(|variant| listing.stems(Some(variant)))
            .transpose()?
            .flatten()
        {
            return Ok(found);
        }
        if let Some(found) = listing.stems(None)? {
            return Ok(found);
        }
        listing.others(variant)
    }

    /// One file by name, whatever is beside it.
    pub fn single(path: &Path) -> Self {
        Self {
            folder: path.parent().unwrap_or(Path::new("")).to_owned(),
            files: vec![path.to_owned()],
            variant: None,
            index: None,
            placed: BTreeMap::new(),
        }
    }

    /// The variants that `folder` has weights of, sorted.
    ///
    /// # Errors
    /// [`FolderError::Io`].
    pub fn variants(folder: &Path) -> Result<Vec<String>, FolderError> {
        Ok(Listing::read(folder)?.variants())
    }
}

impl Listing {
    fn read(folder: &Path) -> Result<Self, FolderError> {
        let io = |source| FolderError::Io {
            action: "list",
            path: folder.to_owned(),
            source,
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(folder).map_err(io)? {
            let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
            // Hidden files are those of systems: macOS puts `._NAME` beside `NAME`.
            if !name.starts_with('.') {
                names.push(name);
            }
        }
        names.sort();
        Ok(Self {
            folder: folder.to_owned(),
            names,
        })
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|it| it == name)
    }

    /// The weights under one of the usual names.
    fn stems(&self, variant: Option<&str>) -> Result<Option<WeightFiles>, FolderError> {
        for stem in STEMS {
            let (index, single) = match variant {
                Some(variant) => (
                    format!("{stem}{INDEX}{variant}.json"),
                    format!("{stem}.{variant}{ENDING}"),
                ),
                None => (format!("{stem}{INDEX}json"), format!("{stem}{ENDING}")),
            };
            if self.has(&index) {
                return self.index(&index, variant).map(Some);
            }
            if self.has(&single) {
                return self.whole(vec![single], variant).map(Some);
            }
        }
        Ok(None)
    }

    fn index(&self, name: &str, variant: Option<&str>) -> Result<WeightFiles, FolderError> {
        let path = self.folder.join(name);
        let file: Option<IndexFile> = read_json(&path)?;
        let map = file.map(|file| file.weight_map).unwrap_or_default();
        let mut placed = BTreeMap::new();
        for (tensor, shard) in map {
            // A name with folders could point anywhere; no writer of such indices makes one.
            if Path::new(&shard).file_name() != Some(shard.as_ref()) {
                return Err(FolderError::File {
                    path,
                    problem: format!("it puts `{tensor}` into `{shard}`; a shard must lie beside its index"),
                });
            }
            placed.insert(tensor, self.folder.join(shard));
        }
        let shards: BTreeSet<&PathBuf> = placed.values().collect();
        let files: Vec<PathBuf> = shards.into_iter().cloned().collect();
        self.expect(name, &files)?;
        Ok(WeightFiles {
            folder: self.folder.clone(),
            files,
            variant: variant.map(str::to_owned),
            index: Some(path),
            placed,
        })
    }

    /// Files without an index.
    fn whole(&self, names: Vec<String>, variant: Option<&str>) -> Result<WeightFiles, FolderError> {
        let files: Vec<PathBuf> = names.iter().map(|name| self.folder.join(name)).collect();
        self.expect("the folder", &files)?;
        Ok(WeightFiles {
            folder: self.folder.clone(),
            files,
            variant: variant.map(str::to_owned),
            index: None,
            placed: BTreeMap::new(),
        })
    }

    /// Refuses if one of `files` is not there; a link to nothing, as an interrupted download leaves it, is not there.
    fn expect(&self, by: &str, files: &[PathBuf]) -> Result<(), FolderError> {
        let missing: Vec<String> = files
            .iter()
            .filter(|file| !file.is_file())
            .map(|file| {
                file.file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(FolderError::Missing {
            folder: self.folder.clone(),
            by: by.to_owned(),
            named: files.len(),
            missing,
            advice: "The download was not finished, or not the whole folder was copied: download it again, which goes on where it \
                     stopped"
                .into(),
        })
    }

    /// Weights under other names: shards without an index, or one file; otherwise why there are none.
    fn others(&self, variant: Option<&str>) -> Result<WeightFiles, FolderError> {
        let files: Vec<&String> = self.names.iter().filter(|name| name.ends_with(ENDING)).collect();
        let (shards, single): (Vec<&String>, Vec<&String>) =
            files.into_iter().partition(|name| shard_of(name).is_some());
        let refused = |problem: String| {
            Err(FolderError::Folder {
                folder: self.folder.clone(),
                problem,
            })
        };
        let variants = self.variants();
        if !variants.is_empty() {
            let asked = variant
                .map(|asked| format!(" and not `{asked}`"))
                .unwrap_or_default();
            return refused(format!(
                "it has weights of the variant {}{asked}, and none without a variant; name the variant",
                list(&variants, 12)
            ));
        }
        match (shards.as_slice(), single.as_slice()) {
            ([], []) => refused(self.nothing()),
            ([], [one]) => self.whole(vec![(*one).clone()], None),
            ([first, ..], []) => {
                let all = shard_of(first).map(|(stem, of)| {
                    (1..=of)
                        .map(|number| format!("{stem}-{number:05}-of-{of:05}{ENDING}"))
                        .collect::<Vec<_>>()
                });
                match all {
                    Some(all) if shards.iter().all(|name| all.contains(name)) => self.whole(all, None),
                    _ => refused(format!(
                        "it has shards of several models and no index: {}",
                        list(&shards, 12)
                    )),
                }
            }
            (_, several) => {
                let names: Vec<&String> = shards.iter().chain(several).copied().collect();
                refused(format!(
                    "it has several weight files, and none is `{}{ENDING}` or `{}{ENDING}`; name one of {}",
                    STEMS[0],
                    STEMS[1],
                    list(&names, 12)
                ))
            }
        }
    }

    /// What to do with a folder without weights.
    fn nothing(&self) -> String {
        let pickles: Vec<&String> = self
            .names
            .iter()
            .filter(|name| PICKLES.iter().any(|ending| name.ends_with(ending)))
            .collect();
        if !pickles.is_empty() {
            return format!(
                "it has no `*.safetensors`; {} are pickles, which are programs and are not run: in Python, load the model and \
                 `save_pretrained(FOLDER, safe_serialization=True)`",
                list(&pickles, 4)
            );
        }
        if let Some(quantised) = self.names.iter().find(|name| name.ends_with(".gguf")) {
            return format!(
                "`{quantised}` holds quantised weights (GGUF), which are not read; download the model's own weights"
            );
        }
        "it has no `*.safetensors`; the weights were not downloaded, or are elsewhere".into()
    }

    fn variants(&self) -> Vec<String> {
        let mut variants = BTreeSet::new();
        for name in &self.names {
            for stem in STEMS {
                let Some(rest) = name.strip_prefix(stem) else {
                    continue;
                };
                let single = rest.strip_prefix('.').and_then(|rest| rest.strip_suffix(ENDING));
                let index = rest
                    .strip_prefix(INDEX)
                    .and_then(|rest| rest.strip_suffix(".json"));
                // Shards of a variant are found by their index.
                let variant = single
                    .filter(|it| shard_of(name).is_none() && !it.is_empty())
                    .or(index);
                variants.extend(variant.map(str::to_owned));
            }
        }
        variants.into_iter().collect()
    }
}

/// The stem and the number of shards that a shard's name gives.
fn shard_of(name: &str) -> Option<(String, usize)> {
    let stem = name.strip_suffix(ENDING)?;
    let (front, of) = stem.rsplit_once("-of-")?;
    let (stem, number) = front.rsplit_once('-')?;
    let is_number = |digits: &str| digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(of) && is_number(number)).then(|| of.parse().ok().map(|of| (stem.to_owned(), of)))?
}
