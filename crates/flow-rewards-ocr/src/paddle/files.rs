//! Finding, reading and verifying the files of PP-OCR.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use flow_registry::Refusal;
use flow_rewards::RewardError;
use sha2::{Digest, Sha256};

use crate::reward::NAME;
use crate::settings::OcrSettings;

/// What to do about a file that is not there.
const FETCH: &str = "the page on rewards says where PP-OCR's files can be had";

/// The contents of PP-OCR's files.
pub(super) struct Files {
    pub recogniser: Content,
    /// There where text is looked for.
    pub detector: Option<Content>,
    pub dictionary: Option<String>,
}

/// A file with what is in it.
pub(super) struct Content {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
}

impl Content {
    /// An error about this file.
    pub fn refused(&self, problem: Refusal) -> RewardError {
        refused(&self.path, problem)
    }
}

fn refused(path: &Path, problem: impl Into<Refusal>) -> RewardError {
    RewardError::File {
        reward: NAME.to_owned(),
        file: path.display().to_string(),
        problem: problem.into(),
    }
}

impl Files {
    /// Reads what the settings name.
    ///
    /// # Errors
    /// [`RewardError::File`] for a file that is not there, cannot be read, or has another SHA-256 than the settings say, and
    /// [`RewardError::Params`] for a SHA-256 of a file that is not read.
    pub fn read(settings: &OcrSettings) -> Result<Self, RewardError> {
        let mut reader = Verifying {
            settings,
            read: BTreeSet::new(),
        };
        let (folder, recogniser) = if settings.path.is_dir() {
            (settings.path.clone(), network(&settings.path, "rec", "path")?)
        } else {
            let folder = settings.path.parent().map(Path::to_owned).unwrap_or_default();
            (folder, settings.path.clone())
        };
        let recogniser = reader.read(&recogniser)?;
        let detector = match (&settings.detector, settings.detect) {
            (_, false) => None,
            (Some(path), true) => Some(reader.read(path)?),
            (None, true) => Some(reader.read(&network(&folder, "det", "detector")?)?),
        };
        let dictionary = settings.dictionary.as_deref().map(|path| {
            let content = reader.read(path)?;
            String::from_utf8(content.bytes)
                .map_err(|_| refused(path, "it is no text in UTF-8, as a dictionary is"))
        });
        let dictionary = dictionary.transpose()?;
        reader.all_read()?;
        Ok(Self {
            recogniser,
            detector,
            dictionary,
        })
    }
}

/// Reads files and compares them with the hashes of the settings.
struct Verifying<'a> {
    settings: &'a OcrSettings,
    /// Names of files that were read.
    read: BTreeSet<String>,
}

impl Verifying<'_> {
    fn read(&mut self, path: &Path) -> Result<Content, RewardError> {
        let bytes = fs::read(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => refused(path, Refusal::new("it is not there", FETCH)),
            _ => refused(path, format!("it cannot be read: {error}")),
        })?;
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if let Some(wanted) = self.settings.sha256.get(&name) {
            let found: String = Sha256::digest(&bytes)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            if !found.eq_ignore_ascii_case(wanted) {
                return Err(refused(
                    path,
                    Refusal::new(
                        format!("its SHA-256 is {found}, and `sha256` says {wanted}"),
                        "it is another file, or one that is damaged",
                    ),
                ));
            }
        }
        self.read.insert(name);
        Ok(Content {
            path: path.to_owned(),
            bytes,
        })
    }

    /// Refuses a hash that nothing was compared with.
    fn all_read(&self) -> Result<(), RewardError> {
        let Some(name) = self
            .settings
            .sha256
            .keys()
            .find(|name| !self.read.contains(*name))
        else {
            return Ok(());
        };
        let read: Vec<String> = self.read.iter().map(|name| format!("`{name}`")).collect();
        Err(RewardError::Params {
            reward: NAME.to_owned(),
            problem: Refusal::new(
                format!(
                    "`sha256` has `{name}`, and files of other names are read: {}",
                    read.join(", ")
                ),
                "correct the name, or take it out",
            ),
        })
    }
}

/// The one ONNX file in a folder that has `part` in its name; `key` is the setting that can name it.
fn network(folder: &Path, part: &str, key: &str) -> Result<PathBuf, RewardError> {
    let shown = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let entries = fs::read_dir(shown).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => refused(shown, Refusal::new("it is not there", FETCH)),
        _ => refused(shown, format!("it cannot be read: {error}")),
    })?;
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut onnx: Vec<String> = names
        .filter(|name| name.to_ascii_lowercase().ends_with(".onnx"))
        .collect();
    onnx.sort_unstable();
    let list = |names: &[String]| {
        names
            .iter()
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let fitting: Vec<String> = onnx
        .iter()
        .filter(|name| name.to_ascii_lowercase().contains(part))
        .cloned()
        .collect();
    match fitting.as_slice() {
        [name] => Ok(folder.join(name)),
        [] if onnx.is_empty() => Err(refused(shown, Refusal::new("there is no ONNX file in it", FETCH))),
        [] => Err(refused(
            shown,
            Refusal::new(
                format!(
                    "of its ONNX files, {}, none has `{part}` in its name",
                    list(&onnx)
                ),
                format!("name one as `{key}`"),
            ),
        )),
        several => Err(refused(
            shown,
            Refusal::new(
                format!(
                    "several ONNX files have `{part}` in their names, {}",
                    list(several)
                ),
                format!("name one as `{key}`"),
            ),
        )),
    }
}
