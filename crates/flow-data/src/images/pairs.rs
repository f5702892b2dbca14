//! Pairs of pictures of a file: which of two a person, or a judge, liked better for a prompt.

use super::list::{Captioned, explained, note_of};
use super::preferences::PreferencesSettings;
use crate::error::DataError;
use crate::picture;
use crate::prompt_list::{PromptEntry, PromptFormat, PromptList, PromptListError, listed, read};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The pairs of a file, all of which were looked at.
#[derive(Debug)]
pub(super) struct PairList {
    pub prompts: PromptList,
    /// Keys of the better and of the worse picture in the prompts' metadata.
    keys: [String; 2],
    /// Where relative paths start.
    folder: PathBuf,
    /// What the owner may want to know.
    pub notes: Vec<String>,
}

pub(super) fn failed(error: PromptListError) -> DataError {
    DataError::Pictures {
        problem: error.to_string(),
    }
}

impl PairList {
    /// Reads what `path` lists, and looks at each pair.
    ///
    /// # Errors
    /// [`DataError::Pictures`] with every line that is no pair.
    pub fn read(path: &Path, settings: &PreferencesSettings) -> Result<Self, DataError> {
        let refused = |problem: &str| DataError::Pictures {
            problem: format!("the preferences `{}`: {problem}", path.display()),
        };
        if !path.exists() {
            return Err(refused(
                "there is nothing there; a relative path in a config starts from the config's folder",
            ));
        }
        let format = PromptFormat::from_path(path);
        if path.is_dir() || !matches!(format, Some(PromptFormat::JsonLines | PromptFormat::Table)) {
            return Err(refused(
                "it is no `.jsonl` or `.csv` with a prompt and the paths of two pictures",
            ));
        }
        let prompts = PromptList::read(path, &settings.prompt_key).map_err(failed)?;
        let notes = prompts.notes().iter().filter_map(|note| note_of(path, note));
        let list = Self {
            notes: notes.collect(),
            keys: [settings.chosen_key.clone(), settings.rejected_key.clone()],
            folder: path.parent().unwrap_or(Path::new("")).to_owned(),
            prompts,
        };
        list.looked_at()
    }

    /// Finds everything that is wrong with a pair, with the number of its line.
    fn looked_at(self) -> Result<Self, DataError> {
        let problems: Vec<String> = (self.prompts.entries().iter())
            .flat_map(|entry| {
                let problems = self.problems_of(entry).into_iter();
                problems.map(move |problem| format!("line {}: {problem}", entry.line))
            })
            .collect();
        if problems.is_empty() {
            return Ok(self);
        }
        Err(DataError::Pictures {
            problem: format!(
                "the preferences `{}`: {} problem(s) in {} lines{}",
                self.prompts.path().display(),
                problems.len(),
                self.prompts.len(),
                listed(&problems)
            ),
        })
    }

    /// What is wrong with a pair: a picture that is not there or is none, two that are the same, and two of unlike sizes, of which other
    /// parts would be cut away.
    fn problems_of(&self, entry: &PromptEntry) -> Vec<String> {
        let looked = self.keys.each_ref().map(|key| {
            let path = self.path_of(entry, key)?;
            match picture::size_of(&path) {
                Ok(size) => Ok((path, size)),
                Err(error) => {
                    let written = entry.metadata.get(key).and_then(Value::as_str);
                    let problem = explained(written.unwrap_or_default(), error.problem);
                    Err(format!("`{key}`, `{}`: {problem}", path.display()))
                }
            }
        });
        let [chosen, rejected] = &self.keys;
        match looked {
            [Ok((better, size)), Ok((worse, other))] => {
                if is_same(&better, &worse) {
                    return vec![format!(
                        "`{chosen}` and `{rejected}` are the same picture, so that there is nothing to prefer; take the line out"
                    )];
                }
                if size == other {
                    return Vec::new();
                }
                vec![format!(
                    "`{chosen}` has {} x {} pixels and `{rejected}` {} x {}; make both the same size, or take the line out",
                    size.0, size.1, other.0, other.1
                )]
            }
            looked => looked.into_iter().filter_map(Result::err).collect(),
        }
    }

    fn path_of(&self, entry: &PromptEntry, key: &str) -> Result<PathBuf, String> {
        match entry.metadata.get(key) {
            Some(Value::String(path)) if !path.trim().is_empty() => Ok(self.folder.join(path)),
            Some(other) => Err(format!("`{key}` is {other}, and the path of a picture is a text")),
            None => {
                let names = entry.metadata.keys().map(String::as_str);
                Err(format!(
                    "{}; `data.chosen_key` and `data.rejected_key` name the keys",
                    read::without(key, names)
                ))
            }
        }
    }

    /// The pictures of `prompts`, some or all of this list's: of each pair the better one, then the worse one.
    pub fn pictures_of(&self, prompts: &PromptList) -> Vec<Captioned> {
        let mut all = Vec::with_capacity(2 * prompts.len());
        for written in prompts.entries() {
            let mut entry = written.clone();
            for key in &self.keys {
                entry.metadata.shift_remove(key);
            }
            // All were looked at.
            let paths = self.keys.iter().filter_map(|key| self.path_of(written, key).ok());
            all.extend(paths.map(|picture| Captioned {
                place: format!(
                    "`{}` (line {} of `{}`)",
                    picture.display(),
                    entry.line,
                    self.prompts.path().display()
                ),
                picture,
                entry: entry.clone(),
            }));
        }
        all
    }
}

/// Whether two pictures are one file, or files of the same bytes. Files of unlike lengths are not read.
fn is_same(one: &Path, other: &Path) -> bool {
    if one == other {
        return true;
    }
    let length = |path: &Path| fs::metadata(path).ok().map(|found| found.len());
    if length(one) != length(other) {
        return false;
    }
    let bytes = |path: &Path| fs::read(path).ok();
    bytes(one).is_some_and(|one| Some(one) == bytes(other))
}
