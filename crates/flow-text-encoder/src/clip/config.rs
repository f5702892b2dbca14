//! Dimensions of a CLIP text encoder, from its `config.json`.

use crate::EncoderError;
use crate::config::Reader;
use serde_json::Value;
use std::path::Path;

/// The end token's id in the configs of SD3 and FLUX, which is not the id of their end token: they were written before
/// transformers read it, and mean the largest id of a prompt.
const LEGACY_END: u64 = 2;

/// The function between the two layers of a feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClipActivation {
    /// `x · sigmoid(1.702 x)`: CLIP-L.
    QuickGelu,
    /// `x · Φ(x)`, exact: OpenCLIP's models, bigG among them.
    Gelu,
}

impl ClipActivation {
    /// The one that a config names.
    pub(super) fn read(reader: &Reader<'_>) -> Result<Self, EncoderError> {
        let word = reader.word_or("hidden_act", "quick_gelu", &["quick_gelu", "gelu"])?;
        Ok(match word {
            "gelu" => Self::Gelu,
            _ => Self::QuickGelu,
        })
    }
}

/// Ok if heads share the channels evenly.
pub(super) fn check_heads(reader: &Reader<'_>, width: usize, heads: usize) -> Result<(), EncoderError> {
    if width.is_multiple_of(heads) {
        return Ok(());
    }
    let problem = format!("is {width}; it must be a multiple of `num_attention_heads` = {heads}");
    Err(reader.wrong("hidden_size", problem))
}

/// Where the pooled row of a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndToken {
    /// At the largest id, its first occurrence.
    Largest,
    /// At the first occurrence of this id.
    Id(u32),
}

/// Dimensions of a [`ClipText`](super::ClipText).
#[derive(Clone, Debug, PartialEq)]
pub struct ClipConfig {
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// The longest prompt in tokens.
    pub positions: usize,
    /// Channels.
    pub width: usize,
    /// Channels within the feed-forward parts.
    pub inner: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Channels of the projected embedding, if there is a projection (`CLIPTextModelWithProjection`).
    pub projection: Option<usize>,
    /// Between the feed-forward layers.
    pub activation: ClipActivation,
    /// Added to the variance in layer norms.
    pub epsilon: f32,
    /// What is pooled.
    pub end: EndToken,
}

/// Channels of the projections. A whole CLIP has them at the top of its config: those in the tables of its towers are defaults that
/// nothing reads.
pub(super) fn projection_of(whole: &Reader<'_>, tower: &Reader<'_>) -> Result<usize, EncoderError> {
    match whole.get("projection_dim") {
        Some(_) => whole.count("projection_dim", 1 << 16),
        None => tower.count("projection_dim", 1 << 16),
    }
}

impl ClipConfig {
    /// Of `config`, the `config.json` in the file `from`, of the class `class`: the config's own word counts where the caller has
    /// none. The text tower's table of a whole CLIP's config is taken.
    ///
    /// # Errors
    /// [`EncoderError::Config`] naming the key, its value and what is allowed.
    pub fn read(from: &Path, config: &Value, class: Option<&str>) -> Result<Self, EncoderError> {
        let whole = Reader::new(from, config)?;
        let reader = whole.nested("text_config");
        let own = whole
            .get("architectures")
            .and_then(|classes| classes.get(0)?.as_str());
        let has_projection = class.or(own) != Some("CLIPTextModel");
        let activation = ClipActivation::read(&reader)?;
        let end = match reader.get("eos_token_id") {
            None => EndToken::Largest,
            Some(value) => match value.as_u64() {
                Some(LEGACY_END) => EndToken::Largest,
                Some(id) if id <= u64::from(u32::MAX) => EndToken::Id(id as u32),
                _ => {
                    return Err(reader.wrong(
                        "eos_token_id",
                        format!("is {value}; it must be the id of a token"),
                    ));
                }
            },
        };
        let config = Self {
            vocabulary: reader.count("vocab_size", 1 << 24)?,
            positions: reader.count_or("max_position_embeddings", 77, 1 << 20)?,
            width: reader.count("hidden_size", 1 << 16)?,
            inner: reader.count("intermediate_size", 1 << 20)?,
            layers: reader.count("num_hidden_layers", 1024)?,
            heads: reader.count("num_attention_heads", 1024)?,
            projection: match has_projection {
                true => Some(projection_of(&whole, &reader)?),
                false => None,
            },
            activation,
            epsilon: reader.positive_or("layer_norm_eps", 1e-5)? as f32,
            end,
        };
        check_heads(&reader, config.width, config.heads)?;
        Ok(config)
    }
}
