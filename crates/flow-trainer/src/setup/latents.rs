//! Models that work in the latents of an autoencoder of their own, `model.autoencoder`, and read a sentence encoder, `text.kind = "bert"`.

use super::Environment;
use super::paths::start_in_config;
use crate::decoder::ImageDecoder;
use crate::error::TrainError;
use crate::pretrain::EncodedImages;
use crate::sentences::Sentences;
use flow_autoencoder::{AutoencoderConfig, AutoencoderFolder, AutoencoderSpec};
use flow_config::{BertText, Config};
use flow_core::model::TextWidth;
use flow_core::{LatentShape, ModelSpec};
use flow_data::{Dataset, ImageShape};
use flow_pipeline::{PictureEncoder, SentenceEncoder};
use std::path::Path;
use std::sync::Arc;

/// What gets the files of the one job here that has such parts.
const FETCH: &str = "`flow-train fetch words` gets those of `configs/words-grpo.toml`";

/// The autoencoder in `path`, `model.autoencoder`, for latents of shape `latent`. Its weights are not read; relative paths start from
/// `base`.
///
/// # Errors
/// If it is not there, or its latents are others.
pub fn own_autoencoder(
    path: &Path,
    base: &Path,
    latent: LatentShape,
) -> Result<AutoencoderFolder, TrainError> {
    let folder = base.join(path);
    if !folder.exists() {
        return Err(TrainError::setting(format!(
            "there is nothing at `{}`, which `model.autoencoder` names",
            folder.display()
        ))
        .with_help(format!("{}. {FETCH}", start_in_config(path, base)))
        .about("model.autoencoder"));
    }
    let found = AutoencoderFolder::open(&folder)?;
    let spec = found.config().spec();
    if spec.frames.is_some() {
        return Err(TrainError::setting(format!(
            "the autoencoder of `{}`, which `model.autoencoder` names, is for videos",
            folder.display()
        ))
        .with_help("take one of pictures")
        .about("model.autoencoder"));
    }
    if spec.latent_channels != latent.channels {
        return Err(TrainError::setting(format!(
            "the latents of `model.autoencoder`, `{}`, have {} channels, the model's {}",
            folder.display(),
            spec.latent_channels,
            latent.channels
        ))
        .with_help(format!("set the model's to {}", spec.latent_channels))
        .about("model.autoencoder"));
    }
    Ok(found)
}

/// What makes images of the latents of a model of `spec` by the autoencoder in `path`.
///
/// # Errors
/// If it cannot be read, or is not of such latents.
pub(super) fn decoder(
    path: &Path,
    environment: &Environment<'_>,
    spec: &ModelSpec,
) -> Result<ImageDecoder, TrainError> {
    let folder = own_autoencoder(path, environment.base, spec.latent)?;
    let loaded = folder.load(&environment.device)?;
    Ok(ImageDecoder::autoencoder(spec.latent, loaded, &environment.plan))
}

/// Whether what an autoencoder decodes latents of shape `latent` to is of the size of the data's images.
pub(super) fn decodes_to_images(
    autoencoder: &AutoencoderConfig,
    latent: LatentShape,
    dataset: &dyn Dataset,
) -> Result<(), TrainError> {
    let Some(images) = dataset.captioned_images() else {
        return Ok(());
    };
    let shape = images.image_shape();
    let AutoencoderSpec {
        factor, colours_out, ..
    } = autoencoder.spec();
    let decoded = ImageShape {
        channels: colours_out,
        height: latent.height * factor,
        width: latent.width * factor,
    };
    if shape == decoded {
        return Ok(());
    }
    Err(TrainError::setting(format!(
        "the model's latents of {} by {} are decoded to {decoded}, and data set `{}` has images of {shape} (channels, height, width)",
        latent.height,
        latent.width,
        dataset.name()
    ))
    .with_help(format!(
        "{factor} pixels are one row or column of a latent, so set the model's rows to {} and its columns to {}",
        shape.height / factor,
        shape.width / factor
    )))
}

