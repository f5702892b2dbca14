//! What a path looks like that is no pipeline's folder, and what to do with it.

use crate::component::{class_of, config_of_folder};
use crate::hub::Repository;
use crate::pipeline::INDEX_FILE;
use crate::safetensors::parse;
use memmap2::Mmap;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// What is at a path instead of a pipeline's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Looks {
    /// Nothing.
    Nothing {
        /// The path as it was written.
        name: String,
    },
    /// A LoRA of diffusers, peft or another program.
    Lora,
    /// The folder of one model of a pipeline.
    Model {
        /// Its class.
        class: String,
        /// The pipeline's folder that it lies in.
        parent: Option<PathBuf>,
    },
    /// The folder of a scheduler or of a tokenizer.
    Other {
        /// Which.
        what: &'static str,
        /// The pipeline's folder that it lies in.
        parent: Option<PathBuf>,
    },
    /// A whole model in one file, as its authors or ComfyUI have it.
    SingleFile {
        /// What it is of, as far as names of tensors tell.
        what: Option<&'static str>,
    },
    /// A file of weights with names of diffusers, out of a pipeline's folder.
    WeightFile {
        /// The pipeline's folder that it lies in.
        parent: Option<PathBuf>,
    },
    /// A pickle.
    Pickle,
    /// Quantised weights.
    Gguf,
    /// A repository in the hub's cache, with its snapshots.
    Cache {
        /// Its snapshots that are pipelines' folders.
        snapshots: Vec<PathBuf>,
    },
    /// A folder with pipelines' folders in it.
    Above {
        /// Those folders.
        folders: Vec<PathBuf>,
    },
    /// An empty folder.
    Empty,
    /// A folder in which a download was not finished.
    Unfinished,
    /// Some other file.
    File,
    /// Some other folder.
    Folder,
}

impl Looks {
    /// Looks at `path`.
    pub fn of(path: &Path) -> Self {
        if path.is_dir() {
            return Self::of_folder(path);
        }
        if path.is_file() {
            return Self::of_file(path);
        }
        Self::Nothing {
            name: path.to_string_lossy().into_owned(),
        }
    }

    fn of_folder(folder: &Path) -> Self {
        let names = entries(folder);
        let has = |name: &str| names.iter().any(|it| it == name);
        let parent = || {
            let parent = folder.canonicalize().ok()?.parent()?.to_owned();
            parent.join(INDEX_FILE).is_file().then_some(parent)
        };
        if names.is_empty() {
            return Self::Empty;
        }
        if has("adapter_config.json")
            || has("adapter_model.safetensors")
            || has("pytorch_lora_weights.safetensors")
        {
            return Self::Lora;
        }
        if has("snapshots") && has("refs") {
            return Self::Cache {
                snapshots: below(&folder.join("snapshots")),
            };
        }
        if has("scheduler_config.json") {
            return Self::Other {
                what: "a scheduler",
                parent: parent(),
            };
        }
        if let Ok(Some(config)) = config_of_folder(folder)
            && let Some(class) = class_of(&config)
        {
            return Self::Model {
                class: class.to_owned(),
                parent: parent(),
            };
        }
        if has("tokenizer_config.json") || has("tokenizer.json") || has("merges.txt") {
            return Self::Other {
                what: "a tokenizer",
                parent: parent(),
            };
        }
        let inner = below(folder);
        if !inner.is_empty() {
            return Self::Above { folders: inner };
        }
        let weights: Vec<&String> = names
            .iter()
            .filter(|name| name.ends_with(".safetensors"))
            .collect();
        if let [only] = weights.as_slice() {
            return Self::of_file(&folder.join(only));
        }
        // Components without the index that names them, or the hub's records of a download.
        if has(".cache")
            || has("transformer")
            || has("vae")
            || names.iter().any(|name| name.ends_with(".incomplete"))
        {
            return Self::Unfinished;
        }
        if names.iter().any(|name| name.ends_with(".gguf")) {
            return Self::Gguf;
        }
        Self::Folder
    }

