//! Dimensions of a T5 or UMT5 encoder, from its `config.json`.

use crate::EncoderError;
use crate::config::Reader;
use serde_json::Value;
use std::path::Path;

/// Dimensions of a [`T5Encoder`](super::T5Encoder).
#[derive(Clone, Debug, PartialEq)]
pub struct T5Config {
    /// Whether every block has a table of relative positions of its own (UMT5), or all share the first one's (T5).
    pub table_per_block: bool,
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Channels.
    pub width: usize,
    /// Channels within the feed-forward parts.
    pub inner: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Channels of a head; all heads together need not be the width.
    pub head_dim: usize,
    /// Rows of a table of relative positions, an even number: half of them for tokens before, half for tokens after.
    pub buckets: usize,
    /// From this distance on all tokens have the same bucket.
    pub max_distance: usize,
    /// Added to the mean square in RMS norms.
    pub epsilon: f32,
}

impl T5Config {
    /// Of `config`, the `config.json` in the file `from`.
    ///
    /// # Errors
    /// [`EncoderError::Config`] naming the key, its value and what is allowed.
    pub fn read(from: &Path, config: &Value) -> Result<Self, EncoderError> {
        let reader = Reader::new(from, config)?;
        let kind = reader.word_or("model_type", "t5", &["t5", "umt5"])?;
        reader.word_or("feed_forward_proj", "gated-gelu", &["gated-gelu"])?;
        if reader.get("feed_forward_proj").is_none() {
            return Err(reader.wrong(
                "feed_forward_proj",
                "is missing, which means T5 1.0's \"relu\"; the encoders of diffusion pipelines are T5 1.1's \"gated-gelu\"",
            ));
        }
        let buckets = reader.count_or("relative_attention_num_buckets", 32, 1 << 16)?;
        let max_distance = reader.count_or("relative_attention_max_distance", 128, 1 << 24)?;
        if !buckets.is_multiple_of(4) {
            let problem = format!("is {buckets}; it must be a multiple of 4");
            return Err(reader.wrong("relative_attention_num_buckets", problem));
        }
        if max_distance <= buckets / 4 {
            let problem = format!("is {max_distance}; it must be above a quarter of the {buckets} buckets");
            return Err(reader.wrong("relative_attention_max_distance", problem));
        }
        Ok(Self {
            table_per_block: kind == "umt5",
            vocabulary: reader.count("vocab_size", 1 << 24)?,
            width: reader.count("d_model", 1 << 16)?,
            inner: reader.count("d_ff", 1 << 20)?,
            layers: reader.count("num_layers", 1024)?,
            heads: reader.count("num_heads", 1024)?,
            head_dim: reader.count("d_kv", 4096)?,
            buckets,
            max_distance,
            epsilon: reader.positive_or("layer_norm_epsilon", 1e-6)? as f32,
        })
    }
}
