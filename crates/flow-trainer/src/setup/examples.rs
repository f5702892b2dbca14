//! From a config's data to what a pretraining learns from.

use super::Environment;
use super::folder::{folder_size, pipeline};
use crate::error::TrainError;
use crate::pretrain::{FittedPictures, LatentExamples, PixelExamples};
use flow_config::Config;
use flow_data::Dataset;
use flow_pipeline::LatentCache;
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
    let Some(pictures) = dataset.captioned_pictures() else {
        return Err(no_pictures(&**dataset));
    };
    let pipeline = pipeline(config, environment.base, &environment.folders)?;
    let size = folder_size(config, &pipeline);
    let folder: PathBuf = match pictures.cache() {
        Some(cache) => cache.to_owned(),
        // Opened from the working directory, as the runs are.
        None => config.run.dir.join(CACHE),
    };
    let cache = LatentCache::new(folder).with_hashes(environment.folders.hashes());
    let source = FittedPictures {
        pictures,
        enlarged: AtomicUsize::new(0),
    };
    let device = (&environment.device, &environment.plan);
    let (encoded, used) = cache.encode(&pipeline, &source, size, device, on_picture)?;
    // The autoencoder's memory is the transformer's now.
    environment.device.release_unused();
    let place = cache.folder().display();
    let mut notices = vec![format!(
        "pictures: {} encoded, {} found encoded in {place}",
        used.encoded, used.found
    )];
    let enlarged = source.enlarged.into_inner();
    if enlarged > 0 {
        notices.push(format!(
            "pictures: {enlarged} are smaller than {} x {} pixels and were enlarged",
            size.width, size.height
        ));
    }
    if let Some(first) = used.damaged.first() {
        notices.push(format!(
            "pictures: {} damaged entries of {place} were made again, the first of them {}",
            used.damaged.len(),
            first.display()
        ));
    }
    Ok((LatentExamples::new(dataset.clone(), encoded)?, notices))
}

/// Whether a pretraining of this config has something to learn from; nothing is encoded.
///
/// # Errors
/// As [`latent_examples`] and [`pixel_examples`], as far as it shows without looking at pictures.
pub fn has_examples(
    config: &Config,
    environment: &Environment<'_>,
    dataset: &dyn Dataset,
) -> Result<(), TrainError> {
    if config.model.path.is_none() {
        return pixel_examples(dataset).map(|_| ());
    }
    if dataset.captioned_pictures().is_none() {
        return Err(no_pictures(dataset));
    }
    let pipeline = pipeline(config, environment.base, &environment.folders)?;
    Ok(LatentCache::check(&pipeline, folder_size(config, &pipeline)).map(|_| ())?)
}

fn no_pictures(dataset: &dyn Dataset) -> TrainError {
    TrainError::Setting(format!(
        "the data set `{}` has no pictures for the autoencoder of `model.path`; set `data.kind = \"images\"` and `data.path` to \
         pictures with captions",
        dataset.name()
    ))
}

/// The images of `dataset` as they are, for a model of pixels.
///
/// # Errors
/// If it has none.
pub fn pixel_examples(dataset: &dyn Dataset) -> Result<PixelExamples<'_>, TrainError> {
    let images = dataset.captioned_images().ok_or_else(|| {
        TrainError::Setting(format!(
            "the data set `{}` has no images, and `pretrain` learns from images; take another `data.kind` (\"images\" is for pictures \
             with captions), or name weights in `model.weights` or `model.path` and `train`",
            dataset.name()
        ))
    })?;
    match images.is_empty() {
        false => Ok(PixelExamples(images)),
        true => Err(TrainError::Setting(format!(
            "the data set `{}` has no image to train on",
            dataset.name()
        ))),
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
