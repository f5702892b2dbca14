//! Names of repositories on the hub, looked up in the cache that `huggingface_hub` keeps: nothing is downloaded here.
//!
//! `models--ORGANISATION--NAME/refs/REVISION` holds the commit of a revision, `snapshots/COMMIT` its files, as links to blobs.

use crate::FolderError;
use crate::names::list;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The revision that is meant where none is named.
const MAIN: &str = "main";
/// Ending of blobs that are being downloaded.
const INCOMPLETE: &str = ".incomplete";

/// A repository's name, `organisation/name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    organisation: String,
    name: String,
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.organisation, self.name)
    }
}

impl Repository {
    /// The repository that `text` names, if it reads like one: two words of letters, digits, `-`, `_` and `.`, at most 96 long.
    pub fn parse(text: &str) -> Option<Self> {
        let (organisation, name) = text.split_once('/')?;
        let is_word = |word: &str| {
            let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
            edge(word.chars().next())
                && edge(word.chars().last())
                && word
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
                && !word.contains("..")
                && !word.contains("--")
        };
        (text.len() <= 96 && is_word(organisation) && is_word(name)).then(|| Self {
            organisation: organisation.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Its folder in a cache.
    fn folder(&self, cache: &Path) -> PathBuf {
        cache.join(format!("models--{}--{}", self.organisation, self.name))
    }

    /// How it is downloaded into the cache.
    fn command(&self, revision: Option<&str>) -> String {
        let revision = revision.map(|it| format!(" --revision {it}")).unwrap_or_default();
        format!("hf download {self}{revision}")
    }
}

/// The folder of the hub's cache, by the variables of the environment that `huggingface_hub` reads; `variable` gives their
/// values.
pub fn cache_folder(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    folder("HF_HUB_CACHE")
        .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| folder("HF_HOME").map(|it| it.join("hub")))
        .or_else(|| folder("XDG_CACHE_HOME").map(|it| it.join("huggingface").join("hub")))
        .or_else(|| folder("HOME").map(|it| it.join(".cache").join("huggingface").join("hub")))
}

/// The folder that `name` stands for: itself if it is there, otherwise a repository's snapshot in `cache`.
///
/// # Errors
/// [`FolderError::Name`] with where was looked, and the command that downloads it.
pub fn locate(name: &str, revision: Option<&str>, cache: Option<&Path>) -> Result<PathBuf, FolderError> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(path.to_owned());
    }
    let refused = |problem: String| {
        Err(FolderError::Name {
            name: name.to_owned(),
            problem,
        })
    };
    let Some(repository) = Repository::parse(name) else {
        let home = if name.starts_with('~') {
            "; `~` is expanded by shells only, so write the path in full"
        } else {
            ""
        };
        return refused(format!("there is no file or folder `{name}`{home}"));
    };
    let command = repository.command(revision);
    let Some(cache) = cache else {
        return refused(format!(
            "there is no folder `{name}`. If the repository of that name on the hub is meant, download it: `{command} \
             --local-dir FOLDER`, and name the folder"
        ));
    };
    let folder = repository.folder(cache);
    if !folder.is_dir() {
        return refused(format!(
            "there is no folder `{name}`, and the repository of that name is not in the cache (`{}`). Download it: `{command}`",
            cache.display()
        ));
    }
    let asked = revision.unwrap_or(MAIN);
    match snapshot(&folder, asked) {
        Some(snapshot) => Ok(snapshot),
        None => refused(format!(
            "the repository {repository} is in the cache (`{}`), and not its revision `{asked}`{}. Download it: `{command}`",
            folder.display(),
            others(&folder)
        )),
    }
}

/// The snapshot of a revision: a branch, a tag, or a commit.
fn snapshot(folder: &Path, revision: &str) -> Option<PathBuf> {
    // A revision is no way out of the cache.
    if revision
        .split('/')
        .any(|part| part.is_empty() || part == "." || part == "..")
    {
        return None;
    }
    let commit = match fs::read_to_string(folder.join("refs").join(revision)) {
        Ok(commit) => commit.trim().to_owned(),
        Err(_) => revision.to_owned(),
    };
    let is_commit = !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let snapshot = folder.join("snapshots").join(&commit);
    (is_commit && snapshot.is_dir()).then_some(snapshot)
}

/// The revisions that are in the cache, and whether a download was interrupted.
fn others(folder: &Path) -> String {
    let names = |inner: &str| -> Vec<String> {
        let entries = fs::read_dir(folder.join(inner)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    let mut words = String::new();
    let revisions = names("refs");
    if !revisions.is_empty() {
        words = format!("; there are {}", list(&revisions, 12));
    }
    if names("blobs").iter().any(|name| name.ends_with(INCOMPLETE)) {
        words.push_str("; a download was interrupted");
    }
    words
}
