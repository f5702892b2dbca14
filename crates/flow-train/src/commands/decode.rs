//! `decode`: latents of a diffusers folder to pictures and videos.

use super::{CommandContext, config_report::ConfigUse, encode::PIPELINE_KEY};
use crate::arguments::{ConfigArguments, DecodeArguments, ExistingFile};
use crate::failure::{Failure, OrFailure};
use crate::output::{self, Output};
use crate::progress::Count;
use crate::terminal;
use flow_core::LatentShape;
use flow_core::tensors::plain;
use flow_models::weights::parse;
use flow_pipeline::{Pipeline, Size};
use flow_report::{Tile, atomic_write};
use flow_trainer::decoder::{Decoded, ImageDecoder};
use flow_trainer::setup;
use std::path::{Path, PathBuf};

/// Pixels, of all frames, that are decoded at once; one picture or video at least.
const PIXELS: usize = 1 << 20;
/// The tensor that is decoded.
const LATENTS: &str = "latents";

/// Latents of a file.
struct Latents {
    /// The class of the pipeline that they are of, if the file names it.
    pipeline: Option<String>,
    samples: usize,
    shape: LatentShape,
    values: Vec<f32>,
}

/// Decodes and writes a file for each latent.
pub fn run(arguments: &DecodeArguments, quiet: bool) -> Result<(), Failure> {
    let latents = Latents::read(&arguments.latents)?;
    let outputs = outputs(arguments, latents.samples)?;
    // The folder says what its autoencoder makes of latents of this shape, and that is the size of the config. To open it takes some
    // size of that order: its own may be more than a small model has positions for.
    let usual = Size {
        width: 8 * latents.shape.width,
        height: 8 * latents.shape.height,
        frames: 1 + 4 * (latents.shape.frames - 1),
    };
    let whole = CommandContext::read(&with_size(&arguments.config, usual), ConfigUse::Inspection)?;
    let pipeline = setup::pipeline(whole.config(), &whole.base, &whole.folders).or_bad_input()?;
    latents.fit(&arguments.latents, &pipeline)?;
    let size = pipeline.decoded_size(latents.shape);
    if size.frames == 1
        && let Some(gif) = outputs.iter().find(|output| has_ending(output.path(), "gif"))
    {
        return Err(Failure::Input(format!(
            "`{}`: GIF is for videos, and these are pictures; name it `{}`",
            gif.path().display(),
            gif.path().with_extension("png").display()
        )));
    }
    let context = CommandContext::read(&with_size(&arguments.config, size), ConfigUse::Inspection)?;
    let config = context.config();
    context.compute(config, |environment| {
        let device = &environment.device;
        let autoencoder = pipeline.autoencoder(device).or_bad_input()?;
        let decoder = ImageDecoder::autoencoder(latents.shape, autoencoder, &environment.plan);
        let pixels = decoder.shape().height * decoder.shape().width * decoder.frames();
        let at_once = (PIXELS / pixels).max(1);
        let of_sample = latents.shape.values();
        let mut count = Count::new("decoding", latents.samples as u64, quiet);
        let some = latents.values.chunks(at_once * of_sample);
        for (values, outputs) in some.zip(outputs.chunks(at_once)) {
            let rows = device.tensor::<2>(values.to_vec(), [values.len() / of_sample, of_sample]);
            let made = decoder.decode_finite(&plain(&rows.into_dispatch())).or_failed()?;
            for (made, output) in made.iter().zip(outputs) {
                count.print_above(|| write(made, output))?;
                count.advance();
            }
        }
        Ok(())
    })?;
    for output in &outputs {
        terminal::line(&output.path().display().to_string())?;
    }
    Ok(())
}

/// The config's place, with the size of what is decoded.
fn with_size(place: &ConfigArguments, size: Size) -> ConfigArguments {
    let mut place = place.clone();
    let sizes = [
        ("width", size.width),
        ("height", size.height),
        ("frames", size.frames),
    ];
    place
        .set
        .extend(sizes.map(|(key, size)| format!("model.{key}={size}")));
    place
}

fn has_ending(path: &Path, wanted: &str) -> bool {
    path.extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case(wanted))
}

/// Writes a picture, or a video as animated PNG or GIF.
fn write(made: &Decoded, output: &Output) -> Result<(), Failure> {
    output.make_room_and_say()?;
    if let Some(video) = made.video().or_failed()? {
        return video.write(output.path()).or_failed();
    }
    let image = made.picture();
    let tile = Tile::new(image.channels, image.height, image.width, image.pixels_chw).or_failed()?;
    let picture = tile.picture(1).or_failed()?;
    atomic_write(output.path(), "picture", |out| out.write_all(&picture.png)).or_failed()
}

