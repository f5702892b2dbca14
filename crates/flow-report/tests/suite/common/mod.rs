//! A file system that fails or dies at a chosen moment.
#![allow(dead_code)]

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use flow_report::{Disk, DurableFile, Storage};

/// How it stops working.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Writing beyond the budget fails with "no space left"; everything else works.
    Full,
    /// Once the budget is used, the process is as if killed: nothing happens on the disk any more.
    Killed,
}

/// The real disk with a budget: each byte written costs 1, and so does each create, sync, rename and remove.
#[derive(Clone)]
pub struct FaultyDisk {
    fault: Fault,
    budget: Arc<AtomicI64>,
    pub log: Arc<Mutex<Vec<String>>>,
}

impl FaultyDisk {
    pub fn new(fault: Fault, budget: i64) -> Self {
        Self {
            fault,
            budget: Arc::new(AtomicI64::new(budget)),
            log: Arc::default(),
        }
    }

    fn operation(&self, name: &str, path: &Path, run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        self.log.lock().unwrap().push(format!("{name} {file}"));
        match self.fault {
            Fault::Full => run(),
            Fault::Killed if self.budget.fetch_sub(1, Ordering::SeqCst) > 0 => run(),
            Fault::Killed => Err(io::Error::other("the process is dead")),
        }
    }
}

impl Storage for FaultyDisk {
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn DurableFile>> {
        let mut file = None;
        self.operation("create", path, || {
            file = Some(Disk.create_new(path)?);
            Ok(())
        })?;
        Ok(Box::new(FaultyFile {
            file: file.unwrap(),
            disk: self.clone(),
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operation("rename", to, || Disk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.operation("remove", path, || Disk.remove(path))
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.operation("sync-directory", directory, || Disk.sync_directory(directory))
    }
}

struct FaultyFile {
    file: Box<dyn DurableFile>,
    disk: FaultyDisk,
}

impl Write for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self
            .disk
            .budget
            .fetch_sub(bytes.len() as i64, Ordering::SeqCst)
            .max(0) as usize;
        let count = bytes.len().min(left);
        self.file.write_all(&bytes[..count])?;
        match (count == bytes.len(), self.disk.fault) {
            (true, _) => Ok(count),
            (false, Fault::Full) => Err(io::ErrorKind::StorageFull.into()),
            (false, Fault::Killed) => Err(io::Error::other("the process is dead")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl DurableFile for FaultyFile {
    fn sync(&mut self) -> io::Result<()> {
        let disk = self.disk.clone();
        disk.operation("sync", Path::new("file"), || self.file.sync())
    }
}
