//! A whole repository: listed, selected, compared with what is there, downloaded.

use crate::connection::Connection;
use crate::download::{download, is_same};
use crate::selection::{component_names, select};
use crate::{Client, HubError, Listing, RemoteFile, Settings, relative_path};
use flow_diffusers::Repository;
use std::path::{Path, PathBuf};

/// The revision that is meant where none is named.
const MAIN: &str = "main";
/// The file that says which folders a pipeline has.
const INDEX_FILE: &str = "model_index.json";

/// A hub, and how it is reached.
pub struct Hub<C> {
    client: C,
    settings: Settings,
}

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Fetch<'a> {
    /// The repository, `organisation/name`.
    pub repository: &'a str,
    /// A branch, a tag or a commit; without it, `main`.
    pub revision: Option<&'a str>,
    /// The variant of weights, such as `fp16` or `bf16`; components that do not have it come without a variant.
    pub variant: Option<&'a str>,
    /// The folder that the files go into; it is made if it is not there.
    pub folder: &'a Path,
}

/// What is there now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The commit that the files are of.
    pub commit: String,
    /// The files, below the folder, sorted by path.
    pub files: Vec<PathBuf>,
    /// How many of them were there before.
    pub present_files: usize,
    /// Bytes of all of them.
    pub size_bytes: u64,
}

/// What is being done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A file that is there is compared with the hub's.
    Comparing,
    /// The file is downloaded.
    Downloading,
}

/// How far a fetch is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What is being done.
    pub stage: Stage,
    /// The file's path in the repository.
    pub file: &'a str,
    /// Number of the file, from 1.
    pub file_number: usize,
    /// All files that are wanted.
    pub files: usize,
    /// Bytes of this stage that are done.
    pub done_bytes: u64,
    /// Bytes of this stage in all.
    pub all_bytes: u64,
}

impl<C: Client> Hub<C> {
    /// A hub that `client` reaches.
    pub fn new(client: C, settings: Settings) -> Self {
        Self { client, settings }
    }

    /// Lists the files of a revision; without one, of `main`.
    ///
    /// # Errors
    /// [`HubError::Name`], [`HubError::NoRepository`], [`HubError::NoRevision`], [`HubError::NotAllowed`], [`HubError::Path`], and
    /// those of the connection.
    pub fn list(&self, repository: &str, revision: Option<&str>) -> Result<Listing, HubError> {
        self.connection(repository, revision)?.listing()
    }

    /// Downloads the files that a pipeline, or a single model, is read from: `model_index.json` and the folders that it names, or
    /// the files at the top where there is none. Of weights only `*.safetensors` are taken.
    ///
    /// A file appears under its name once it is whole and has the hub's hash; until then it is `NAME.part`, which a later fetch
    /// resumes. A file that is there with the hub's content is kept, and one with another content refused, before anything is
    /// written. `progress` is called after every part of a file.
    ///
    /// # Errors
    /// [`HubError`], each of which says what to do.
    pub fn fetch(
        &self,
        wanted: &Fetch<'_>,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<Fetched, HubError> {
        let connection = self.connection(wanted.repository, wanted.revision)?;
        let listing = connection.listing()?;
        let components = self.components(&connection, &listing)?;
        let selected = select(&listing.files, components.as_deref(), wanted.variant).map_err(|problem| {
            HubError::Weights {
                repository: wanted.repository.to_owned(),
                problem,
            }
        })?;
        let files = places(&selected, wanted)?;
        let missing = missing(&files, progress)?;
        let all_bytes = missing.iter().map(|(_, remote, _)| remote.size_bytes).sum();
        let mut before_bytes = 0;
        for (number, remote, path) in &missing {
            let url = self
                .settings
                .endpoint
                .file_url(wanted.repository, &listing.commit, &remote.path);
            download(&connection, &url, remote, path, &mut |bytes| {
                progress(&Progress {
                    stage: Stage::Downloading,
                    file: &remote.path,
                    file_number: *number,
                    files: files.len(),
                    done_bytes: before_bytes + bytes,
                    all_bytes,
                });
            })?;
            before_bytes += remote.size_bytes;
        }
        Ok(Fetched {
            commit: listing.commit,
            present_files: files.len() - missing.len(),
            size_bytes: files.iter().map(|(remote, _)| remote.size_bytes).sum(),
            files: files.into_iter().map(|(_, path)| path).collect(),
        })
    }

    fn connection<'a>(
        &'a self,
        repository: &'a str,
        revision: Option<&'a str>,
    ) -> Result<Connection<'a>, HubError> {
        if Repository::parse(repository).is_none() {
            return Err(HubError::Name {
                name: repository.to_owned(),
                problem: "write `organisation/name` as the page of the model has it, such as \
                          `stabilityai/stable-diffusion-3.5-medium`; both parts have letters, digits, `-`, `_` and `.`"
                    .into(),
            });
        }
        Ok(Connection {
            client: &self.client,
            settings: &self.settings,
            repository,
            revision: revision.filter(|it| !it.is_empty()).unwrap_or(MAIN),
        })
    }

    /// The folders that `model_index.json` names, if the repository has one.
    fn components(
        &self,
        connection: &Connection<'_>,
        listing: &Listing,
    ) -> Result<Option<Vec<String>>, HubError> {
        if !listing.files.iter().any(|file| file.path == INDEX_FILE) {
            return Ok(None);
        }
        let endpoint = &self.settings.endpoint;
        let url = endpoint.file_url(connection.repository, &listing.commit, INDEX_FILE);
        let document = connection.document(&url)?;
        match component_names(&document.content) {
            Ok(names) => Ok(Some(names)),
            Err(problem) => Err(HubError::Answer { url, problem }),
        }
    }
}

/// Where each file goes.
fn places<'f>(
    selected: &[&'f RemoteFile],
    wanted: &Fetch<'_>,
) -> Result<Vec<(&'f RemoteFile, PathBuf)>, HubError> {
    selected
        .iter()
        .map(|remote| {
            let relative = relative_path(&remote.path).ok_or_else(|| HubError::Path {
                repository: wanted.repository.to_owned(),
                path: remote.path.clone(),
            })?;
            Ok((*remote, wanted.folder.join(relative)))
        })
        .collect()
}

/// A file that has to be downloaded, with its number from 1.
pub(crate) type Missing<'a> = (usize, &'a RemoteFile, &'a Path);

/// The files that are not there, with their numbers from 1. Refuses if one is there with another content.
pub(crate) fn missing<'a>(
    files: &'a [(&'a RemoteFile, PathBuf)],
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<Vec<Missing<'a>>, HubError> {
    let (present, missing): (Vec<Missing<'_>>, Vec<Missing<'_>>) = files
        .iter()
        .zip(1..)
        .map(|((remote, path), number)| (number, *remote, path.as_path()))
        .partition(|(_, _, path)| path.symlink_metadata().is_ok());
    let all_bytes = present.iter().map(|(_, remote, _)| remote.size_bytes).sum();
    let mut before_bytes = 0;
    for (number, remote, path) in &present {
        let is_same = is_same(path, remote, &mut |bytes| {
            progress(&Progress {
                stage: Stage::Comparing,
                file: &remote.path,
                file_number: *number,
                files: files.len(),
                done_bytes: before_bytes + bytes,
                all_bytes,
            });
        })?;
        if !is_same {
            return Err(HubError::Exists {
                path: (*path).to_owned(),
            });
        }
        before_bytes += remote.size_bytes;
    }
    Ok(missing)
}
