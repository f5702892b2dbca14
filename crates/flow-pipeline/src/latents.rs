//! Encoded pictures on disk, found by what they were made of: the picture's bytes, the size it is fitted to, the autoencoder, the
//! precision.

use crate::cache::entry::{hash_of, is_whole};
use crate::cache::fingerprint;
use crate::{FileHashes, PictureBuckets, PictureEncoder, Pipeline, PipelineError, Size};
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
    /// Of each bucket.
    shapes: Vec<LatentShape>,
    buckets: PictureBuckets,
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

    /// Sees to it that all `pictures` lie in the cache, each fitted to its size in `buckets`: those that do not are encoded, in batches of
    /// one size, and written as soon as their batch is through. The autoencoder is loaded only if some do not. `on_picture` is called
    /// with the number of pictures that were looked at.
    ///
    /// # Errors
    /// [`PipelineError::Size`] for a size that the pipeline does not make, or a video; [`PipelineError::Picture`] for a picture that
    /// cannot be read, or buckets of other pictures; [`PipelineError::Io`] if the cache cannot be written. What was written before stays.
    pub fn encode(
        &self,
        pipeline: &Pipeline,
        pictures: &dyn PictureSource,
        buckets: &PictureBuckets,
        (device, plan): (&ComputeDevice, &Arc<Backends>),
        on_picture: &mut dyn FnMut(u64),
    ) -> Result<(EncodedPictures, LatentCacheUse), PipelineError> {
        let shapes = buckets.sizes().iter().map(|size| Self::check(pipeline, *size));
        let shapes: Vec<LatentShape> = shapes.collect::<Result<_, _>>()?;
        if buckets.len() != pictures.len() {
            let problem = format!(
                "{} pictures have a size, and there are {}",
                buckets.len(),
                pictures.len()
            );
            return Err(PipelineError::Picture { problem });
        }
        let stored = match plan.kernels.activations() {
            DType::BF16 => StoredDtype::Bf16,
            DType::F16 => StoredDtype::F16,
            _ => StoredDtype::F32,
        };
        let autoencoder = fingerprint::of_autoencoder(&self.folder, &self.hashes, pipeline)?;
        let parts = |size: Size| {
            [
                FORMAT.to_owned(),
                autoencoder.clone(),
                plan.kernels.name().to_owned(),
                stored.name().to_owned(),
                size.width.to_string(),
                size.height.to_string(),
            ]
        };
        let parts: Vec<_> = buckets.sizes().iter().map(|size| parts(*size)).collect();
        let mut work = Work {
            cache: self,
            pipeline,
            device,
            plan,
            sizes: buckets.sizes(),
            shapes: &shapes,
            stored,
            encoder: None,
            waiting: vec![Vec::new(); shapes.len()],
        };
        let mut used = LatentCacheUse::default();
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        for index in 0..pictures.len() {
            let wrong = |problem| PipelineError::Picture { problem };
            let bytes = pictures.bytes(index).map_err(wrong)?;
            let content = blake3::hash(&bytes).to_hex();
            let bucket = buckets.bucket(index);
            let texts = parts[bucket].iter().map(String::as_str);
            let hash = fingerprint::of_texts(texts.chain([content.as_str()]));
            let path = self.folder.join(format!("{hash}.safetensors"));
            if seen.insert(path.clone()) {
                match is_whole(&path) {
                    Some(true) => used.found += 1,
                    found => {
                        if found.is_some() {
                            used.damaged.push(path.clone());
                        }
                        used.encoded += 1;
                        let size = buckets.sizes()[bucket];
                        let values = pictures.values(index, &bytes, size).map_err(wrong)?;
                        work.add(bucket, path.clone(), values)?;
                    }
                }
            }
            entries.push(path);
            on_picture(index + 1);
        }
        for bucket in 0..shapes.len() {
            work.flush(bucket)?;
        }
        let names = entries.iter().map(|path| path.to_string_lossy());
        let names: Vec<String> = names.map(std::borrow::Cow::into_owned).collect();
        let contents = fingerprint::of_texts(
            names
                .iter()
                .map(|name| name.rsplit(['/', '\\']).next().unwrap_or_default()),
        );
        Ok((
            EncodedPictures {
                shapes,
                buckets: buckets.clone(),
                entries,
                contents,
            },
            used,
        ))
    }
}

/// Pictures that wait for the batch of their size to be full.
struct Work<'a> {
    cache: &'a LatentCache,
    pipeline: &'a Pipeline,
    device: &'a ComputeDevice,
    plan: &'a Arc<Backends>,
    sizes: &'a [Size],
    shapes: &'a [LatentShape],
    stored: StoredDtype,
    encoder: Option<PictureEncoder>,
    /// Of each bucket.
    waiting: Vec<Vec<(PathBuf, Vec<f32>)>>,
}

impl Work<'_> {
    fn add(&mut self, bucket: usize, path: PathBuf, values: Vec<f32>) -> Result<(), PipelineError> {
        self.waiting[bucket].push((path, values));
        let size = self.sizes[bucket];
        let at_once = (PIXELS / (size.width * size.height)).max(1);
        if self.waiting[bucket].len() >= at_once {
            self.flush(bucket)?;
        }
        Ok(())
    }

    fn flush(&mut self, bucket: usize) -> Result<(), PipelineError> {
        let waiting = std::mem::take(&mut self.waiting[bucket]);
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
        let latents = encoder.encode(values.concat(), self.sizes[bucket])?;
        let latents = cpu::to_host(&plain(&latents.into_dispatch()));
        let shape = self.shapes[bucket];
        for (path, latent) in paths.iter().zip(latents.chunks_exact(shape.values())) {
            self.write(path, shape, latent)?;
        }
        self.encoder = Some(encoder);
        Ok(())
    }

    fn write(&self, path: &Path, shape: LatentShape, latent: &[f32]) -> Result<(), PipelineError> {
        let LatentShape {
            channels,
            frames,
            height,
            width,
        } = shape;
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
    /// Which size each picture is fitted to.
    pub fn buckets(&self) -> &PictureBuckets {
        &self.buckets
    }

    /// The shape of the latent of picture `index`.
    ///
    /// # Panics
    /// If there is no such picture.
    pub fn shape(&self, index: u64) -> LatentShape {
        self.shapes[self.buckets.bucket(index)]
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
        let values = self.shape(index).values();
        let wrong = |problem: String| PipelineError::Latent {
            path: path.clone(),
            problem: format!("{problem}; remove it, and it is made again at the next start"),
        };
        let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let parsed = parse(&bytes).map_err(wrong)?;
        let found = parsed.tensors.iter().find(|tensor| tensor.name == LATENT);
        let found = found.filter(|tensor| {
            parsed.metadata.get(HASH) == Some(&hash_of(&[tensor.bytes]))
                && tensor.shape.iter().product::<usize>() == values
        });
        found
            .and_then(|tensor| tensor.to_f32())
            .ok_or_else(|| wrong("its values are not those that were written".into()))
    }
}
