//! One file: received into `NAME.part`, resumed, verified, renamed.

use crate::connection::Connection;
use crate::endpoint::shown;
use crate::hash::{FileHash, Hasher};
use crate::retries::{Attempts, Failure};
use crate::{HubError, RemoteFile};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Bytes that are read at once, and between two reports of progress.
const CHUNK_BYTES: usize = 256 << 10;

/// A file that is being received. Its lock keeps other processes out, and goes with it.
struct Part<'a> {
    file: File,
    path: PathBuf,
    remote: &'a RemoteFile,
    /// Bytes that are there and hashed.
    received_bytes: u64,
    hasher: Hasher,
}

/// Downloads `remote` from `url` to `target`. `progress` is told how many bytes of it are there.
pub(crate) fn download(
    connection: &Connection<'_>,
    url: &str,
    remote: &RemoteFile,
    target: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(), HubError> {
    let mut part = Part::open(target, remote)?;
    part.resume(progress)?;
    let mut is_resumed = part.received_bytes > 0;
    loop {
        part.receive_all(connection, url, progress)?;
        let found = part.take_hash();
        if found == remote.hash {
            return part.finish(target);
        }
        if !is_resumed {
            return Err(part.refuse(target, found));
        }
        // What an earlier process left may be of another revision.
        part.restart()?;
        progress(0);
        is_resumed = false;
    }
}

/// Whether `path` has the content of `remote`. `progress` is told how many bytes were looked at.
pub(crate) fn is_same(
    path: &Path,
    remote: &RemoteFile,
    progress: &mut dyn FnMut(u64),
) -> Result<bool, HubError> {
    let reading = |error| HubError::io("read", path, error);
    let metadata = fs::metadata(path).map_err(reading)?;
    if !metadata.is_file() || metadata.len() != remote.size_bytes {
        return Ok(false);
    }
    let mut hasher = remote.hash.hasher(remote.size_bytes);
    let mut file = File::open(path).map_err(reading)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut read_bytes = 0;
    loop {
        let count = file.read(&mut buffer).map_err(reading)?;
        if count == 0 {
            return Ok(hasher.finish() == remote.hash);
        }
        hasher.update(&buffer[..count]);
        read_bytes += count as u64;
        progress(read_bytes);
    }
}

/// Writes `content` to `target`, if it is that of `remote`.
pub(crate) fn verified(content: &[u8], remote: &RemoteFile, target: &Path) -> Result<(), HubError> {
    let mut part = Part::open(target, remote)?;
    part.restart()?;
    part.hasher.update(content);
    let found = part.take_hash();
    if found != remote.hash {
        return Err(part.refuse(target, found));
    }
    part.file
        .write_all(content)
        .map_err(|error| HubError::writing(&part.path, remote.size_bytes, error))?;
    part.finish(target)
}

impl<'a> Part<'a> {
    fn open(target: &Path, remote: &'a RemoteFile) -> Result<Self, HubError> {
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(|error| HubError::io("make the folder", folder, error))?;
        }
        let mut name: OsString = target.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| HubError::io("write", &path, error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(HubError::Busy { path }),
            // Some network file systems have no locks; two processes there end in a hash that differs.
            Err(TryLockError::Error(_)) => {}
        }
        Ok(Self {
            file,
            path,
            remote,
            received_bytes: 0,
            hasher: remote.hash.hasher(remote.size_bytes),
        })
    }

    /// Hashes what an earlier process left.
    fn resume(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), HubError> {
        let reading = |path: &Path, error| HubError::io("read", path, error);
        let metadata = self.file.metadata().map_err(|error| reading(&self.path, error))?;
        if metadata.len() > self.remote.size_bytes {
            return self.restart();
        }
        let mut buffer = vec![0; CHUNK_BYTES];
        while self.received_bytes < metadata.len() {
            let count = self
                .file
                .read(&mut buffer)
                .map_err(|error| reading(&self.path, error))?;
            if count == 0 {
                break;
            }
            self.hasher.update(&buffer[..count]);
            self.received_bytes += count as u64;
            progress(self.received_bytes);
        }
        Ok(())
    }

    /// Begins the file again.
    fn restart(&mut self) -> Result<(), HubError> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map_err(|error| HubError::io("write", &self.path, error))?;
        self.received_bytes = 0;
        self.hasher = self.remote.hash.hasher(self.remote.size_bytes);
        Ok(())
    }

    /// The hash of what was received; the next one begins anew.
    fn take_hash(&mut self) -> FileHash {
        let next = self.remote.hash.hasher(self.remote.size_bytes);
        std::mem::replace(&mut self.hasher, next).finish()
    }

    /// Removes what is not the content of `target`, which is wanted, but has the hash `found`.
    fn refuse(self, target: &Path, found: FileHash) -> HubError {
        let Self {
            file, path, remote, ..
        } = self;
        drop(file);
        match fs::remove_file(&path) {
            Err(error) => HubError::io("remove", &path, error),
            Ok(()) => HubError::Hash {
                path: target.to_owned(),
                expected: remote.hash,
                found,
            },
        }
    }

    /// Receives what is missing, with as many requests as that takes.
    fn receive_all(
        &mut self,
        connection: &Connection<'_>,
        url: &str,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let mut attempts = Attempts::new(&connection.settings.retries);
        while self.received_bytes < self.remote.size_bytes {
            let before = self.received_bytes;
            let outcome = self.receive(connection, url, progress);
            // A slow line that is cut now and then is no reason to give up.
            if self.received_bytes > before {
                attempts.reset();
            }
            if let Err(failure) = outcome {
                attempts.wait_after(failure)?;
            }
        }
        Ok(())
    }

    /// One request.
    fn receive(
        &mut self,
        connection: &Connection<'_>,
        url: &str,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        let mut response = connection.open(url, self.received_bytes)?;
        let range = response.header("Content-Range").map(str::to_owned);
        match response.status {
            206 if range.as_deref().and_then(range_start) == Some(self.received_bytes) => {}
            // The server sends the file from its beginning.
            200 => {
                if self.received_bytes > 0 {
                    self.restart()?;
                }
            }
            status => {
                self.restart()?;
                let error = HubError::Answer {
                    url: shown(url).to_owned(),
                    problem: format!(
                        "the answer to a request for the rest of the file has status {status} and the range {range:?}"
                    ),
                };
                return Err(Failure::Transient(error, None));
            }
        }
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let count = response
                .body
                .read(&mut buffer)
                .map_err(|error| connection.cut(url, &error))?;
            let missing_bytes = self.remote.size_bytes - self.received_bytes;
            if count == 0 && missing_bytes > 0 {
                return Err(connection.cut(url, &format!("{missing_bytes} bytes are missing")));
            }
            if count == 0 {
                return Ok(());
            }
            if count as u64 > missing_bytes {
                return Err(Failure::Final(HubError::Answer {
                    url: shown(url).to_owned(),
                    problem: format!(
                        "more than the {} bytes came that the hub says the file has",
                        self.remote.size_bytes
                    ),
                }));
            }
            self.file
                .write_all(&buffer[..count])
                .map_err(|error| HubError::writing(&self.path, missing_bytes, error))?;
            self.hasher.update(&buffer[..count]);
            self.received_bytes += count as u64;
            progress(self.received_bytes);
        }
    }

    /// Gives the file its name, once its bytes are on the disk.
    fn finish(self, target: &Path) -> Result<(), HubError> {
        self.file
            .sync_all()
            .map_err(|error| HubError::writing(&self.path, 0, error))?;
        fs::rename(&self.path, target).map_err(|error| HubError::io("rename", &self.path, error))
    }
}

/// The first byte of `bytes FIRST-LAST/SIZE`.
fn range_start(range: &str) -> Option<u64> {
    let (first, _) = range.trim().strip_prefix("bytes")?.trim_start().split_once('-')?;
    first.parse().ok()
}