/// The images of `dataset` as latents of `model.autoencoder`. `on_image` is called with the number of images that are encoded.
///
/// # Errors
/// If the data set has no images, or they are not of the size that the model's latents are decoded to.
pub fn encoded_images<'d>(
    config: &Config,
    environment: &Environment<'_>,
    dataset: &'d Arc<dyn Dataset>,
    on_image: &mut dyn FnMut(u64),
) -> Result<EncodedImages<'d>, TrainError> {
    let Some(path) = config.model.own_autoencoder() else {
        return Err(TrainError::setting("there is no autoencoder")
            .with_help("set `model.autoencoder` to the folder of one"));
    };
    // Refused before the autoencoder is read.
    let images = super::pixel_examples(&**dataset)?.0;
    let outline = super::outline(config, &environment.plugins.models, &environment.device)?;
    let latent = outline.model.spec().latent;
    let folder = own_autoencoder(path, environment.base, latent)?;
    decodes_to_images(folder.config(), latent, &**dataset)?;
    let loaded = folder.load(&environment.device)?;
    let encoder = PictureEncoder::new(loaded, &environment.device, &environment.plan);
    let encoded = EncodedImages::encode(images, &encoder, latent, on_image)?;
    drop(encoder);
    // The autoencoder's memory is the transformer's now.
    environment.device.release_unused();
    Ok(encoded)
}

/// The sentence encoder of a config for a model that reads text of `width`. Its weights are not read; relative paths start from `base`.
///
/// # Errors
/// If it is not there or not whole, has other channels than the model reads, or reads fewer tokens.
pub fn sentence_encoder(
    text: &BertText,
    base: &Path,
    width: TextWidth,
) -> Result<SentenceEncoder, TrainError> {
    let folder = base.join(&text.path);
    if !folder.exists() {
        return Err(TrainError::setting(format!(
            "there is nothing at `{}`, which `text.path` names",
            folder.display()
        ))
        .with_help(format!("{}. {FETCH}", start_in_config(&text.path, base)))
        .about("text.path"));
    }
    let encoder = SentenceEncoder::open(&folder)?;
    let channels = encoder.channels();
    let read = [Some(width.channels), width.pooled];
    if let Some(other) = read.into_iter().flatten().find(|read| *read != channels) {
        return Err(TrainError::setting(format!(
            "the text encoder of `text.path`, `{}`, has {channels} channels, and the model reads text of {}{} channels, of which one is \
             {other}",
            folder.display(),
            width.channels,
            width
                .pooled
                .map_or_else(String::new, |pooled| format!(" and pooled text of {pooled}"))
        ))
        .with_help(format!(
            "set both to {channels} (of an `mmdit`: `joint_attention_dim` and `pooled_projection_dim`)"
        ))
        .about("text.path"));
    }
    if text.tokens > encoder.longest() {
        return Err(TrainError::setting(format!(
            "`text.tokens` is {}, and the text encoder of `text.path`, `{}`, reads at most {}",
            text.tokens,
            folder.display(),
            encoder.longest()
        ))
        .about("text.tokens"));
    }
    Ok(encoder)
}

/// The encoder of prompts for a model that reads text of `width`.
///
/// # Errors
/// As [`sentence_encoder`].
pub(super) fn sentences(
    text: &BertText,
    environment: &Environment<'_>,
    width: TextWidth,
) -> Result<Sentences, TrainError> {
    let encoder = sentence_encoder(text, environment.base, width)?;
    let sizes = (text.tokens, text.micro_batch);
    let sentences = Sentences::new(encoder, sizes, &environment.device, &environment.plan);
    let sentences = sentences.with_negative_prompt(&text.negative_prompt);
    Ok(match width.pooled {
        Some(_) => sentences,
        None => sentences.without_pooled(),
    })
}
