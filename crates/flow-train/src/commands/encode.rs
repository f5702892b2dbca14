//! `encode`: pictures to the latents of a diffusers folder, and prompts to its embeddings.

use super::{CommandContext, config_report::ConfigUse, prompts};
use crate::arguments::{ConfigArguments, EncodeArguments, ExistingFile};
use crate::failure::{Failure, OrFailure};
use crate::output::Output;
use crate::picture_size::PictureSize;
use crate::progress::Count;
use crate::terminal;
use flow_config::Config;
use flow_core::cpu;
use flow_core::tensors::plain;
use flow_data::{PROMPT_KEY, Picture, PromptList, picture};
use flow_models::StoredDtype;
use flow_models::weights::save_tensors;
use flow_pipeline::{EncodedPrompt, PictureEncoder, Pipeline, Size};
use flow_trainer::setup::{self, Environment};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Pixels, of all frames, that are encoded at once; one picture or video at least.
const PIXELS: usize = 1 << 20;
/// The file that is written if nobody names one.
const USUAL: &str = "latents.safetensors";

/// Where the metadata name the pipeline's class, whose latents and embeddings the file has.
pub(super) const PIPELINE_KEY: &str = "flow-train.pipeline";

/// A tensor to be written.
struct Tensor {
    name: &'static str,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// Encodes and writes the file.
pub fn run(arguments: &EncodeArguments, quiet: bool) -> Result<(), Failure> {
    let files = files(&arguments.pictures)?;
    let prompts = match &arguments.prompts {
        Some(path) => Some(PromptList::read(path, PROMPT_KEY).or_bad_input()?),
        None => None,
    };
    if files.is_empty() && prompts.is_none() {
        return Err(Failure::Input(
            "there is nothing to encode; name pictures, folders of them, or a file of prompts with `--prompts`".into(),
        ));
    }
    let (path, policy) = match &arguments.out {
        Some(path) => (path.as_path(), arguments.there.on_exists),
        None => (Path::new(USUAL), ExistingFile::New),
    };
    let output = Output::at(path, "--out", policy)?;
    let frames = if arguments.video { files.len() } else { 1 };
    let context = CommandContext::read(&with_options(arguments, frames), ConfigUse::Inspection)?;
    let config = context.config();
    let (tensors, metadata) = context.compute(config, |environment| {
        let pipeline = setup::pipeline(config, environment.base, &environment.folders).or_bad_input()?;
        let mut tensors = Vec::new();
        let mut metadata = BTreeMap::from([
            (
                "flow-train.version".to_owned(),
                env!("CARGO_PKG_VERSION").to_owned(),
            ),
            (PIPELINE_KEY.to_owned(), pipeline.folder().class().to_owned()),
        ]);
        if !files.is_empty() {
            tensors.push(latents(config, environment, &pipeline, &files, frames, quiet)?);
            let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            metadata.insert("pictures".into(), json!(names).to_string());
        }
        if let Some(prompts) = &prompts {
            let texts: Vec<&str> = prompts
                .entries()
                .iter()
                .map(|entry| entry.text.as_str())
                .collect();
            tensors.extend(embeddings(
                config,
                environment,
                &pipeline,
                &texts,
                arguments,
                quiet,
            )?);
            // `text.kind = "file"` compares it with its data.
            metadata.insert("prompts".into(), json!(texts).to_string());
        }
        Ok((tensors, metadata))
    })?;
    output.make_room_and_say()?;
    let named = tensors.iter().enumerate();
    let named = named.map(|(key, tensor)| (tensor.name.to_owned(), tensor.shape.clone(), key));
    let values = |key: usize| tensors[key].values.clone();
    save_tensors(
        named.collect(),
        &values,
        output.path(),
        StoredDtype::F32,
        &metadata,
    )
    .or_failed()?;
    if !quiet {
        for tensor in &tensors {
            terminal::note(&format!("{} {:?}", tensor.name, tensor.shape));
        }
    }
    terminal::line(&output.path().display().to_string())
}

/// The config's place, with the size and the frames set in it.
fn with_options(arguments: &EncodeArguments, frames: usize) -> ConfigArguments {
    let mut place = arguments.config.clone();
    if let Some(PictureSize { width, height }) = arguments.size {
        place.set.push(format!("model.width={width}"));
        place.set.push(format!("model.height={height}"));
    }
    if !arguments.pictures.is_empty() {
        place.set.push(format!("model.frames={frames}"));
    }
    place
}

/// The pictures that the arguments name: files in their order, and those of folders sorted by path.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut all = Vec::new();
    for path in named {
        let wrong = |problem: String| Failure::Input(format!("`{}`: {problem}", path.display()));
        if !path.is_dir() {
            picture::look(path).map_err(|error| wrong(error.problem))?;
            all.push(path.clone());
            continue;
        }
        let (found, _) = picture::pictures_below(path).map_err(|error| wrong(error.problem))?;
        if found.is_empty() {
            return Err(wrong(
                "there is no picture in this folder (`.png`, `.jpg`, `.jpeg` or `.webp`)".into(),
            ));
        }
        for file in &found {
            picture::look(file)
                .map_err(|error| Failure::Input(format!("`{}`: {}", file.display(), error.problem)))?;
        }
        all.extend(found);
    }
    Ok(all)
}

