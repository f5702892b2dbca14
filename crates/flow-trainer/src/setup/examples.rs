//! From a config's data to what a pretraining learns from.

use super::Environment;
use super::folder::{folder_size, pipeline};
use crate::algorithm::RecordKind;
use crate::error::TrainError;
use crate::pretrain::{FittedPictures, LatentExamples, PixelExamples};
use flow_config::Config;
use flow_core::device::ComputeDevice;
use flow_core::{Backends, FlowModel};
use flow_data::{BucketSize, Buckets, CaptionedPictures, Dataset};
use flow_pipeline::{LatentCache, PictureBuckets, Pipeline, Size};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Where encoded pictures are kept in `run.dir`, unless the data say otherwise.
const CACHE: &str = "latent-cache";

/// The pictures of `dataset` as latents of the diffusers folder that the config names: those that are not on disk yet are encoded.
/// With them comes what a person may want to know. `on_picture` is called with the number of pictures that were looked at.
///
/// # Errors
/// If the data set has no pictures, one of them cannot be read, or the folder makes no pictures of the config's size.
pub fn latent_examples(
    config: &Config,
    environment: &Environment<'_>,
    dataset: &Arc<dyn Dataset>,
    on_picture: &mut dyn FnMut(u64),
) -> Result<(LatentExamples, Vec<String>), TrainError> {
    LatentSource::of(config, environment, dataset, RecordKind::Examples)?.encode(on_picture)
}

/// Pictures that are to be encoded to latents, and where these are kept.
pub(crate) struct LatentSource {
    dataset: Arc<dyn Dataset>,
    /// Which pictures of it.
    kind: RecordKind,
    pipeline: Pipeline,
    buckets: PictureBuckets,
    cache: LatentCache,
    device: ComputeDevice,
    plan: Arc<Backends>,
}

impl LatentSource {
    /// The pictures of which `kind` of records of `dataset` are made, for the diffusers folder that the config names. Of them no more than
    /// headers is looked at.
    ///
    /// # Errors
    /// As [`latent_examples`].
    pub(crate) fn of(
        config: &Config,
        environment: &Environment<'_>,
        dataset: &Arc<dyn Dataset>,
        kind: RecordKind,
    ) -> Result<Self, TrainError> {
        let Some(pictures) = kind.pictures(&**dataset) else {
            return Err(no_pictures(&**dataset));
        };
        let pipeline = pipeline(config, environment.base, &environment.folders)?;
        let buckets = buckets_of(config, &pipeline, pictures)?;
        let folder: PathBuf = match pictures.cache() {
            Some(cache) => cache.to_owned(),
            // Opened from the working directory, as the runs are.
            None => config.run.dir.join(CACHE),
        };
        Ok(Self {
            dataset: dataset.clone(),
            kind,
            pipeline,
            buckets,
            cache: LatentCache::new(folder).with_hashes(environment.folders.hashes()),
            device: environment.device.clone(),
            plan: environment.plan.clone(),
        })
    }

    /// The latents, as [`latent_examples`] gives them.
    ///
    /// # Errors
    /// If a picture cannot be read, or the cache not be written.
    pub(crate) fn encode(
        &self,
        on_picture: &mut dyn FnMut(u64),
    ) -> Result<(LatentExamples, Vec<String>), TrainError> {
        let Some(pictures) = self.kind.pictures(&*self.dataset) else {
            return Err(no_pictures(&*self.dataset));
        };
        let source = FittedPictures {
            pictures,
            enlarged: AtomicUsize::new(0),
        };
        let (cache, buckets) = (&self.cache, &self.buckets);
        let device = (&self.device, &self.plan);
        let (encoded, used) = cache.encode(&self.pipeline, &source, buckets, device, on_picture)?;
        // The autoencoder's memory is the transformer's now.
        self.device.release_unused();
        let place = cache.folder().display();
        let mut notices = vec![format!(
            "pictures: {} encoded, {} found encoded in {place}",
            used.encoded, used.found
        )];
        let enlarged = source.enlarged.into_inner();
        if enlarged > 0 {
            let size = match buckets.sizes() {
                [size] => size.to_string(),
                _ => "the size of their bucket".to_owned(),
            };
            notices.push(format!(
                "pictures: {enlarged} are smaller than {size} and were enlarged"
            ));
        }
        if pictures.buckets().is_some() {
            notices.push(format!("pictures: {}", buckets_in_words(buckets)));
        }
        if let Some(first) = used.damaged.first() {
            notices.push(format!(
                "pictures: {} damaged entries of {place} were made again, the first of them {}",
                used.damaged.len(),
                first.display()
            ));
        }
        let examples = LatentExamples::of(self.dataset.clone(), self.kind, encoded)?;
        Ok((examples, notices))
    }
}

