//! Which pictures there are, with their captions: of a file of metadata, or of text files beside the pictures.

use super::ImagesSettings;
use crate::error::DataError;
use crate::picture;
use crate::prompt_list::{PromptEntry, PromptFormat, PromptList, PromptListError, listed, read};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Files of metadata in a folder, as Hugging Face's imagefolder has them.
const METADATA: [&str; 2] = ["metadata.jsonl", "metadata.csv"];
/// Keys of such files: the picture, the caption.
const FOLDER_KEYS: (&str, &str) = ("file_name", "text");
/// Keys of other files.
const FILE_KEYS: (&str, &str) = ("image", "caption");
/// The key under which [`PromptEntry::metadata`] has the picture's path, if nobody named another.
const SIDECAR_KEY: &str = FOLDER_KEYS.0;

/// One picture with its caption.
#[derive(Clone, Debug)]
pub(super) struct Captioned {
    pub picture: PathBuf,
    /// What a person finds it by: its path, and the line that names it.
    pub place: String,
    pub entry: PromptEntry,
}

/// The pictures of a folder or a file.
#[derive(Debug)]
pub(super) struct PictureList {
    pub captions: PromptList,
    /// Key of the picture in the captions' metadata.
    key: String,
    /// Where relative paths start.
    folder: PathBuf,
    /// Whether lines are those of a file.
    has_lines: bool,
    /// What the owner may want to know.
    pub notes: Vec<String>,
}

fn failed(error: PromptListError) -> DataError {
    DataError::Pictures {
        problem: error.to_string(),
    }
}

impl PictureList {
    /// Reads what `path` lists, and looks at the beginning of each picture.
    pub fn read(path: &Path, settings: &ImagesSettings) -> Result<Self, DataError> {
        let refused = |problem: String| {
            Err(DataError::Pictures {
                problem: format!("the pictures `{}`: {problem}", path.display()),
            })
        };
        if !path.exists() {
            return refused(
                "there is nothing there; a relative path in a config starts from the config's folder".into(),
            );
        }
        if !path.is_dir() {
            return match PromptFormat::from_path(path) {
                Some(PromptFormat::JsonLines | PromptFormat::Table) => {
                    let is_metadata = path.file_name().is_some_and(|name| METADATA.map(AsRef::as_ref).contains(&name));
                    Self::of_file(path, if is_metadata { FOLDER_KEYS } else { FILE_KEYS }, settings)
                }
                _ => refused(
                    "it is no folder, and no `.jsonl` or `.csv` with the paths of pictures and their captions".into(),
                ),
            };
        }
        let there: Vec<PathBuf> = METADATA
            .iter()
            .map(|name| path.join(name))
            .filter(|file| file.is_file())
            .collect();
        match there.as_slice() {
            [] => Self::of_sidecars(path, settings),
            [file] => Self::of_file(file, FOLDER_KEYS, settings),
            _ => refused(
                "it has `metadata.jsonl` and `metadata.csv`; keep one of them, or name one in `data.path`"
                    .into(),
            ),
        }
    }

    fn of_file(path: &Path, keys: (&str, &str), settings: &ImagesSettings) -> Result<Self, DataError> {
        let key = settings.image_key.as_deref().unwrap_or(keys.0).to_owned();
        let caption = settings.caption_key.as_deref().unwrap_or(keys.1);
        let captions = PromptList::read(path, caption).map_err(failed)?;
        let list = Self {
            notes: captions
                .notes()
                .iter()
                .filter_map(|note| note_of(path, note))
                .collect(),
            captions,
            key,
            folder: path.parent().unwrap_or(Path::new("")).to_owned(),
            has_lines: true,
        };
        list.looked_at()
    }

    fn of_sidecars(folder: &Path, settings: &ImagesSettings) -> Result<Self, DataError> {
        let refused = |problem: String| DataError::Pictures {
            problem: format!("the pictures `{}`: {problem}", folder.display()),
        };
        for (name, key) in [
            ("image_key", &settings.image_key),
            ("caption_key", &settings.caption_key),
        ] {
            if let Some(key) = key {
                return Err(refused(format!(
                    "`data.{name}` is \"{key}\", and the folder has no `metadata.jsonl` or `metadata.csv` with such a key"
                )));
            }
        }
        let (pictures, others) = picture::pictures_below(folder).map_err(|error| refused(error.problem))?;
        if pictures.is_empty() {
            return Err(refused(
                "there is no picture in it (`.png`, `.jpg`, `.jpeg` or `.webp`), nor a `metadata.jsonl` that names some".into(),
            ));
        }
        let mut problems = Vec::new();
        let mut captions = Vec::new();
        for picture in &pictures {
            let name = picture.strip_prefix(folder).unwrap_or(picture);
            match (sidecar(picture), name.to_str()) {
                (Err(problem), _) => problems.push(format!("`{}`: {problem}", name.display())),
                (_, None) => problems.push(format!("`{}`: its name is no UTF-8; rename it", name.display())),
                (Ok(text), Some(name)) => {
                    captions.push((text, Map::from_iter([(SIDECAR_KEY.to_owned(), name.into())])));
                }
            }
        }
        if !problems.is_empty() {
            return Err(refused(format!(
                "{} of {} pictures have no caption that can be read{}",
                problems.len(),
                pictures.len(),
                listed(&problems)
            )));
        }
        let mut notes = Vec::new();
        let without_picture = others.saturating_sub(captions.len());
        if without_picture > 0 {
            notes.push(format!(
                "`{}`: {without_picture} file(s) are no pictures in PNG, JPEG or WebP by their names, nor captions of one, and are left out",
                folder.display()
            ));
        }
        let list = Self {
            captions: PromptList::of_captions(folder, captions.into_iter()).map_err(failed)?,
            key: SIDECAR_KEY.to_owned(),
            folder: folder.to_owned(),
            has_lines: false,
            notes,
        };
        list.looked_at()
    }