    fn of_file(path: &Path) -> Self {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.ends_with(".gguf") {
            return Self::Gguf;
        }
        if [".bin", ".pt", ".pth", ".ckpt"]
            .iter()
            .any(|ending| name.ends_with(ending))
        {
            return Self::Pickle;
        }
        let names = tensors_of(path).unwrap_or_default();
        if names.is_empty() {
            return Self::File;
        }
        let any = |part: &str| names.iter().any(|name| name.contains(part));
        if any(".lora_A.") || any(".lora_down.") || any("lora_unet_") || any(".lora.down.") {
            return Self::Lora;
        }
        let single = |what| Self::SingleFile { what: Some(what) };
        if any("double_blocks.") {
            return single("FLUX");
        }
        if any("joint_blocks.") {
            return single("Stable Diffusion 3");
        }
        if any("blocks.0.self_attn.q.") {
            return single("Wan");
        }
        if any("model.diffusion_model.") || any("first_stage_model.") {
            return Self::SingleFile { what: None };
        }
        let above = path.canonicalize().ok().and_then(|path| {
            let folder = path.parent()?.parent()?.to_owned();
            folder.join(INDEX_FILE).is_file().then_some(folder)
        });
        Self::WeightFile { parent: above }
    }

    /// What to do with it, in a sentence.
    pub fn advice(&self) -> String {
        let named = |parent: &Option<PathBuf>| match parent {
            Some(parent) => format!("Name the folder around it: `{}`", parent.display()),
            None => "Download the whole pipeline, and name its folder".into(),
        };
        let which = |folders: &[PathBuf]| {
            let names: Vec<String> = folders
                .iter()
                .take(8)
                .map(|it| format!("`{}`", it.display()))
                .collect();
            format!("Name one of {}", names.join(", "))
        };
        match self {
            Self::Nothing { name } => match Repository::parse(name) {
                Some(repository) => format!(
                    "Check the path; if the repository on the hub is meant, `flow-train fetch {repository}` makes a folder of it"
                ),
                None => "Check the path".into(),
            },
            Self::Lora => {
                "Name the folder of the model that it was made for; the LoRA is named besides".into()
            }
            Self::Model { parent, .. } | Self::Other { parent, .. } | Self::WeightFile { parent } => {
                named(parent)
            }
            Self::SingleFile { .. } => {
                "Download the same model in the layout of diffusers, or convert it in Python: \
                 `PIPELINE_CLASS.from_single_file(FILE).save_pretrained(FOLDER)`"
                    .into()
            }
            Self::Pickle => "Pickles are programs and are not run: convert it in Python, \
                 `PIPELINE_CLASS.from_single_file(FILE).save_pretrained(FOLDER)`"
                .into(),
            Self::Gguf => {
                "They cannot be trained: download the model's own weights, in the layout of diffusers".into()
            }
            Self::Cache { snapshots } if !snapshots.is_empty() => which(snapshots),
            Self::Cache { .. } | Self::Unfinished => {
                "Download it again, which goes on where it stopped (`hf download ORGANISATION/NAME`)".into()
            }
            Self::Above { folders } => which(folders),
            Self::Empty => "Download the model into it, or check the path".into(),
            Self::File | Self::Folder => "Check the path".into(),
        }
    }
}

impl fmt::Display for Looks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing { .. } => f.write_str("not there"),
            Self::Lora => f.write_str("a LoRA"),
            Self::Model { class, .. } => write!(f, "the folder of one model alone (a {class})"),
            Self::Other { what, .. } => write!(f, "the folder of {what} alone"),
            Self::SingleFile { what: Some(what) } => {
                write!(f, "a {what} model in a single file, with its authors' names")
            }
            Self::SingleFile { what: None } => f.write_str("a model in a single file"),
            Self::WeightFile { .. } => f.write_str("a file of weights alone"),
            Self::Pickle => f.write_str("a pickle"),
            Self::Gguf => f.write_str("a model in quantised weights (GGUF)"),
            Self::Cache { .. } => f.write_str("a repository in the hub's cache"),
            Self::Above { .. } => f.write_str("a folder around folders of pipelines"),
            Self::Empty => f.write_str("an empty folder"),
            Self::Unfinished => f.write_str("a folder in which a download was not finished"),
            Self::File => f.write_str("a file of another kind"),
            Self::Folder => f.write_str("a folder of another kind"),
        }
    }
}

/// The names in a folder, hidden ones included.
fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|it| it.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The pipelines' folders right below `folder`.
fn below(folder: &Path) -> Vec<PathBuf> {
    let inner = entries(folder).into_iter().map(|name| folder.join(name));
    inner.filter(|inner| inner.join(INDEX_FILE).is_file()).collect()
}

/// The names of the tensors in a file, if it can be read.
fn tensors_of(path: &Path) -> Option<Vec<String>> {
    let file = File::open(path).ok()?;
    // SAFETY: the map is only read, and dropped before this function returns. Another program that shortens the file
    // meanwhile would end this process with a bus error.
    let bytes = unsafe { Mmap::map(&file) }.ok()?;
    let parsed = parse(&bytes).ok()?;
    Some(parsed.tensors.into_iter().map(|tensor| tensor.name).collect())
}
