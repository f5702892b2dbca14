//! Encoded pictures on disk, found by what they were made of: the picture's bytes, the size it is fitted to, the autoencoder, the
//! precision.

use crate::cache::entry::{hash_of, is_whole};
use crate::cache::fingerprint;
use crate::{FileHashes, PictureEncoder, Pipeline, PipelineError, Size};
use burn::tensor::DType;
use flow_core::device::ComputeDevice;
use flow_core::tensors::plain;
use flow_core::{Backends, LatentShape, cpu};
use flow_diffusers::safetensors::{StoredDtype, WriteError, parse, write};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Changes when what an entry holds, or how a picture is fitted, does.
const FORMAT: &str = "flow-pipeline latent 1";
/// The tensor of an entry.
const LATENT: &str = "latent";
/// The key of the metadata that holds a hash of the values.
const HASH: &str = "blake3";
/// Pixels that are encoded at once; one picture at least.
const PIXELS: usize = 1 << 20;

/// Pictures to be encoded, by number.
pub trait PictureSource {
    /// How many there are.
    fn len(&self) -> u64;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of picture `index`, by which it is known again.
    ///
    /// # Errors
    /// What is wrong, with the picture's name.
    fn bytes(&self, index: u64) -> Result<Vec<u8>, String>;

    /// Values in [-1, 1] of the picture that `bytes` are, fitted to `size`: channels, rows, columns.
    ///
    /// # Errors
    /// What is wrong, with the picture's name.
    fn values(&self, index: u64, bytes: &[u8], size: Size) -> Result<Vec<f32>, String>;
}

/// A folder of encoded pictures, one file for each.
#[derive(Clone, Debug)]
pub struct LatentCache {
    folder: PathBuf,
    hashes: FileHashes,
}

/// What the cache did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatentCacheUse {
    /// Different pictures that were there.
    pub found: usize,
    /// Different pictures that were encoded.
    pub encoded: usize,
    /// Entries that were damaged and have been made again.
    pub damaged: Vec<PathBuf>,
}

/// Pictures that lie encoded in a cache, and are read when they are asked for.
#[derive(Clone, Debug)]
pub struct EncodedPictures {
    shape: LatentShape,
    entries: Vec<PathBuf>,
    contents: String,
}

impl LatentCache {
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

    /// The latent of a picture of `size`.
    ///
    /// # Errors
    /// [`PipelineError::Size`] for a size that the pipeline does not make, or a video.
    pub fn check(pipeline: &Pipeline, size: Size) -> Result<LatentShape, PipelineError> {
        let shape = pipeline.latent(size)?;
        match size.frames {
            1 => Ok(shape),
            _ => Err(PipelineError::Size {
                found: size.to_string(),
                problem: "the data are pictures, of one frame; set `model.frames = 1`".into(),
            }),
        }
    }

    /// Sees to it that all `pictures` lie in the cache, fitted to `size`: those that do not are encoded, and written as soon as their
    /// batch is through. The autoencoder is loaded only if some do not. `on_picture` is called with the number of pictures that were
    /// looked at.
    ///
    /// # Errors
    /// [`PipelineError::Size`] for a size that the pipeline does not make, or a video; [`PipelineError::Picture`] for a picture that
    /// cannot be read; [`PipelineError::Io`] if the cache cannot be written. What was written before stays.
    pub fn encode(
        &self,
        pipeline: &Pipeline,
        pictures: &dyn PictureSource,
        size: Size,
        (device, plan): (&ComputeDevice, &Arc<Backends>),
        on_picture: &mut dyn FnMut(u64),
    ) -> Result<(EncodedPictures, LatentCacheUse), PipelineError> {
        let shape = Self::check(pipeline, size)?;
        let stored = match plan.kernels.activations() {
            DType::BF16 => StoredDtype::Bf16,
            DType::F16 => StoredDtype::F16,
            _ => StoredDtype::F32,
        };
        let autoencoder = fingerprint::of_autoencoder(&self.folder, &self.hashes, pipeline)?;
        let parts = [
            FORMAT.to_owned(),
            autoencoder,
            plan.kernels.name().to_owned(),
            stored.name().to_owned(),
            size.width.to_string(),
            size.height.to_string(),
        ];
        let mut work = Work {
            cache: self,
            pipeline,
            device,
            plan,
            size,
            shape,
            stored,
            encoder: None,
            waiting: Vec::new(),
        };
        let mut used = LatentCacheUse::default();
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        for index in 0..pictures.len() {
            let wrong = |problem| PipelineError::Picture { problem };
            let bytes = pictures.bytes(index).map_err(wrong)?;
            let content = blake3::hash(&bytes).to_hex();
            let hash = fingerprint::of_texts(parts.iter().map(String::as_str).chain([content.as_str()]));
            let path = self.folder.join(format!("{hash}.safetensors"));
            if seen.insert(path.clone()) {
                match is_whole(&path) {
                    Some(true) => used.found += 1,
                    found => {
                        if found.is_some() {
                            used.damaged.push(path.clone());
                        }
                        used.encoded += 1;
                        let values = pictures.values(index, &bytes, size).map_err(wrong)?;
                        work.add(path.clone(), values)?;
                    }
                }
            }
            entries.push(path);
            on_picture(index + 1);
        }
        work.flush()?;
        let names = entries.iter().map(|path| path.to_string_lossy());
        let names: Vec<String> = names.map(std::borrow::Cow::into_owned).collect();
        let contents = fingerprint::of_texts(
            names
                .iter()
                .map(|name| name.rsplit(['/', '\\']).next().unwrap_or_default()),
        );
        Ok((
            EncodedPictures {
                shape,
                entries,
                contents,
            },
            used,
        ))
    }
}