/// The latents of all pictures, or of the video that they are the frames of.
fn latents(
    config: &Config,
    environment: &Environment<'_>,
    pipeline: &Pipeline,
    files: &[PathBuf],
    frames: usize,
    quiet: bool,
) -> Result<Tensor, Failure> {
    let Size { width, height, .. } = setup::folder_size(config, pipeline);
    let size = Size {
        width,
        height,
        frames,
    };
    let shape = pipeline.latent(size).or_bad_input()?;
    let encoder = PictureEncoder::load(pipeline, &environment.device, &environment.plan).or_bad_input()?;
    let at_once = (PIXELS / (frames * width * height)).max(1) * frames;
    let mut values = Vec::with_capacity(files.len() / frames * shape.values());
    let mut enlarged = Vec::new();
    let mut count = Count::new("encoding", files.len() as u64, quiet);
    for some in files.chunks(at_once) {
        let mut pixels = Vec::with_capacity(some.len() * 3 * width * height);
        for file in some {
            let read = Picture::read(file);
            let read = read.map_err(|error| Failure::Input(format!("`{}`: {error}", file.display())))?;
            if read.is_smaller_than(width, height) {
                enlarged.push(file);
            }
            pixels.push(read.fitted(width, height).to_image().pixels_chw);
        }
        let samples = pixels.chunks(frames).flat_map(channels_first);
        let encoded = encoder.encode(samples.collect(), size).or_bad_input()?;
        let encoded = cpu::to_host(&plain(&encoded.into_dispatch()));
        if encoded.iter().any(|value| !value.is_finite()) {
            return Err(Failure::Run(
                "the autoencoder made a value that is not finite; its weights are unusable, or too large for `device.dtype`".into(),
            ));
        }
        values.extend(encoded);
        for _ in some {
            count.advance();
        }
    }
    drop(count);
    if let (Some(first), false) = (enlarged.first(), quiet) {
        terminal::note(&format!(
            "note: {} of {} pictures are smaller than {width} x {height} pixels and were enlarged, the first of them `{}`",
            enlarged.len(),
            files.len(),
            first.display()
        ));
    }
    let samples = files.len() / frames;
    // As the pipelines of diffusers have their `latents`: with an axis of frames for those that make videos.
    let shape = match pipeline.makes_videos() {
        true => vec![samples, shape.channels, shape.frames, shape.height, shape.width],
        false => vec![samples, shape.channels, shape.height, shape.width],
    };
    Ok(Tensor {
        name: "latents",
        shape,
        values,
    })
}

/// Frames of one sample, each in the order channels, rows, columns, as channels, frames, rows, columns.
fn channels_first(frames: &[Vec<f32>]) -> Vec<f32> {
    let plane = frames[0].len() / 3;
    (0..3)
        .flat_map(|channel| {
            frames
                .iter()
                .flat_map(move |frame| &frame[channel * plane..][..plane])
        })
        .copied()
        .collect()
}

/// What the transformer reads of prompts, and of the negative one, with the names of diffusers' pipelines.
fn embeddings(
    config: &Config,
    environment: &Environment<'_>,
    pipeline: &Pipeline,
    texts: &[&str],
    arguments: &EncodeArguments,
    quiet: bool,
) -> Result<Vec<Tensor>, Failure> {
    let negative = arguments.negative_prompt.as_deref();
    let (encoded, negative) = prompts::encode(config, environment, pipeline, texts, negative, quiet)?;
    let lengths = encoded.iter().chain([&negative]).map(|prompt| prompt.length);
    let longest = lengths.clone().max().unwrap_or(0);
    let is_padded = lengths.clone().any(|length| length < longest);
    let mut tensors = Vec::new();
    let names = [
        ("prompt_embeds", "prompt_embeds_mask", "pooled_prompt_embeds"),
        (
            "negative_prompt_embeds",
            "negative_prompt_embeds_mask",
            "negative_pooled_prompt_embeds",
        ),
    ];
    for (prompts, (text, mask, pooled)) in [&encoded[..], std::slice::from_ref(&negative)]
        .into_iter()
        .zip(names)
    {
        tensors.push(text_of(text, prompts, longest));
        if is_padded {
            let shown = |prompt: &EncodedPrompt| {
                (0..longest)
                    .map(|row| f32::from(u8::from(row < prompt.length)))
                    .collect()
            };
            tensors.push(Tensor {
                name: mask,
                shape: vec![prompts.len(), longest],
                values: prompts
                    .iter()
                    .flat_map(|prompt| -> Vec<f32> { shown(prompt) })
                    .collect(),
            });
        }
        let values: Vec<f32> = prompts
            .iter()
            .flat_map(|prompt| prompt.pooled.iter().flatten().copied())
            .collect();
        if !values.is_empty() {
            tensors.push(Tensor {
                name: pooled,
                shape: vec![prompts.len(), values.len() / prompts.len()],
                values,
            });
        }
    }
    Ok(tensors)
}

/// Texts of `longest` rows, zeros behind the shorter ones.
fn text_of(name: &'static str, prompts: &[EncodedPrompt], longest: usize) -> Tensor {
    let channels = prompts[0].channels;
    let mut values = Vec::with_capacity(prompts.len() * longest * channels);
    for (row, prompt) in prompts.iter().enumerate() {
        values.extend_from_slice(&prompt.text[..prompt.length * channels]);
        values.resize((row + 1) * longest * channels, 0.0);
    }
    Tensor {
        name,
        shape: vec![prompts.len(), longest, channels],
        values,
    }
}
