//! Encoded prompts on disk, found by what they were made of: the files of tokenizers and encoders, settings, precision, text.

pub(crate) mod entry;
pub(crate) mod fingerprint;

use crate::{EncodedPrompt, Pipeline, PipelineError, PromptSettings};
use burn::tensor::DType;
use flow_core::Backends;
use flow_core::device::ComputeDevice;
use flow_diffusers::safetensors::StoredDtype;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use fingerprint::FileHashes;

/// A folder of encoded prompts, one file for each.
///
/// An entry is found by a BLAKE3 hash of the pipeline, of the contents of its tokenizers and text encoders, of settings, kernels,
/// precision and text, and holds a hash of its values. The encoders' files are read once: their hashes are kept with their size and
/// time of change.
#[derive(Clone, Debug)]
pub struct PromptCache {
    folder: PathBuf,
    hashes: FileHashes,
}

/// What the cache did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Different prompts that were there.
    pub found: usize,
    /// Different prompts that were encoded.
    pub encoded: usize,
    /// Entries that were damaged and have been made again.
    pub damaged: Vec<PathBuf>,
}

/// Prompts that lie encoded in a cache, and are read when they are asked for.
#[derive(Debug)]
pub struct EncodedPrompts {
    /// Entries by text.
    entries: HashMap<String, PathBuf>,
    /// Those that were read last.
    recent: Mutex<VecDeque<(String, Arc<EncodedPrompt>)>>,
}

/// Prompts that stay in memory: those of a batch and some more, of about 3 MB each for SD3 in bf16.
const RECENT: usize = 64;

impl PromptCache {
    /// The cache in `folder`, which is made when something is put into it.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            hashes: FileHashes::default(),
        }
    }

    /// With hashes of files that are known already, and shared with whoever has them.
    pub fn with_hashes(self, hashes: FileHashes) -> Self {
        Self { hashes, ..self }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A hash of everything of `pipeline` that decides what its encoders make of a text: the contents of tokenizers and encoders.
    ///
    /// # Errors
    /// [`PipelineError::Io`] if a file cannot be read.
    pub fn fingerprint(&self, pipeline: &Pipeline) -> Result<String, PipelineError> {
        fingerprint::of_encoders(&self.folder, &self.hashes, pipeline, false)
    }

    /// Sees to it that all `prompts` lie in the cache: those that do not are encoded, and written as soon as their batch is through.
    ///
    /// # Errors
    /// As [`Pipeline::encode_prompts`]; [`PipelineError::Io`] if the cache cannot be written. What was written before stays.
    pub fn encode(
        &self,
        pipeline: &Pipeline,
        prompts: &[&str],
        settings: PromptSettings,
        device: &ComputeDevice,
        plan: &Arc<Backends>,
    ) -> Result<(EncodedPrompts, CacheUse), PipelineError> {
        let stored = match plan.kernels.activations() {
            DType::BF16 => StoredDtype::Bf16,
            DType::F16 => StoredDtype::F16,
            _ => StoredDtype::F32,
        };
        let model = fingerprint::of_encoders(&self.folder, &self.hashes, pipeline, true)?;
        let parts = [
            entry::FORMAT.to_owned(),
            model,
            plan.kernels.name().to_owned(),
            stored.name().to_owned(),
            pipeline.text_channels().to_string(),
            settings.text_tokens.to_string(),
        ];
        let path = |prompt: &str| {
            let hash = fingerprint::of_texts(parts.iter().map(String::as_str).chain([prompt]));
            self.folder.join(format!("{hash}.safetensors"))
        };
        let mut used = CacheUse::default();
        let mut entries = HashMap::with_capacity(prompts.len());
        let mut missing: Vec<&str> = Vec::new();
        let mut seen = HashSet::with_capacity(prompts.len());
        for prompt in prompts.iter().filter(|prompt| seen.insert(**prompt)) {
            let path = path(prompt);
            match entry::is_whole(&path) {
                Some(true) => used.found += 1,
                found => {
                    missing.push(prompt);
                    if found.is_some() {
                        used.damaged.push(path.clone());
                    }
                }
            }
            entries.insert((*prompt).to_owned(), path);
        }
        used.encoded = missing.len();
        if !missing.is_empty() {
            fs::create_dir_all(&self.folder).map_err(|source| PipelineError::Io {
                action: "make",
                path: self.folder.clone(),
                source,
            })?;
            pipeline.encode_each_prompt(&missing, settings, (device, plan), &mut |number, encoded| {
                entry::write(&entries[missing[number]], &encoded, stored)
            })?;
        }
        let recent = Mutex::new(VecDeque::new());
        Ok((EncodedPrompts { entries, recent }, used))
    }
}

impl EncodedPrompts {
    /// What the transformer reads of a prompt, which must be one of those that were encoded: the same values every time, rounded to
    /// the precision of the cache.
    ///
    /// # Errors
    /// [`PipelineError::NotEncoded`] for another prompt; [`PipelineError::Entry`] if the entry is gone or damaged.
    pub fn get(&self, prompt: &str) -> Result<Arc<EncodedPrompt>, PipelineError> {
        let recent = || self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let known = recent()
            .iter()
            .find(|(text, _)| text == prompt)
            .map(|(_, found)| found.clone());
        if let Some(found) = known {
            return Ok(found);
        }
        let path = self
            .entries
            .get(prompt)
            .ok_or_else(|| PipelineError::NotEncoded {
                prompt: prompt.to_owned(),
            })?;
        let found = Arc::new(entry::read(path)?);
        let mut recent = recent();
        recent.push_front((prompt.to_owned(), found.clone()));
        recent.truncate(RECENT);
        Ok(found)
    }

    /// Whether a prompt is among them.
    pub fn contains(&self, prompt: &str) -> bool {
        self.entries.contains_key(prompt)
    }

    /// Adds those of another use of the cache.
    pub fn extend(&mut self, other: Self) {
        self.entries.extend(other.entries);
    }

    /// How many different prompts there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
