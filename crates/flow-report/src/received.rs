//! A file that comes from elsewhere and is needed for a while.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::atomic::{atomic_write, remove_leftovers};
use crate::error::{ReportError, Result};

/// A file that is removed when this goes out of scope, with the folders that were made for it.
#[derive(Debug)]
pub struct ReceivedFile {
    path: PathBuf,
    /// Folders that were not there before, the innermost first.
    made: Vec<PathBuf>,
}

impl ReceivedFile {
    /// Writes the file at `path`, in a folder that no other process writes to. `what` names the content in errors ("checkpoint").
    ///
    /// # Errors
    /// If it cannot be written, for instance on a full disk; then nothing is left.
    pub fn write(
        path: &Path,
        what: &str,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Self> {
        let folder = path.parent().unwrap_or(path);
        let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let file = Self {
            path: path.to_owned(),
            made: folder
                .ancestors()
                .take_while(missing)
                .map(Path::to_path_buf)
                .collect(),
        };
        let nothing = "nothing else was changed";
        fs::create_dir_all(folder).map_err(|source| ReportError::write(what, path, nothing, source))?;
        // Of a process that was killed while it wrote.
        remove_leftovers(folder)?;
        atomic_write(path, what, content)?;
        Ok(file)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ReceivedFile {
    fn drop(&mut self) {
        // A file that cannot be removed is written over by the next one, and a folder that holds something else stays.
        let _ = fs::remove_file(&self.path);
        for folder in &self.made {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_received_file_goes_with_the_folders_that_were_made_for_it_and_leaves_the_others() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = root.path().join("run/received/rank-1/checkpoint");
        let file = ReceivedFile::write(&path, "checkpoint", |out| out.write_all(b"state"));
        let file = file.expect("a writable folder");
        assert_eq!(fs::read(file.path()).expect("it is there"), b"state");
        fs::write(root.path().join("run/other"), b"stays").expect("a writable folder");
        drop(file);
        assert!(!root.path().join("run/received").exists());
        assert!(root.path().join("run/other").exists());
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_nothing_and_says_where() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = root.path().join("received/checkpoint");
        let full = io::ErrorKind::StorageFull;
        let error = ReceivedFile::write(&path, "checkpoint", |_| Err(io::Error::from(full)));
        let error = error.expect_err("the disk is full");
        assert!(error.to_string().contains("received"), "{error}");
        assert!(!root.path().join("received").exists());
    }
}
