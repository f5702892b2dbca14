//! CLIP's encoder of images: a vision transformer, with or without projection.
//!
//! Source: transformers 5.24.0, `models/clip/modeling_clip.py`, `CLIPVisionModelWithProjection`, whose weight names (with the spelling
//! `pre_layrnorm`) and numerics it has. Pixels come in resized and normalised.

use super::block::{BlockShape, ClipBlock};
use super::config::{ClipActivation, check_heads, projection_of};
use crate::EncoderError;
use crate::config::{self as json, Reader};
use crate::parts::{LayerNorm, declared, patch_tokens, product, table};
use crate::weights::Role;
use burn::tensor::{Int, Tensor, TensorData};
use flow_core::exec::{Exec, Linear};
use flow_core::{AttentionSpec, Handle, Init, ParamLayout, Rows};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Colours of an image.
const COLOURS: usize = 3;
/// What files of both towers hold beside this one, and a buffer that files before 4.31 have.
const OTHERS: [&str; 3] = ["text_model.", "text_projection.", "logit_scale"];
/// The name of the projection's weight.
const PROJECTION: &str = "visual_projection.weight";

/// Dimensions of a [`ClipVision`].
#[derive(Clone, Debug, PartialEq)]
pub struct ClipVisionConfig {
    /// Side of the square images that it reads, in pixels.
    pub image: usize,
    /// Side of a patch, which becomes a token, in pixels.
    pub patch: usize,
    /// Channels.
    pub width: usize,
    /// Channels within the feed-forward parts.
    pub inner: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Channels of the projected embedding, if there is a projection.
    pub projection: Option<usize>,
    /// Between the feed-forward layers.
    pub activation: ClipActivation,
    /// Added to the variance in layer norms.
    pub epsilon: f32,
}

impl ClipVisionConfig {
    /// Of `config`, the `config.json` in the file `from`: that of a whole CLIP, or of its vision tower alone.
    ///
    /// # Errors
    /// [`EncoderError::Config`] naming the key, its value and what is allowed.
    pub fn read(from: &Path, config: &Value) -> Result<Self, EncoderError> {
        let whole = Reader::new(from, config)?;
        let kind = whole.get("model_type").and_then(Value::as_str);
        if !matches!(kind, Some("clip" | "clip_vision_model")) {
            let problem = match kind {
                None => "is missing; allowed: \"clip\", \"clip_vision_model\"".to_owned(),
                Some(kind) => format!(
                    "is \"{kind}\", which has no encoder of images that is known here; allowed: \"clip\", \"clip_vision_model\""
                ),
            };
            return Err(whole.wrong("model_type", problem));
        }
        let reader = whole.nested("vision_config");
        let own = whole
            .get("architectures")
            .and_then(|classes| classes.get(0)?.as_str());
        let config = Self {
            image: reader.count_or("image_size", 224, 1 << 14)?,
            patch: reader.count_or("patch_size", 32, 1 << 14)?,
            width: reader.count("hidden_size", 1 << 16)?,
            inner: reader.count("intermediate_size", 1 << 20)?,
            layers: reader.count("num_hidden_layers", 1024)?,
            heads: reader.count("num_attention_heads", 1024)?,
            projection: match own {
                Some("CLIPVisionModel") => None,
                _ => Some(projection_of(&whole, &reader)?),
            },
            activation: ClipActivation::read(&reader)?,
            epsilon: reader.positive_or("layer_norm_eps", 1e-5)? as f32,
        };
        check_heads(&reader, config.width, config.heads)?;
        if config.patch > config.image {
            let problem = format!("is {}; `image_size` is {}", config.patch, config.image);
            return Err(reader.wrong("patch_size", problem));
        }
        let colours = reader.count_or("num_channels", COLOURS, 1 << 10)?;
        if colours != COLOURS {
            return Err(reader.wrong("num_channels", format!("is {colours}; images have {COLOURS}")));
        }
        Ok(config)
    }

    /// Patches along a side. Pixels that fill no patch are not read.
    fn side(&self) -> usize {
        self.image / self.patch
    }
}

/// CLIP's encoder of images.
#[derive(Debug)]
pub struct ClipVision {
    config: ClipVisionConfig,
    layout: Arc<ParamLayout>,
    class: Handle<1>,
    patches: Handle<4>,
    positions: Handle<2>,
    before: LayerNorm,
    blocks: Vec<Arc<ClipBlock>>,
    after: LayerNorm,
    projection: Option<Linear>,
}

/// What CLIP's encoder of images makes of `B` images of `S` patches, in `D` channels.
#[derive(Clone, Debug)]
pub struct ClipVisionOutput {
    /// What the last block gives, `[B, 1 + S, D]`, without a final norm: transformers' `last_hidden_state`.
    pub last: Tensor<3>,
    /// The class token's row with the final norm, `[B, D]`: transformers' `pooler_output`.
    pub pooled: Tensor<2>,
    /// The projection of `pooled`, `[B, projection]`: transformers' `image_embeds`, if there is one.
    pub projected: Option<Tensor<2>>,
}

