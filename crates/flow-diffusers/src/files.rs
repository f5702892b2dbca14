//! Which files hold the weights of a model: one, or shards with an index; the plain ones, or those of a variant.
//!
//! Names are those of diffusers 0.42.1 and transformers 5.24: `diffusion_pytorch_model` or `model`, then the variant behind a dot,
//! then `.safetensors`. Of shards the index is `NAME.safetensors.index.json`, with a variant `NAME.safetensors.index.VARIANT.json`,
//! and the files are `NAME-00001-of-00002.safetensors`, with a variant `NAME.VARIANT-00001-of-00002.safetensors`. Older versions put
//! the variant elsewhere; all are read.

use crate::names::list;
use crate::{FolderError, read_json};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ENDING: &str = ".safetensors";
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

    /// Whether a path is named like the index of shards.
    pub fn is_index(path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(ENDING) && name.contains(".index.") && name.ends_with(".json")
    }

    /// Names that the index of the weights called `stem` may have, the usual one first. Those of a variant: as diffusers and
    /// transformers write it (`_add_variant` of both), as diffusers did before (`legacy_variant_index_re` in its
    /// `pipelines/pipeline_loading_utils.py`), and as other programs name it, by the file that would be one.
    pub fn index_names(stem: &str, variant: Option<&str>) -> Vec<String> {
        match variant {
            None => vec![format!("{stem}{ENDING}.index.json")],
            Some(variant) => vec![
                format!("{stem}{ENDING}.index.{variant}.json"),
                format!("{stem}{ENDING}.{variant}.index.json"),
                format!("{stem}.{variant}{ENDING}.index.json"),
            ],
        }
    }

    /// The shards that the index at `path` names.
    ///
    /// # Errors
    /// [`FolderError`] for an index that is damaged, or shards that are not there.
    pub fn of_index(path: &Path) -> Result<Self, FolderError> {
        let folder = path.parent().unwrap_or(Path::new(""));
        index(folder, path, None)
    }

    /// What names these weights to whoever takes a path: their index, the only file, or nothing if they are several files without an
    /// index.
    pub fn path(&self) -> Option<&Path> {
        match (&self.index, self.files.as_slice()) {
            (Some(index), _) => Some(index),
            (None, [file]) => Some(file),
            (None, _) => None,
        }
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

    /// The weights under one of the usual names. An index counts before a single file, and that before shards without an index.
    fn stems(&self, variant: Option<&str>) -> Result<Option<WeightFiles>, FolderError> {
        for stem in STEMS {
            let names = WeightFiles::index_names(stem, variant);
            if let Some(name) = names.iter().find(|name| self.has(name)) {
                return index(&self.folder, &self.folder.join(name), variant).map(Some);
            }
            let single = match variant {
                Some(variant) => format!("{stem}.{variant}{ENDING}"),
                None => format!("{stem}{ENDING}"),
            };
            if self.has(&single) {
                return self.whole(vec![single], variant).map(Some);
            }
            // Plain ones are found among the others, whatever their name.
            let of_variant =
                |shard: &Shard<'_>| shard.stem == stem && variant.is_some() && shard.variant == variant;
            let shard = self
                .names
                .iter()
                .filter_map(|name| shard_of(name))
                .find(of_variant);
            if let Some(shard) = shard {
                return self.whole(shard.all(), variant).map(Some);
            }
        }
        Ok(None)
    }

    /// Files without an index.
    fn whole(&self, names: Vec<String>, variant: Option<&str>) -> Result<WeightFiles, FolderError> {
        let files: Vec<PathBuf> = names.iter().map(|name| self.folder.join(name)).collect();
        expect(&self.folder, "the folder", &files)?;
        Ok(WeightFiles {
            folder: self.folder.clone(),
            files,
            variant: variant.map(str::to_owned),
            index: None,
            placed: BTreeMap::new(),
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
                "it has weights of the variant {}{asked}, and none without a variant; name the variant, as by `--set model.variant={}`",
                list(&variants, 12),
                variants[0]
            ));
        }
        match (shards.as_slice(), single.as_slice()) {
            ([], []) => refused(self.nothing()),
            ([], [one]) => self.whole(vec![(*one).clone()], None),
            ([first, ..], []) => match shard_of(first).map(|shard| shard.all()) {
                Some(all) if shards.iter().all(|name| all.contains(name)) => self.whole(all, None),
                _ => refused(format!(
                    "it has shards of several models and no index: {}",
                    list(&shards, 12)
                )),
            },
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
                variants.extend(variant_of(name, stem).map(str::to_owned));
            }
        }
        variants.into_iter().collect()
    }
}

