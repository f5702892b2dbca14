//! CLIP's text encoder, with or without projection, and its encoder of images.
//!
//! Sources: Radford et al. 2021, arXiv:2103.00020, and transformers 5.24.0, `models/clip/modeling_clip.py`, whose weight names
//! and numerics it has. Attention of text is causal and nothing else: pipelines pass no mask of padding.

mod block;
mod config;
mod vision;

pub use config::{ClipActivation, ClipConfig, EndToken};
pub use vision::{ClipVision, ClipVisionConfig, ClipVisionOutput};

use crate::encoder::check_ids;
use crate::parts::{LayerNorm, declared, product, table};
use crate::weights::Role;
use crate::{EncoderError, TextEncoder, Tokens, config as json};
use block::{BlockShape, ClipBlock};
use burn::tensor::{Int, Tensor, TensorData};
use flow_core::exec::{Exec, Linear};
use flow_core::ops::attention::Mask;
use flow_core::{AttentionSpec, Handle, ParamLayout, Rows};
use std::path::Path;
use std::sync::Arc;

/// Before the names of all weights but the projection's, in files of every version but transformers' 5.x.
const PREFIX: &str = "text_model.";
/// The name of the projection's weight.
const PROJECTION: &str = "text_projection.weight";

/// CLIP's text encoder.
#[derive(Debug)]
pub struct ClipText {
    config: ClipConfig,
    layout: Arc<ParamLayout>,
    tokens: Handle<2>,
    positions: Handle<2>,
    blocks: Vec<Arc<ClipBlock>>,
    norm: LayerNorm,
    projection: Option<Linear>,
}

/// What CLIP's text encoder makes of `B` prompts of `S` tokens, in `D` channels.
#[derive(Clone, Debug)]
pub struct ClipOutput {
    /// What the last block is given, `[B, S, D]`: transformers' `hidden_states[-2]`, without the final norm. What SD3 reads.
    pub penultimate: Tensor<3>,
    /// What the last block gives, `[B, S, D]`, without the final norm.
    pub last: Tensor<3>,
    /// The same with the final norm: transformers' `last_hidden_state`.
    pub normed: Tensor<3>,
    /// The row of `normed` at each prompt's end token, `[B, D]`: transformers' `pooler_output`. What FLUX reads.
    pub pooled: Tensor<2>,
    /// The projection of `pooled`, `[B, projection]`: transformers' `text_embeds`, if there is one. What SD3 reads.
    pub projected: Option<Tensor<2>>,
}

impl ClipText {
    /// The encoder that `config` describes.
    pub fn new(config: ClipConfig) -> Self {
        let shape = BlockShape {
            width: config.width,
            inner: config.inner,
            heads: config.heads,
            activation: config.activation,
            epsilon: config.epsilon,
            attention: AttentionSpec {
                mask: Some(Arc::new(Mask::Causal)),
                ..AttentionSpec::default()
            },
        };
        let (layout, encoder) = declared(Rows::Text, |parts| {
            let width = config.width;
            let mut model = parts.under("text_model");
            let mut embeddings = model.under("embeddings");
            let tokens = table(&mut embeddings, "token_embedding", config.vocabulary, width);
            let positions = table(&mut embeddings, "position_embedding", config.positions, width);
            let blocks = (0..config.layers)
                .map(|index| {
                    let block = model.under(format_args!("encoder.layers.{index}"));
                    Arc::new(ClipBlock::new(block, &shape))
                })
                .collect();
            let norm = LayerNorm::new(&mut model, "final_layer_norm", width);
            let projection = config
                .projection
                .map(|output| product(parts, "text_projection", width, output));
            (tokens, positions, blocks, norm, projection)
        });
        let (tokens, positions, blocks, norm, projection) = encoder;
        Self {
            config,
            layout,
            tokens,
            positions,
            blocks,
            norm,
            projection,
        }
    }

    /// The encoder whose `config.json` lies in `folder`.
    ///
    /// # Errors
    /// [`EncoderError::Folder`], [`EncoderError::Config`].
    pub fn open(folder: &Path) -> Result<Self, EncoderError> {
        let (from, config) = json::of_folder(folder)?;
        Ok(Self::new(ClipConfig::read(&from, &config, None)?))
    }

    /// Dimensions.
    pub fn config(&self) -> &ClipConfig {
        &self.config
    }

    /// Encodes `tokens`, whose mask is not looked at.
    ///
    /// # Errors
    /// [`EncoderError::Tokens`] for ids beyond the table, a prompt longer than there are positions, or one without an end token.
    pub fn encode(&self, exec: &Exec<'_>, tokens: &Tokens) -> Result<ClipOutput, EncoderError> {
        check_ids(tokens.ids(), self)?;
        let (batch, length, width) = (tokens.batch(), tokens.length(), self.config.width);
        if length > self.config.positions {
            return Err(EncoderError::Tokens(format!(
                "prompts have {length}; this CLIP has positions for {}. Let the tokenizer truncate to `model_max_length`",
                self.config.positions
            )));
        }
        let ends = self.ends(tokens)?;
        let device = exec.params().get(self.tokens).device();
        let of_tokens = exec.embedding(self.tokens, tokens.tensor(&device));
        let positions: Tensor<2, Int> = Tensor::from_data(
            TensorData::new((0..length as i64).collect::<Vec<i64>>(), [1, length]),
            &device,
        );
        let x_bsd = of_tokens + exec.embedding(self.positions, positions);
        let (last, penultimate) = exec.stack(
            "text_model.encoder.layers",
            &self.blocks,
            (x_bsd.clone(), x_bsd),
            (),
        );
        let normed = self.norm.forward(exec, last.clone(), self.config.epsilon);
        let rows: Vec<i64> = (0..batch).map(|row| (row * length + ends[row]) as i64).collect();
        let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [batch]), &device);
        let pooled = normed.clone().reshape([batch * length, width]).select(0, rows);
        let projected = self
            .projection
            .as_ref()
            .map(|layer| exec.linear(layer, pooled.clone()));
        Ok(ClipOutput {
            penultimate,
            last,
            normed,
            pooled,
            projected,
        })
    }

    /// Where the end token of each prompt is.
    fn ends(&self, tokens: &Tokens) -> Result<Vec<usize>, EncoderError> {
        let end = |(row, ids): (usize, &Vec<u32>)| {
            let wanted = match self.config.end {
                EndToken::Largest => ids.iter().copied().max().unwrap_or_default(),
                EndToken::Id(id) => id,
            };
            ids.iter().position(|id| *id == wanted).ok_or_else(|| {
                EncoderError::Tokens(format!(
                    "prompt {row} has no end token {wanted} (`eos_token_id`), where this CLIP's pooled embedding is taken"
                ))
            })
        };
        tokens.ids().iter().enumerate().map(end).collect()
    }
}

impl TextEncoder for ClipText {
    fn class_name(&self) -> &'static str {
        match self.projection {
            Some(_) => "CLIPTextModelWithProjection",
            None => "CLIPTextModel",
        }
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }

    fn role(&self, name: &str) -> Role {
        // Of a file of both towers, and a buffer that files before 4.31 have.
        let others = ["vision_model.", "visual_projection.", "logit_scale"];
        if name.ends_with("embeddings.position_ids") || others.iter().any(|other| name.starts_with(other)) {
            return Role::Ignored;
        }
        if name == PROJECTION {
            return match self.projection {
                Some(_) => Role::Weight(name.into()),
                None => Role::Ignored,
            };
        }
        match name.starts_with(PREFIX) {
            true => Role::Weight(name.into()),
            false => Role::Weight(format!("{PREFIX}{name}")),
        }
    }
}