    /// Finds every picture that is not there or is none.
    fn looked_at(self) -> Result<Self, DataError> {
        let mut problems = Vec::new();
        for entry in self.captions.entries() {
            let problem = match self.path_of(entry) {
                Ok(path) => picture::look(&path)
                    .err()
                    .map(|error| format!("`{}`: {}", path.display(), self.explained(entry, error.problem))),
                Err(problem) => Some(problem),
            };
            if let Some(problem) = problem {
                problems.push(match self.has_lines {
                    true => format!("line {}: {problem}", entry.line),
                    false => problem,
                });
            }
        }
        if problems.is_empty() {
            return Ok(self);
        }
        Err(DataError::Pictures {
            problem: format!(
                "the pictures of `{}`: {} of {} cannot be read{}",
                self.captions.path().display(),
                problems.len(),
                self.captions.len(),
                listed(&problems)
            ),
        })
    }

    /// Why a picture is not there, as far as its path says it.
    fn explained(&self, entry: &PromptEntry, problem: String) -> String {
        let written = entry.metadata.get(&self.key).and_then(Value::as_str);
        explained(written.unwrap_or_default(), problem)
    }

    fn path_of(&self, entry: &PromptEntry) -> Result<PathBuf, String> {
        match entry.metadata.get(&self.key) {
            Some(Value::String(path)) if !path.trim().is_empty() => Ok(self.folder.join(path)),
            Some(other) => Err(format!(
                "`{}` is {other}, and the path of a picture is a text",
                self.key
            )),
            None => {
                let names = entry.metadata.keys().map(String::as_str);
                Err(format!(
                    "{}; `data.image_key` and `data.caption_key` name the keys",
                    read::without(&self.key, names)
                ))
            }
        }
    }

    /// The pictures in their order, and the captions without their paths.
    pub fn into_captioned(self) -> Vec<Captioned> {
        let mut all = Vec::with_capacity(self.captions.len());
        for entry in self.captions.entries() {
            // All were looked at.
            let Ok(picture) = self.path_of(entry) else {
                continue;
            };
            let mut entry = entry.clone();
            entry.metadata.shift_remove(&self.key);
            let place = match self.has_lines {
                true => format!(
                    "`{}` (line {} of `{}`)",
                    picture.display(),
                    entry.line,
                    self.captions.path().display()
                ),
                false => format!("`{}`", picture.display()),
            };
            all.push(Captioned {
                picture,
                place,
                entry,
            });
        }
        all
    }

    /// How many pictures are there with several captions.
    pub fn with_several_captions(&self) -> usize {
        let mut counts: HashMap<PathBuf, usize> = HashMap::new();
        for path in self
            .captions
            .entries()
            .iter()
            .filter_map(|entry| self.path_of(entry).ok())
        {
            *counts.entry(path).or_default() += 1;
        }
        counts.values().filter(|count| **count > 1).count()
    }
}

/// Why a picture is not there that a file names as `written`, as far as that says it.
pub(super) fn explained(written: &str, problem: String) -> String {
    if written.contains("://") {
        return "it is an address; nothing is downloaded here, so fetch the picture and name its file".into();
    }
    if written == "~" || written.starts_with("~/") {
        return "`~` is not expanded in a file; write the path out".into();
    }
    if written.contains('\\') && !cfg!(windows) {
        return format!("{problem}; parts of a path are joined by `/` here, and this one has `\\`");
    }
    problem
}

/// What of the notes on a file of prompts is worth knowing of one of captions: that a line is there twice. That many pictures have one
/// caption is usual.
pub(super) fn note_of(path: &Path, note: &crate::PromptNote) -> Option<String> {
    let crate::PromptNote::Repeated(lines) = note else {
        return None;
    };
    Some(format!(
        "`{}`: {} line(s) are there more than once and count once, the first of them line {}",
        path.display(),
        lines.len(),
        lines[0]
    ))
}

/// The caption beside a picture, on one line.
fn sidecar(picture: &Path) -> Result<String, String> {
    let path = picture.with_extension("txt");
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let bytes = std::fs::read(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("there is no `{name}` with its caption"),
        _ => format!("`{name}` cannot be read: {error}"),
    })?;
    let text = read::text_in_words(&bytes).map_err(|problem| format!("`{name}`: {problem}"))?;
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.is_empty() {
        true => Err(format!(
            "`{name}` is empty; write a caption, or take the picture out"
        )),
        false => Ok(words.join(" ")),
    }
}
