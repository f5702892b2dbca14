//! A folder of diffusers as a whole.

use crate::size::Steps;
use crate::{PipelineError, Size};
use flow_autoencoder::{Autoencoder, config_of};
use flow_core::device::ComputeDevice;
use flow_core::{LatentShape, Weights};
use flow_diffusers::{Component, Family, PipelineFolder, Scheduler};
use flow_models::{Architecture, ModelRegistry};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a pipeline does unless it is told otherwise: as diffusers 0.42.1, but for FLUX.1-schnell, which has the 4 steps, the 256 tokens
/// and the absent guidance that it was distilled for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Defaults {
    /// Size of what it makes.
    pub size: Size,
    /// Steps of its sampler.
    pub steps: usize,
    /// Guidance scale: of two branches, or the one that the model embeds (FLUX.1).
    pub guidance_scale: f64,
    /// Tokens of T5's or UMT5's part of a text; the most tokens of a text of Qwen-Image, whose texts are as long as they are.
    pub text_tokens: usize,
}

/// A pipeline's folder: what it is made of, and what it makes.
#[derive(Clone, Debug)]
pub struct Pipeline {
    folder: PipelineFolder,
    family: Family,
    variant: Option<String>,
    scheduler: Scheduler,
    transformer: Value,
    steps: Steps,
}

/// Pipelines whose transformer is computed here.
const KNOWN: [Family; 4] = [
    Family::StableDiffusion3,
    Family::Flux,
    Family::QwenImage,
    Family::Wan,
];

impl Pipeline {
    /// Opens the folder at `path`, whose components are all looked at: files there, whole, and of the pipeline; of weights, those of
    /// `variant` (`fp16`, `bf16`) if one is named. No weight is read.
    ///
    /// # Errors
    /// [`PipelineError::Folder`] with everything that is wrong; [`PipelineError::Unsupported`] for a pipeline that is read but not
    /// computed; [`PipelineError::Autoencoder`] for its autoencoder's settings.
    pub fn open(path: &Path, variant: Option<&str>) -> Result<Self, PipelineError> {
        let folder = PipelineFolder::open(path)?;
        let family = folder.check(variant)?;
        if !KNOWN.contains(&family) {
            return Err(PipelineError::Unsupported {
                path: path.to_owned(),
                class: folder.class().to_owned(),
                known: KNOWN.map(Family::class).join(", "),
            });
        }
        let transformer = Value::Object(folder.component("transformer")?.config()?);
        let steps = steps_of(&folder, &transformer, family)?;
        let scheduler = folder.scheduler()?;
        Ok(Self {
            family,
            variant: variant.map(str::to_owned),
            scheduler,
            transformer,
            steps,
            folder,
        })
    }

    /// The folder.
    pub fn folder(&self) -> &PipelineFolder {
        &self.folder
    }

    /// Which pipeline it is.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The variant of weights that is read.
    pub fn variant(&self) -> Option<&str> {
        self.variant.as_deref()
    }

