//! The files of a revision, as the hub lists them.

use crate::connection::Connection;
use crate::endpoint::shown;
use crate::paths::relative_path;
use crate::{FileHash, HubError};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Pages that are read, of 1,000 entries each.
const MAX_PAGES: usize = 1000;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its path in the repository, names parted by `/`. None leads out of a folder; see [`relative_path`].
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// The hash of its content.
    pub hash: FileHash,
}

/// The files of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The commit that the revision was when it was asked for.
    pub commit: String,
    /// Its files, sorted by path.
    pub files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct RevisionInfo {
    sha: String,
}

#[derive(Deserialize)]
struct TreeEntry {
    r#type: String,
    path: String,
    #[serde(default)]
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<LfsEntry>,
}

#[derive(Deserialize)]
struct LfsEntry {
    oid: String,
    size: u64,
}

impl Connection<'_> {
    /// Lists the files of the commit that the revision is now, so that all files come from one commit.
    pub(crate) fn listing(&self) -> Result<Listing, HubError> {
        let endpoint = &self.settings.endpoint;
        let url = endpoint.revision_url(self.repository, self.revision);
        let info: RevisionInfo = parsed(&url, &self.document(&url)?.content)?;
        let commit = info.sha;
        if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(answer(&url, format!("it gives {commit:?} as a commit")));
        }
        let mut url = endpoint.tree_url(self.repository, &commit);
        let mut files = Vec::new();
        for _ in 0..MAX_PAGES {
            let page = self.document(&url)?;
            let entries: Vec<TreeEntry> = parsed(&url, &page.content)?;
            for entry in entries.into_iter().filter(|entry| entry.r#type == "file") {
                files.push(self.remote_file(&url, entry)?);
            }
            match page.next_url {
                Some(next) if next != url => url = next,
                _ => {
                    files.sort_by(|a, b| a.path.cmp(&b.path));
                    files.dedup_by(|a, b| a.path == b.path);
                    return Ok(Listing { commit, files });
                }
            }
        }
        Err(answer(
            &url,
            format!("the list of files has more than {MAX_PAGES} pages"),
        ))
    }

    fn remote_file(&self, url: &str, entry: TreeEntry) -> Result<RemoteFile, HubError> {
        if relative_path(&entry.path).is_none() {
            return Err(HubError::Path {
                repository: self.repository.to_owned(),
                path: entry.path,
            });
        }
        let (hash, size_bytes, oid) = match entry.lfs {
            Some(lfs) => (FileHash::sha256(&lfs.oid), lfs.size, lfs.oid),
            None => (FileHash::git_blob(&entry.oid), entry.size, entry.oid),
        };
        let path = entry.path;
        let hash = hash.ok_or_else(|| answer(url, format!("it gives {oid:?} as the hash of {path:?}")))?;
        Ok(RemoteFile {
            path,
            size_bytes,
            hash,
        })
    }
}

fn answer(url: &str, problem: String) -> HubError {
    HubError::Answer {
        url: shown(url).to_owned(),
        problem,
    }
}

fn parsed<T: DeserializeOwned>(url: &str, content: &[u8]) -> Result<T, HubError> {
    serde_json::from_slice(content)
        .map_err(|error| answer(url, format!("the answer is not the hub's JSON ({error})")))
}