/// Where the pictures go: the one file, or one for each latent, numbered from 1.
fn outputs(arguments: &DecodeArguments, samples: usize) -> Result<Vec<Output>, Failure> {
    let usual = arguments.latents.with_extension("png");
    let usual = PathBuf::from(usual.file_name().unwrap_or("latents.png".as_ref()));
    let (path, policy) = match &arguments.out {
        Some(path) => (path.as_path(), arguments.there.on_exists),
        None => (usual.as_path(), ExistingFile::New),
    };
    if !has_ending(path, "png") && !has_ending(path, "gif") {
        // What is no name for a file is said before what is no name for a picture.
        Output::at(path, "--out", policy)?;
        return Err(Failure::Input(format!(
            "`--out {}`: pictures are written as PNG, and videos as animated PNG or GIF; name it `{}`",
            path.display(),
            path.with_extension("png").display()
        )));
    }
    let digits = samples.to_string().len().max(3);
    let each = |path: &Path| -> Vec<PathBuf> {
        match samples {
            1 => vec![path.to_owned()],
            _ => (1..=samples)
                .map(|sample| output::with_stem_end(path, &format!("-{sample:0digits$}")))
                .collect(),
        }
    };
    let paths = match policy {
        // All of them under the first name under which none is there.
        ExistingFile::New => each(&output::free_with(path, each)),
        _ => each(path),
    };
    paths
        .iter()
        .map(|path| Output::at(path, "--out", policy))
        .collect()
}

impl Latents {
    /// Reads the tensor `latents` of a safetensors file: `[B, C, H, W]`, or `[B, C, F, H, W]` with frames.
    fn read(path: &Path) -> Result<Self, Failure> {
        let wrong = |problem: String| Failure::Input(format!("`{}`: {problem}", path.display()));
        let bytes = std::fs::read(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let file = parse(&bytes).map_err(wrong)?;
        let Some(tensor) = file.tensors.iter().find(|tensor| tensor.name == LATENTS) else {
            let names: Vec<&str> = file.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            return Err(wrong(format!(
                "it has no tensor `{LATENTS}`, as `flow-train encode` writes it; it has: {}",
                names.join(", ")
            )));
        };
        let (samples, shape) = match *tensor.shape.as_slice() {
            [samples, channels, height, width] => (samples, [channels, 1, height, width]),
            [samples, channels, frames, height, width] => (samples, [channels, frames, height, width]),
            _ => {
                return Err(wrong(format!(
                    "`{LATENTS}` is {:?}, and must be [B, C, H, W], or [B, C, F, H, W] with frames",
                    tensor.shape
                )));
            }
        };
        let [channels, frames, height, width] = shape;
        if samples == 0 || shape.contains(&0) {
            return Err(wrong(format!(
                "`{LATENTS}` is {:?}: there is nothing in it",
                tensor.shape
            )));
        }
        let values = tensor.to_f32().ok_or_else(|| {
            wrong(format!(
                "`{LATENTS}` is in {:?}; write it in f32, bf16 or f16",
                tensor.dtype
            ))
        })?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(wrong(format!(
                "the value of `{LATENTS}` at {:?} is not finite",
                tensor.place(at)
            )));
        }
        Ok(Self {
            pipeline: file.metadata.get(PIPELINE_KEY).cloned(),
            samples,
            shape: LatentShape {
                channels,
                frames,
                height,
                width,
            },
            values,
        })
    }

    /// Whether they are latents of `pipeline`.
    fn fit(&self, path: &Path, pipeline: &Pipeline) -> Result<(), Failure> {
        let wrong = |problem: String| Err(Failure::Input(format!("`{}`: {problem}", path.display())));
        let class = pipeline.folder().class();
        if let Some(other) = self.pipeline.as_deref().filter(|other| *other != class) {
            return wrong(format!(
                "`{LATENTS}` are of a `{other}`, and `{}` is a `{class}`, whose latents mean something else; decode them with the folder that \
                 they were encoded with, or encode the pictures again with this one",
                pipeline.folder().folder().display()
            ));
        }
        let channels = pipeline.latent_channels();
        if self.shape.channels != channels {
            return wrong(format!(
                "`{LATENTS}` has {} channels, and latents of `{}` have {channels}; were they made with another folder?",
                self.shape.channels,
                pipeline.folder().folder().display()
            ));
        }
        if self.shape.frames != 1 && !pipeline.makes_videos() {
            return wrong(format!(
                "`{LATENTS}` has {} frames, and `{class}` makes pictures",
                self.shape.frames
            ));
        }
        Ok(())
    }
}
