//! BLAKE3 of what files hold, as it stands in checkpoints.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{ReportError, Result};

/// BLAKE3 of some bytes; written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// Of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from(&blake3::Hasher::new().update(bytes).clone())
    }

    /// Of the file at `path`; of a folder, of the names and contents of the files in it that end in `extension`, by name.
    ///
    /// # Errors
    /// If something cannot be read.
    pub fn of_path(path: &Path, extension: &str) -> Result<Self> {
        let failed = |source| ReportError::read("file", path, source);
        if !path.is_dir() {
            return Self::of_file(path).map_err(failed);
        }
        let mut hasher = blake3::Hasher::new();
        let entries: io::Result<Vec<PathBuf>> = fs::read_dir(path)
            .map_err(failed)?
            .map(|entry| Ok(entry?.path()))
            .collect();
        let mut files = entries.map_err(failed)?;
        files.retain(|file| file.is_file() && file.extension().is_some_and(|found| found == extension));
        files.sort();
        for file in files {
            let name = file.file_name().unwrap_or_default();
            hasher.update(name.as_encoded_bytes()).update(b"\0");
            hash_file(&mut hasher, &file).map_err(failed)?;
        }
        Ok(Self::from(&hasher))
    }

    /// Of the file at `path`.
    pub(crate) fn of_file(path: &Path) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hash_file(&mut hasher, path)?;
        Ok(Self::from(&hasher))
    }

    /// The first 12 digits, to tell two hashes apart by eye.
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(12);
        text
    }
}

/// On all threads of the pool: weights have tens of gigabytes, and one thread reads one or two a second. Small files are read by the
/// calling thread. The value is that of one thread.
fn hash_file(hasher: &mut blake3::Hasher, path: &Path) -> io::Result<()> {
    hasher.update_mmap_rayon(path)?;
    Ok(())
}

impl From<&blake3::Hasher> for ContentHash {
    fn from(hasher: &blake3::Hasher) -> Self {
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({self})")
    }
}

impl From<ContentHash> for String {
    fn from(hash: ContentHash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for ContentHash {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let hash =
            blake3::Hash::from_hex(&text).map_err(|error| format!("{text:?} is no BLAKE3: {error}"))?;
        Ok(Self(*hash.as_bytes()))
    }
}