/// The sizes that the pictures of `dataset` are fitted to, and which of them is each picture's: the nearest by its proportions of
/// `data.buckets`, or that of the model.
///
/// # Errors
/// [`TrainError::Setting`] for a size that the folder's model does not make; [`TrainError::Data`] for settings that leave no size, and
/// for pictures whose size cannot be read.
fn buckets_of(
    config: &Config,
    pipeline: &Pipeline,
    pictures: &dyn CaptionedPictures,
) -> Result<PictureBuckets, TrainError> {
    let base = folder_size(config, pipeline);
    LatentCache::check(pipeline, base)?;
    let Some(settings) = pictures.buckets() else {
        return Ok(PictureBuckets::single(base, pictures.len()));
    };
    let of_model = BucketSize {
        width: base.width,
        height: base.height,
    };
    let buckets = Buckets::of(settings, of_model)?;
    let in_pixels = |size: BucketSize| Size::picture(size.width, size.height);
    for size in buckets.sizes() {
        LatentCache::check(pipeline, in_pixels(*size)).map_err(|error| {
            let help = match &settings.sizes {
                Some(_) => "change it in the list",
                None => "set `data.buckets.step` to a multiple of that",
            };
            TrainError::setting(format!("`data.buckets`: {error}"))
                .with_help(help)
                .about("data.buckets")
        })?;
    }
    let of_picture = |index: u64| -> Result<Size, TrainError> {
        let (width, height) = pictures.size(index)?;
        let nearest = buckets.nearest(BucketSize { width, height });
        Ok(in_pixels(buckets.sizes()[nearest]))
    };
    // Beside one another, because headers lie on a disk or behind a network.
    let wanted = (0..pictures.len()).into_par_iter().map(of_picture);
    Ok(PictureBuckets::of(wanted.collect::<Result<Vec<Size>, _>>()?))
}

/// How many pictures each size has: `12 in 2 buckets: 48 x 64 has 7, 64 x 48 has 5`.
fn buckets_in_words(buckets: &PictureBuckets) -> String {
    let counted = buckets.sizes().iter().zip(buckets.counts());
    let each: Vec<String> = counted
        .map(|(size, count)| format!("{} x {} has {count}", size.width, size.height))
        .collect();
    format!("{} in {} buckets: {}", buckets.len(), each.len(), each.join(", "))
}

/// The model of `config` at each of `sizes`: `model`, where that is its own, and others that compute with the same weights.
///
/// # Errors
/// If the config names no diffusers folder, or its model is not of one of these sizes.
pub fn models_of_sizes(
    config: &Config,
    environment: &Environment<'_>,
    model: &Arc<dyn FlowModel>,
    sizes: &[Size],
) -> Result<Vec<Arc<dyn FlowModel>>, TrainError> {
    let pipeline = pipeline(config, environment.base, &environment.folders)?;
    let own = folder_size(config, &pipeline);
    let of = |size: &Size| -> Result<Arc<dyn FlowModel>, TrainError> {
        if *size == own {
            return Ok(model.clone());
        }
        let other: Arc<dyn FlowModel> =
            pipeline.transformer(*size, &environment.plugins.models, &environment.device)?;
        // They are found by their places.
        match other.layout().specs() == model.layout().specs() {
            true => Ok(other),
            false => Err(TrainError::setting(format!(
                "the model of `model.path` has other weights at {size} than at {own}"
            ))
            .with_help("remove `data.buckets`")
            .about("data.buckets")),
        }
    };
    sizes.iter().map(of).collect()
}

/// Whether a pretraining of this config has something to learn from; nothing is encoded. Gives how many pictures are fitted to which
/// size, if the data have pictures of several.
///
/// # Errors
/// As [`latent_examples`] and [`pixel_examples`], as far as it shows without looking at more than the headers of pictures.
pub fn has_examples(
    config: &Config,
    environment: &Environment<'_>,
    dataset: &dyn Dataset,
) -> Result<Option<PictureBuckets>, TrainError> {
    if config.model.path.is_none() {
        return pixel_examples(dataset).map(|_| None);
    }
    let Some(pictures) = dataset.captioned_pictures() else {
        return Err(no_pictures(dataset));
    };
    let pipeline = pipeline(config, environment.base, &environment.folders)?;
    let buckets = buckets_of(config, &pipeline, pictures)?;
    Ok(pictures.buckets().map(|_| buckets))
}

fn no_pictures(dataset: &dyn Dataset) -> TrainError {
    TrainError::setting(format!(
        "the data set `{}` has no pictures for the autoencoder of `model.path`",
        dataset.name()
    ))
    .with_help("set `data.kind = \"images\"` and `data.path` to pictures with captions")
    .about("data.kind")
}

/// The images of `dataset` as they are, for a model of pixels.
///
/// # Errors
/// If it has none.
pub fn pixel_examples(dataset: &dyn Dataset) -> Result<PixelExamples<'_>, TrainError> {
    let images = dataset.captioned_images().ok_or_else(|| {
        TrainError::setting(format!(
            "the data set `{}` has no images, and `pretrain` learns from images",
            dataset.name()
        ))
        .with_help(
            "take another `data.kind` (\"images\" is for pictures with captions), or name weights in `model.weights` or `model.path` and \
             `train`",
        )
        .about("data.kind")
    })?;
    match images.is_empty() {
        false => Ok(PixelExamples(images)),
        true => Err(TrainError::setting(format!(
            "the data set `{}` has no image to train on",
            dataset.name()
        ))
        .about("data")),
    }
}

/// Captions of all examples, which text encoders read before the transformer needs its memory.
///
/// # Errors
/// If an example cannot be read.
pub fn captions(dataset: &dyn Dataset) -> Result<Vec<flow_data::Prompt>, TrainError> {
    let Some(pictures) = dataset.captioned_pictures() else {
        return Ok(Vec::new());
    };
    let caption = |index| Ok(pictures.caption(index)?.clone());
    (0..pictures.len()).map(caption).collect()
}
