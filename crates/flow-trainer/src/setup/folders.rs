//! Diffusers folders that were opened, so that each is looked at once.

use flow_pipeline::{FileHashes, Pipeline, PipelineError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A folder and the variant of its weights.
type Key = (PathBuf, Option<String>);

/// Diffusers folders that were opened, and the hashes of files in them. Clones share both.
///
/// Opening a folder reads the header of every file of weights, and hashing one of T5-XXL reads 10 GB: a run asks for both several
/// times, and a folder does not change under it.
#[derive(Clone, Debug, Default)]
pub struct PipelineFolders {
    opened: Arc<Mutex<BTreeMap<Key, Pipeline>>>,
    hashes: FileHashes,
}

impl PipelineFolders {
    /// The pipeline in `folder` with the weights of `variant`, opened if it was not yet.
    ///
    /// # Errors
    /// As [`Pipeline::open`], each time.
    pub fn open(&self, folder: &Path, variant: Option<&str>) -> Result<Pipeline, PipelineError> {
        let key = (folder.to_owned(), variant.map(str::to_owned));
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = opened.get(&key) {
            return Ok(pipeline.clone());
        }
        let pipeline = Pipeline::open(folder, variant)?;
        opened.insert(key, pipeline.clone());
        Ok(pipeline)
    }

    /// Hashes of files, to be shared with whoever hashes others.
    pub fn hashes(&self) -> FileHashes {
        self.hashes.clone()
    }
}