impl ClipVision {
    /// The encoder that `config` describes.
    pub fn new(config: ClipVisionConfig) -> Self {
        let shape = BlockShape {
            width: config.width,
            inner: config.inner,
            heads: config.heads,
            activation: config.activation,
            epsilon: config.epsilon,
            attention: AttentionSpec::default(),
        };
        let (layout, encoder) = declared(Rows::Tokens, |parts| {
            let (width, patch) = (config.width, config.patch);
            let mut model = parts.under("vision_model");
            let mut embeddings = model.under("embeddings");
            let class = embeddings.param("class_embedding", [width], Init::Normal(0.02));
            let kernel = [width, COLOURS, patch, patch];
            let patches = embeddings
                .under("patch_embedding")
                .param("weight", kernel, Init::Normal(0.02));
            let tokens = 1 + config.side() * config.side();
            let positions = table(&mut embeddings, "position_embedding", tokens, width);
            let before = LayerNorm::new(&mut model, "pre_layrnorm", width);
            let blocks = (0..config.layers)
                .map(|index| {
                    let block = model.under(format_args!("encoder.layers.{index}"));
                    Arc::new(ClipBlock::new(block, &shape))
                })
                .collect();
            let after = LayerNorm::new(&mut model, "post_layernorm", width);
            let projection = config
                .projection
                .map(|output| product(parts, "visual_projection", width, output));
            (class, patches, positions, before, blocks, after, projection)
        });
        let (class, patches, positions, before, blocks, after, projection) = encoder;
        Self {
            config,
            layout,
            class,
            patches,
            positions,
            before,
            blocks,
            after,
            projection,
        }
    }

    /// The encoder whose `config.json` lies in `folder`.
    ///
    /// # Errors
    /// [`EncoderError::Folder`], [`EncoderError::Config`].
    pub fn open(folder: &Path) -> Result<Self, EncoderError> {
        let (from, config) = json::of_folder(folder)?;
        Ok(Self::new(ClipVisionConfig::read(&from, &config)?))
    }

    /// Dimensions.
    pub fn config(&self) -> &ClipVisionConfig {
        &self.config
    }

    /// Its weights' names and shapes.
    pub fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    /// What the tensor called `name` in a file is to this encoder.
    pub fn role(&self, name: &str) -> Role {
        let is_other = OTHERS.iter().any(|other| name.starts_with(other));
        if is_other || name.ends_with("embeddings.position_ids") {
            return Role::Ignored;
        }
        match (name == PROJECTION, &self.projection) {
            (true, None) => Role::Ignored,
            _ => Role::Weight(name.into()),
        }
    }

    /// Encodes images: pixels `[B, 3, image, image]`, normalised.
    ///
    /// # Errors
    /// [`EncoderError::Pixels`] for another shape.
    pub fn encode(&self, exec: &Exec<'_>, pixels_bchw: Tensor<4>) -> Result<ClipVisionOutput, EncoderError> {
        let [batch, colours, height, width] = pixels_bchw.dims();
        let side = self.config.image;
        if batch == 0 || [colours, height, width] != [COLOURS, side, side] {
            return Err(EncoderError::Pixels(format!(
                "they are {:?}; this CLIP reads [images, {COLOURS}, {side}, {side}], at least one",
                [batch, colours, height, width]
            )));
        }
        let tokens = patch_tokens(exec, pixels_bchw, exec.params().get(self.patches), None);
        let class = exec.params().get(self.class).reshape([1, 1, self.config.width]);
        let class = class.repeat_dim(0, batch);
        let count = 1 + self.config.side() * self.config.side();
        let rows = TensorData::new((0..count as i64).collect::<Vec<i64>>(), [1, count]);
        let rows: Tensor<2, Int> = Tensor::from_data(rows, &tokens.device());
        let x_bsd = Tensor::cat(vec![class, tokens], 1) + exec.embedding(self.positions, rows);
        let x_bsd = self.before.forward(exec, x_bsd, self.config.epsilon);
        let (last, _) = exec.stack(
            "vision_model.encoder.layers",
            &self.blocks,
            (x_bsd.clone(), x_bsd),
            (),
        );
        let first = last.clone().narrow(1, 0, 1);
        let pooled = self.after.forward(exec, first, self.config.epsilon);
        let pooled = pooled.reshape([batch, self.config.width]);
        let projected = self
            .projection
            .as_ref()
            .map(|layer| exec.linear(layer, pooled.clone()));
        Ok(ClipVisionOutput {
            last,
            pooled,
            projected,
        })
    }
}