/// The weights that the index at `path` names, of shards in `folder`.
fn index(folder: &Path, path: &Path, variant: Option<&str>) -> Result<WeightFiles, FolderError> {
    let file: Option<IndexFile> = read_json(path)?;
    let map = file.map(|file| file.weight_map).unwrap_or_default();
    let mut placed = BTreeMap::new();
    for (tensor, shard) in map {
        // A name with folders could point anywhere; no writer of such indices makes one.
        if Path::new(&shard).file_name() != Some(shard.as_ref()) {
            return Err(FolderError::File {
                path: path.to_owned(),
                problem: format!("it puts `{tensor}` into `{shard}`; a shard must lie beside its index"),
            });
        }
        placed.insert(tensor, folder.join(shard));
    }
    let shards: BTreeSet<&PathBuf> = placed.values().collect();
    let files: Vec<PathBuf> = shards.into_iter().cloned().collect();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    expect(folder, &name, &files)?;
    Ok(WeightFiles {
        folder: folder.to_owned(),
        files,
        variant: variant.map(str::to_owned),
        index: Some(path.to_owned()),
        placed,
    })
}

/// Refuses if one of `files` is not there; a link to nothing, as an interrupted download leaves it, is not there.
fn expect(folder: &Path, by: &str, files: &[PathBuf]) -> Result<(), FolderError> {
    let name = |file: &PathBuf| {
        file.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let missing: Vec<String> = files.iter().filter(|file| !file.is_file()).map(name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(FolderError::Missing {
        folder: folder.to_owned(),
        by: by.to_owned(),
        named: files.len(),
        missing,
        advice: "The download was not finished, or not the whole folder was copied: download it again, which goes on where it stopped"
            .into(),
    })
}

/// The variant that a name is of, as a single file, a shard or an index of the weights called `stem`.
fn variant_of<'a>(name: &'a str, stem: &str) -> Option<&'a str> {
    if let Some(shard) = shard_of(name) {
        return shard.variant.filter(|_| shard.stem == stem);
    }
    let rest = name.strip_prefix(stem)?;
    let between = |start: &str, end: &str| rest.strip_prefix(start)?.strip_suffix(end);
    let found = between(".", ENDING)
        .or_else(|| between(".safetensors.index.", ".json"))
        .or_else(|| between(".safetensors.", ".index.json"))
        .or_else(|| between(".", ".safetensors.index.json"));
    found.filter(|variant| !variant.is_empty())
}

/// What the name of a shard says.
struct Shard<'a> {
    /// The name before numbers and variant.
    stem: &'a str,
    variant: Option<&'a str>,
    /// Whether the variant stands behind the numbers.
    is_legacy: bool,
    /// How many shards there are.
    of: usize,
}

impl Shard<'_> {
    /// The names of all shards of its kind.
    fn all(&self) -> Vec<String> {
        let Self { stem, of, .. } = self;
        let [before, behind] = match (self.variant, self.is_legacy) {
            (None, _) => [String::new(), String::new()],
            (Some(variant), false) => [format!(".{variant}"), String::new()],
            (Some(variant), true) => [String::new(), format!(".{variant}")],
        };
        (1..=*of)
            .map(|number| format!("{stem}{before}-{number:05}-of-{of:05}{behind}{ENDING}"))
            .collect()
    }
}

/// What the name of a shard says: `STEM-00001-of-00002.safetensors`, with a variant `STEM.fp16-00001-of-00002.safetensors`, or, of
/// older versions, `STEM-00001-of-00002.fp16.safetensors`.
fn shard_of(name: &str) -> Option<Shard<'_>> {
    let body = name.strip_suffix(ENDING)?;
    let (front, of) = body.rsplit_once("-of-")?;
    let (front, number) = front.rsplit_once('-')?;
    let (of, behind) = match of.split_once('.') {
        Some((of, variant)) => (of, Some(variant)),
        None => (of, None),
    };
    let is_number = |digits: &str| digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(of) || !is_number(number) {
        return None;
    }
    let usual = STEMS.iter().find_map(|stem| {
        let variant = front.strip_prefix(stem)?.strip_prefix('.')?;
        Some((&front[..stem.len()], variant))
    });
    let (stem, variant) = match (behind, usual) {
        (Some(variant), _) => (front, Some(variant)),
        (None, Some((stem, variant))) => (stem, Some(variant)),
        (None, None) => (front, None),
    };
    Some(Shard {
        stem,
        variant,
        is_legacy: behind.is_some(),
        of: of.parse().ok()?,
    })
}