    /// Its scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// What `flow-models` calls its transformer's architecture.
    pub fn architecture(&self) -> &'static str {
        match self.family {
            Family::StableDiffusion3 => "mmdit",
            Family::Flux => "flux",
            Family::QwenImage => "qwen-image",
            Family::Wan => "wan",
        }
    }

    /// Whether the transformer embeds a guidance scale: FLUX.1-dev, not schnell.
    pub fn embeds_guidance(&self) -> bool {
        self.transformer["guidance_embeds"] == Value::Bool(true)
    }

    /// Channels of the text that the transformer reads.
    pub fn text_channels(&self) -> usize {
        let key = if self.family == Family::Wan {
            "text_dim"
        } else {
            "joint_attention_dim"
        };
        self.transformer[key].as_u64().unwrap_or(0) as usize
    }

    /// Rows of text that the transformer reads, where T5's or UMT5's part has `text_tokens`: 77 of CLIP stand before it in SD3. Those
    /// of Qwen-Image are the most; a batch has as many as its longest text.
    pub fn text_rows(&self, text_tokens: usize) -> usize {
        match self.family {
            Family::StableDiffusion3 => 77 + text_tokens,
            Family::Flux | Family::QwenImage | Family::Wan => text_tokens,
        }
    }

    /// What the pipeline does unless it is told otherwise.
    pub fn defaults(&self) -> Defaults {
        // FLUX.1-schnell is distilled to few steps, and takes 256 tokens.
        let schnell = self.family == Family::Flux && !self.embeds_guidance();
        let (size, steps, guidance_scale, text_tokens) = match self.family {
            Family::StableDiffusion3 => (Size::picture(1024, 1024), 28, 7.0, 256),
            Family::Flux if schnell => (Size::picture(1024, 1024), 4, 1.0, 256),
            Family::Flux => (Size::picture(1024, 1024), 28, 3.5, 512),
            Family::QwenImage => (Size::picture(1024, 1024), 50, 4.0, 512),
            Family::Wan => {
                let size = Size {
                    width: 832,
                    height: 480,
                    frames: 81,
                };
                (size, 50, 5.0, 512)
            }
        };
        Defaults {
            size,
            steps,
            guidance_scale,
            text_tokens,
        }
    }

    /// Whether it makes videos: its latents have several frames.
    pub fn makes_videos(&self) -> bool {
        self.steps.frames.is_some()
    }

    /// Channels of a latent.
    pub fn latent_channels(&self) -> usize {
        self.steps.channels
    }

    /// The latent of a picture or video of `size`, as the transformer has it.
    ///
    /// # Errors
    /// [`PipelineError::Size`] with the nearest that would do.
    pub fn latent(&self, size: Size) -> Result<LatentShape, PipelineError> {
        self.steps.latent(size)
    }

    /// What a latent of shape `latent` is decoded to: the autoencoder's factors, of frames only in a pipeline that makes videos.
    pub fn decoded_size(&self, latent: LatentShape) -> Size {
        self.steps.size(latent)
    }

    /// What describes the transformer for pictures of `size`: its `config.json` and the size of its latents.
    ///
    /// # Errors
    /// [`PipelineError::Size`].
    pub fn transformer_constants(&self, size: Size) -> Result<Value, PipelineError> {
        let latent = self.latent(size)?;
        let mut constants = self.transformer.clone();
        constants["latent_height"] = json!(latent.height);
        constants["latent_width"] = json!(latent.width);
        if self.family == Family::Wan {
            constants["latent_frames"] = json!(latent.frames);
        }
        Ok(constants)
    }

    /// The transformer for pictures of `size`, without weights.
    ///
    /// # Errors
    /// [`PipelineError::Size`]; [`PipelineError::Model`] for a `config.json` that is not the architecture's, or a registry without
    /// it.
    pub fn transformer(
        &self,
        size: Size,
        models: &ModelRegistry,
        device: &ComputeDevice,
    ) -> Result<Arc<dyn Architecture>, PipelineError> {
        let constants = self.transformer_constants(size)?;
        Ok(models.build(self.architecture(), &constants, device)?)
    }

    /// Where the autoencoder is.
    pub fn autoencoder_folder(&self) -> PathBuf {
        self.part("vae")
    }

    /// Where the transformer's weights are.
    pub fn transformer_folder(&self) -> PathBuf {
        self.part("transformer")
    }

    /// The transformer's weights, for `model`, which [`transformer`](Self::transformer) made.
    ///
    /// # Errors
    /// [`PipelineError::Setting`] for a variant in shards without an index; [`PipelineError::Model`] with every weight that is missing, unknown, misshapen or not finite.
    pub fn transformer_weights(
        &self,
        model: &dyn Architecture,
        device: &ComputeDevice,
    ) -> Result<Weights, PipelineError> {
        let below = self.transformer_weights_below()?;
        Ok(flow_models::load(model, &self.folder.folder().join(below), device)?.0)
    }

    /// The transformer's weights below the pipeline's folder, for whoever names them by path: its folder, or of a variant the one file
    /// or the index of its shards.
    ///
    /// # Errors
    /// [`PipelineError::Setting`] for a variant in shards without an index.
    pub fn transformer_weights_below(&self) -> Result<PathBuf, PipelineError> {
        let folder = Path::new("transformer");
        let file = self.of_variant("transformer")?;
        let name = file.as_deref().and_then(Path::file_name);
        Ok(name.map_or_else(|| folder.to_owned(), |name| folder.join(name)))
    }

    /// The autoencoder and its weights, frozen: what a device computes with and no more.
    ///
    /// # Errors
    /// [`PipelineError::Autoencoder`]; [`PipelineError::Setting`] for a variant in shards without an index.
    pub fn autoencoder(&self, device: &ComputeDevice) -> Result<(Autoencoder, Weights), PipelineError> {
        let folder = self.part("vae");
        Ok(match self.of_variant("vae")? {
            Some(file) => flow_autoencoder::open_weights(&folder, &file, device)?,
            None => flow_autoencoder::open(&folder, device)?,
        })
    }

    /// The variant of a component's weights that is read: none, too, for a component that has plain weights only.
    pub(crate) fn variant_of(&self, name: &str) -> Result<Option<&str>, PipelineError> {
        let files = self.folder.component(name)?.weight_files(self.variant())?;
        Ok(self.variant().filter(|_| files.variant.is_some()))
    }

    /// The one file or the index of a component's variant; none without a variant, or for a component that has plain weights only.
    fn of_variant(&self, name: &str) -> Result<Option<PathBuf>, PipelineError> {
        let Some(variant) = self.variant() else {
            return Ok(None);
        };
        let files = self.folder.component(name)?.weight_files(Some(variant))?;
        if files.variant.is_none() {
            return Ok(None);
        }
        match files.path() {
            Some(path) => Ok(Some(path.to_owned())),
            None => Err(PipelineError::Setting {
                setting: "variant",
                problem: format!(
                    "is `{variant}`, of which `{name}` has {} files without an index, which says what is in them; download the folder \
                     again, with its `*.index.{variant}.json`",
                    files.files.len()
                ),
            }),
        }
    }

    /// The folder of a component.
    pub(crate) fn part(&self, name: &str) -> PathBuf {
        self.folder.folder().join(name)
    }

    /// A component that may be left out.
    pub(crate) fn find(&self, name: &str) -> Option<&Component> {
        self.folder.find(name)
    }
}

fn steps_of(folder: &PipelineFolder, transformer: &Value, family: Family) -> Result<Steps, PipelineError> {
    let autoencoder = config_of(&folder.folder().join("vae"))?.spec();
    let (side, frames) = (autoencoder.factor, autoencoder.frames);
    let number = |value: &Value| value.as_u64().unwrap_or(1) as usize;
    // Two rows and two columns are packed to a token, whose channels the configs of FLUX and Qwen-Image count.
    let packed = matches!(family, Family::Flux | Family::QwenImage);
    let (channels, patch) = match (packed, &transformer["patch_size"]) {
        (true, _) => (number(&transformer["in_channels"]) / 4, 2),
        (false, Value::Array(patch)) => (
            number(&transformer["in_channels"]),
            patch.last().map_or(1, number),
        ),
        (false, patch) => (number(&transformer["in_channels"]), number(patch)),
    };
    Ok(Steps {
        channels,
        side,
        token: side * patch,
        frames: frames.filter(|_| family == Family::Wan),
    })
}
