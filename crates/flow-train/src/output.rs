//! Files that a command writes where the user says: what stands there is kept, and what would go wrong is said before the
//! work.

use crate::arguments::ExistingFile;
use crate::failure::Failure;
use flow_report::first_free;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A place for a file, looked at before the work.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    path: PathBuf,
}

impl Output {
    /// A place for a file at `path`, which `named` (an option or a key) asked for.
    ///
    /// # Errors
    /// If no file can be written there: a folder, a device, a file on the way; or if one is there and the policy says so.
    pub fn at(path: &Path, named: &str, policy: ExistingFile) -> Result<Self, Failure> {
        let name = path.display();
        let refuse = |text: String| Err(Failure::Input(text));
        if path.as_os_str().is_empty() {
            return refuse(format!("`{named}` is empty; name a file"));
        }
        if path.file_name().is_none() || ends_in_separator(path) || path.is_dir() {
            return refuse(format!("`{named}`: {name} is a folder; name a file in it"));
        }
        let taken = path.symlink_metadata().is_ok();
        if taken && path.exists() && !path.is_file() {
            return refuse(format!("`{named}`: {name} is a device or a pipe; name a file"));
        }
        folder_can_be_made(path, named)?;
        let path = match policy {
            ExistingFile::Error if taken => {
                return refuse(format!(
                    "{name} is there already. Choose another name for `{named}`, or pass `--on-exists overwrite` (it is \
                     moved aside) or `--on-exists new` (the next free name)"
                ));
            }
            ExistingFile::New => free(path),
            _ => path.to_owned(),
        };
        Ok(Self { path })
    }

    /// Where the file goes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder, moves aside what is there, and says where that is: to be called when the file can be written.
    ///
    /// # Errors
    /// If the folder cannot be made, or what is there cannot be moved.
    pub fn make_room(&self) -> Result<Option<PathBuf>, Failure> {
        if let Some(folder) = folder(&self.path) {
            fs::create_dir_all(folder).map_err(|error| {
                Failure::Run(format!("cannot make the folder {}: {error}", folder.display()))
            })?;
        }
        if self.path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let aside = aside(&self.path);
        fs::rename(&self.path, &aside).map_err(|error| {
            Failure::Run(format!(
                "cannot move {} aside, to {}: {error}",
                self.path.display(),
                aside.display()
            ))
        })?;
        Ok(Some(aside))
    }

    /// As [`make_room`](Self::make_room), and tells the user what was moved aside.
    pub fn make_room_and_say(&self) -> Result<(), Failure> {
        if let Some(aside) = self.make_room()? {
            crate::terminal::note(&format!(
                "note: what was {} is {}",
                self.path.display(),
                aside.display()
            ));
        }
        Ok(())
    }
}

/// The folder of a file; nothing if it is the working directory.
fn folder(path: &Path) -> Option<&Path> {
    path.parent().filter(|folder| !folder.as_os_str().is_empty())
}

fn ends_in_separator(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes
        .last()
        .is_some_and(|last| std::path::is_separator(char::from(*last)))
}

/// Whether the folder of a file is there and can be written to, or can be made.
fn folder_can_be_made(path: &Path, named: &str) -> Result<(), Failure> {
    let folder = folder(path).unwrap_or(Path::new("."));
    for above in folder.ancestors() {
        let above = if above.as_os_str().is_empty() {
            Path::new(".")
        } else {
            above
        };
        match above.metadata() {
            Ok(found) if found.is_dir() => {
                return writable(above).map_err(|error| {
                    Failure::Input(format!(
                        "`{named}`: cannot write to the folder {}: {error}",
                        above.display()
                    ))
                });
            }
            Ok(_) => return Err(Failure::Input(in_the_way(named, path, above))),
            // `a.txt/b`: what is above it is in the way.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Failure::Input(format!(
                    "`{named}`: cannot write {}: {}: {error}",
                    path.display(),
                    above.display()
                )));
            }
        }
    }
    Ok(())
}

fn in_the_way(named: &str, path: &Path, file: &Path) -> String {
    format!(
        "`{named}`: cannot write {}: {} is a file, and a folder is needed there",
        path.display(),
        file.display()
    )
}

