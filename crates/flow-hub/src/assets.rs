//! Files that are known beforehand: where they are, how large they are, and what is in them. Some lie in archives, such as the packages of
//! a registry.

use crate::archive;
use crate::connection::Connection;
use crate::download::{download, is_same, verified};
use crate::fetch::missing;
use crate::{Client, HubError, Progress, RemoteFile, Retries, Settings, Stage, relative_path};
use std::fs;
use std::path::{Path, PathBuf};

/// A file to be downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    /// Where it is.
    pub url: String,
    /// What it is, and its path below the folder. An archive is there while it is unpacked.
    pub file: RemoteFile,
    /// What of a zip archive is wanted; if there is nothing, the file itself is.
    pub members: Vec<Member>,
}

/// A file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name in the archive.
    pub name: String,
    /// What it is, and its path below the folder.
    pub file: RemoteFile,
}

/// What is there now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The files that are wanted, below the folder.
    pub files: Vec<PathBuf>,
    /// How many of them were there before.
    pub present_files: usize,
    /// Bytes of all of them.
    pub size_bytes: u64,
}

impl Download {
    /// The files that are wanted of it.
    fn wanted(&self) -> impl Iterator<Item = &RemoteFile> {
        let itself = self.members.is_empty().then_some(&self.file);
        itself
            .into_iter()
            .chain(self.members.iter().map(|member| &member.file))
    }
}

/// Downloads what is missing below `folder`, by `client`, and unpacks what lies in archives.
///
/// A file appears under its name once it is whole and has its hash; until then it is `NAME.part`, which a later call resumes. A file that is
/// there with the right content is kept, and one with another content refused, before anything is written. An archive that is in the folder
/// already, under the path of its [`Download::file`], is unpacked and left; one that is downloaded is removed. `progress` is called after
/// every part of a file.
///
/// # Errors
/// [`HubError`], each of which says what to do.
pub fn fetch_known(
    client: &dyn Client,
    retries: Retries,
    downloads: &[Download],
    folder: &Path,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<Fetched, HubError> {
    let place = |file: &RemoteFile| -> Result<PathBuf, HubError> {
        let relative = relative_path(&file.path).ok_or_else(|| HubError::Path {
            repository: "the list of files".into(),
            path: file.path.clone(),
        })?;
        Ok(folder.join(relative))
    };
    let wanted = downloads.iter().flat_map(Download::wanted);
    let files: Vec<(&RemoteFile, PathBuf)> = wanted
        .map(|file| Ok((file, place(file)?)))
        .collect::<Result<_, HubError>>()?;
    let absent = missing(&files, progress)?;
    let is_absent = |file: &RemoteFile| absent.iter().any(|(_, remote, _)| remote.path == file.path);
    let to_do: Vec<&Download> = downloads
        .iter()
        .filter(|download| download.wanted().any(is_absent))
        .collect();
    // No token goes to a registry: the settings are those of nobody.
    let settings = Settings {
        retries,
        ..Settings::from_variables(&|_| None)?
    };
    let connection = Connection {
        client,
        settings: &settings,
        repository: "",
        revision: "",
    };
    let all_bytes = to_do.iter().map(|download| download.file.size_bytes).sum();
    let mut before_bytes = 0;
    for (number, of) in (1..).zip(&to_do) {
        let path = place(&of.file)?;
        let is_archive = !of.members.is_empty();
        let was_there = is_archive && path.is_file() && is_same(&path, &of.file, &mut |_| {})?;
        if !was_there {
            download(&connection, &of.url, &of.file, &path, &mut |bytes| {
                progress(&Progress {
                    stage: Stage::Downloading,
                    file: &of.file.path,
                    file_number: number,
                    files: to_do.len(),
                    done_bytes: before_bytes + bytes,
                    all_bytes,
                });
            })?;
        }
        before_bytes += of.file.size_bytes;
        if is_archive {
            unpack(
                &path,
                of.members.iter().filter(|member| is_absent(&member.file)),
                &place,
            )?;
        }
        if is_archive && !was_there {
            fs::remove_file(&path).map_err(|error| HubError::io("remove", &path, error))?;
        }
    }
    Ok(Fetched {
        present_files: files.len() - absent.len(),
        size_bytes: files.iter().map(|(file, _)| file.size_bytes).sum(),
        files: files.into_iter().map(|(_, path)| path).collect(),
    })
}

/// Writes `members` of the archive at `path` to their places.
fn unpack<'m>(
    path: &Path,
    members: impl Iterator<Item = &'m Member>,
    place: &dyn Fn(&RemoteFile) -> Result<PathBuf, HubError>,
) -> Result<(), HubError> {
    let bytes = fs::read(path).map_err(|error| HubError::io("read", path, error))?;
    for member in members {
        let content = archive::content(&bytes, &member.name, member.file.size_bytes);
        let content = content.map_err(|problem| HubError::Archive {
            path: path.to_owned(),
            problem,
        })?;
        verified(&content, &member.file, &place(&member.file)?)?;
    }
    Ok(())
}