/// Pictures that wait for their batch to be full.
struct Work<'a> {
    cache: &'a LatentCache,
    pipeline: &'a Pipeline,
    device: &'a ComputeDevice,
    plan: &'a Arc<Backends>,
    size: Size,
    shape: LatentShape,
    stored: StoredDtype,
    encoder: Option<PictureEncoder>,
    waiting: Vec<(PathBuf, Vec<f32>)>,
}

impl Work<'_> {
    fn add(&mut self, path: PathBuf, values: Vec<f32>) -> Result<(), PipelineError> {
        self.waiting.push((path, values));
        let at_once = (PIXELS / (self.size.width * self.size.height)).max(1);
        if self.waiting.len() >= at_once {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PipelineError> {
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return Ok(());
        }
        let encoder = match self.encoder.take() {
            Some(encoder) => encoder,
            None => {
                let folder = &self.cache.folder;
                fs::create_dir_all(folder).map_err(|source| PipelineError::Io {
                    action: "make",
                    path: folder.clone(),
                    source,
                })?;
                PictureEncoder::load(self.pipeline, self.device, self.plan)?
            }
        };
        let (paths, values): (Vec<PathBuf>, Vec<Vec<f32>>) = waiting.into_iter().unzip();
        let latents = encoder.encode(values.concat(), self.size)?;
        let latents = cpu::to_host(&plain(&latents.into_dispatch()));
        for (path, latent) in paths.iter().zip(latents.chunks_exact(self.shape.values())) {
            self.write(path, latent)?;
        }
        self.encoder = Some(encoder);
        Ok(())
    }

    fn write(&self, path: &Path, latent: &[f32]) -> Result<(), PipelineError> {
        let LatentShape {
            channels,
            frames,
            height,
            width,
        } = self.shape;
        let hash = hash_of(&[&self.stored.encode(latent).unwrap_or_default()]);
        let metadata = BTreeMap::from([(HASH.to_owned(), hash)]);
        let tensor = (LATENT.to_owned(), vec![channels, frames, height, width], 0);
        let values = |_| latent.to_vec();
        write(vec![tensor], &values, path, self.stored, &metadata).map_err(|error| match error {
            WriteError::Io { path, source } => PipelineError::Io {
                action: "write",
                path,
                source,
            },
            beyond => PipelineError::Latent {
                path: path.to_owned(),
                problem: beyond.to_string(),
            },
        })
    }
}

impl EncodedPictures {
    /// The shape of every latent.
    pub fn shape(&self) -> LatentShape {
        self.shape
    }

    /// How many pictures there are, as often as the source had them.
    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A hash of what all pictures are and what they were encoded with, in their order.
    pub fn contents(&self) -> &str {
        &self.contents
    }

    /// The latent of picture `index`, in the transformer's units: the same values every time, rounded to the precision of the cache.
    ///
    /// # Errors
    /// [`PipelineError::Latent`] if the entry is gone or damaged.
    ///
    /// # Panics
    /// If there is no such picture.
    pub fn get(&self, index: u64) -> Result<Vec<f32>, PipelineError> {
        let path = &self.entries[index as usize];
        let wrong = |problem: String| PipelineError::Latent {
            path: path.clone(),
            problem: format!("{problem}; remove it, and it is made again at the next start"),
        };
        let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let parsed = parse(&bytes).map_err(wrong)?;
        let found = parsed.tensors.iter().find(|tensor| tensor.name == LATENT);
        let found = found.filter(|tensor| {
            parsed.metadata.get(HASH) == Some(&hash_of(&[tensor.bytes]))
                && tensor.shape.iter().product::<usize>() == self.shape.values()
        });
        found
            .and_then(|tensor| tensor.to_f32())
            .ok_or_else(|| wrong("its values are not those that were written".into()))
    }
}
