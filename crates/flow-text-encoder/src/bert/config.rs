//! Dimensions of a BERT, from its `config.json`.

use crate::EncoderError;
use crate::config::Reader;
use serde_json::Value;
use std::path::Path;

/// Dimensions of a [`BertText`](super::BertText).
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// The longest prompt in tokens.
    pub positions: usize,
    /// Rows of the table that tells sentences apart; the first is read.
    pub types: usize,
    /// Channels.
    pub width: usize,
    /// Channels within the feed-forward parts.
    pub inner: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads, of which `width` is a multiple.
    pub heads: usize,
    /// Added to the variance in layer norms.
    pub epsilon: f32,
}

impl BertConfig {
    /// Of `config`, the `config.json` in the file `from`.
    ///
    /// # Errors
    /// [`EncoderError::Config`] naming the key, its value and what is allowed.
    pub fn read(from: &Path, config: &Value) -> Result<Self, EncoderError> {
        let reader = Reader::new(from, config)?;
        let kind = reader.get("model_type");
        if kind.and_then(Value::as_str) != Some("bert") {
            let found = kind.map_or("missing".to_owned(), Value::to_string);
            return Err(reader.wrong("model_type", format!("is {found}; allowed: \"bert\"")));
        }
        reader.word_or("hidden_act", "gelu", &["gelu"])?;
        reader.word_or("position_embedding_type", "absolute", &["absolute"])?;
        reader.off("is_decoder")?;
        let config = Self {
            vocabulary: reader.count("vocab_size", 1 << 24)?,
            positions: reader.count_or("max_position_embeddings", 512, 1 << 20)?,
            types: reader.count_or("type_vocab_size", 2, 1 << 16)?,
            width: reader.count("hidden_size", 1 << 16)?,
            inner: reader.count("intermediate_size", 1 << 20)?,
            layers: reader.count("num_hidden_layers", 1024)?,
            heads: reader.count("num_attention_heads", 1024)?,
            epsilon: reader.positive_or("layer_norm_eps", 1e-12)? as f32,
        };
        if !config.width.is_multiple_of(config.heads) {
            let problem = format!(
                "is {}; it must be a multiple of `num_attention_heads` = {}",
                config.width, config.heads
            );
            return Err(reader.wrong("hidden_size", problem));
        }
        Ok(config)
    }
}