#[cfg(unix)]
fn writable(folder: &Path) -> io::Result<()> {
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(folder, access).map_err(io::Error::from)
}

#[cfg(not(unix))]
fn writable(folder: &Path) -> io::Result<()> {
    match folder.metadata()?.permissions().readonly() {
        true => Err(io::ErrorKind::PermissionDenied.into()),
        false => Ok(()),
    }
}

/// The first free name like `path`: `a.png`, `a-2.png`, `a-3.png`, …
pub fn free(path: &Path) -> PathBuf {
    first_free(|number| numbered(path, number))
}

/// As [`free`], of a file with others that are named after it, as `beside` says: all of them are free.
pub fn free_with(path: &Path, beside: impl Fn(&Path) -> Vec<PathBuf>) -> PathBuf {
    let mut number = 1;
    loop {
        let candidate = numbered(path, number);
        let is_free = |path: &Path| path.symlink_metadata().is_err();
        if is_free(&candidate) && beside(&candidate).iter().all(|path| is_free(path)) {
            return candidate;
        }
        number += 1;
    }
}

/// `a.png` as `a-2.png`; the first stays as it is.
fn numbered(path: &Path, number: u64) -> PathBuf {
    match number {
        1 => path.to_owned(),
        _ => with_stem_end(path, &format!("-{number}")),
    }
}

/// `a.png` as `a-END.png`, whatever stands for `-END`.
pub fn with_stem_end(path: &Path, end: &str) -> PathBuf {
    let mut name: OsString = path.file_stem().unwrap_or_default().to_owned();
    name.push(end);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// The first free name of `path.old`, `path.old2`, `path.old3`, …
fn aside(path: &Path) -> PathBuf {
    first_free(|number| {
        let mut name = path.as_os_str().to_owned();
        name.push(".old");
        if number > 1 {
            name.push(number.to_string());
        }
        PathBuf::from(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(result: Result<Output, Failure>) -> String {
        match result {
            Err(Failure::Input(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_that_is_there_stays_whatever_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        fs::write(&path, "first").unwrap();
        assert!(said(Output::at(&path, "--out", ExistingFile::Error)).contains("is there already"));
        let next = Output::at(&path, "--out", ExistingFile::New).unwrap();
        assert_eq!(next.path(), folder.path().join("a-2.png"));
        for (content, kept) in [("second", "a.png.old"), ("third", "a.png.old2")] {
            let there = Output::at(&path, "--out", ExistingFile::Overwrite).unwrap();
            assert_eq!(there.make_room().unwrap(), Some(folder.path().join(kept)));
            assert!(!path.exists());
            fs::write(&path, content).unwrap();
        }
        assert_eq!(
            fs::read_to_string(folder.path().join("a.png.old")).unwrap(),
            "first"
        );
        assert_eq!(
            fs::read_to_string(folder.path().join("a.png.old2")).unwrap(),
            "second"
        );
    }

    #[test]
    fn what_cannot_hold_a_file_is_said_before_the_work_and_nothing_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for (path, wanted) in [
            (folder.path().to_owned(), "is a folder"),
            (folder.path().join("new/"), "is a folder"),
            (PathBuf::new(), "is empty"),
            (PathBuf::from(".."), "is a folder"),
            (file.join("a.png"), "is a file, and a folder is needed"),
            (file.join("b/c/a.png"), "is a file, and a folder is needed"),
        ] {
            for policy in [ExistingFile::Error, ExistingFile::Overwrite, ExistingFile::New] {
                let text = said(Output::at(&path, "--out", policy));
                assert!(
                    text.contains(wanted) && text.contains("`--out`"),
                    "{path:?}: {text}"
                );
            }
        }
        let deep = folder.path().join("x/y/a.png");
        let there = Output::at(&deep, "--out", ExistingFile::Error).unwrap();
        assert!(
            !folder.path().join("x").exists(),
            "before the work nothing is made"
        );
        there.make_room().unwrap();
        assert!(folder.path().join("x/y").is_dir());
    }
}
