//! Dimensions of Qwen2.5-VL's text decoder stack, from the whole model's `config.json`.

use crate::EncoderError;
use crate::config::Reader;
use serde_json::Value;
use std::path::Path;

/// Dimensions of a [`QwenText`](super::QwenText).
#[derive(Clone, Debug, PartialEq)]
pub struct QwenConfig {
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Channels.
    pub width: usize,
    /// Channels within the feed-forward parts.
    pub inner: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, a divisor of `heads`.
    pub kv_heads: usize,
    /// Base of the wavelengths of rotary positions.
    pub theta: f64,
    /// Added to the mean square in RMS norms.
    pub epsilon: f32,
}

impl QwenConfig {
    /// Of `config`, the `config.json` in the file `from`: the flat form of older files, or with the table `text_config`.
    ///
    /// # Errors
    /// [`EncoderError::Config`] naming the key, its value and what is allowed.
    pub fn read(from: &Path, config: &Value) -> Result<Self, EncoderError> {
        let reader = Reader::new(from, config)?.nested("text_config");
        reader.word_or("hidden_act", "silu", &["silu"])?;
        reader.off("use_sliding_window")?;
        let theta = theta(&reader)?;
        let config = Self {
            vocabulary: reader.count("vocab_size", 1 << 24)?,
            width: reader.count("hidden_size", 1 << 16)?,
            inner: reader.count("intermediate_size", 1 << 20)?,
            layers: reader.count("num_hidden_layers", 1024)?,
            heads: reader.count("num_attention_heads", 1024)?,
            kv_heads: reader.count("num_key_value_heads", 1024)?,
            theta,
            epsilon: reader.positive_or("rms_norm_eps", 1e-6)? as f32,
        };
        if !config.width.is_multiple_of(2 * config.heads) {
            let problem = format!(
                "is {}; it must be an even multiple of `num_attention_heads` = {}",
                config.width, config.heads
            );
            return Err(reader.wrong("hidden_size", problem));
        }
        if !config.heads.is_multiple_of(config.kv_heads) {
            let problem = format!(
                "is {}; it must divide `num_attention_heads` = {}",
                config.kv_heads, config.heads
            );
            return Err(reader.wrong("num_key_value_heads", problem));
        }
        Ok(config)
    }

    /// Channels of a head.
    pub fn head_dim(&self) -> usize {
        self.width / self.heads
    }
}

/// The base of rotary positions, which newer configs have in `rope_parameters` and older ones beside `rope_scaling`. How its
/// channels are shared out among time, height and width (`mrope_section`) says nothing about text, whose three positions are
/// the same; positions that are scaled are refused.
fn theta(reader: &Reader<'_>) -> Result<f64, EncoderError> {
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(table) = reader.get(key) else {
            continue;
        };
        let kind = table.get("rope_type").or_else(|| table.get("type"));
        if let Some(kind) = kind.filter(|kind| *kind != "default" && *kind != "mrope") {
            let problem = format!("has the type {kind}; allowed: \"default\", \"mrope\"");
            return Err(reader.wrong(key, problem));
        }
    }
    let nested = reader
        .get("rope_parameters")
        .and_then(|table| table.get("rope_theta"));
    match nested {
        Some(value) => value.as_f64().filter(|theta| *theta > 0.0).ok_or_else(|| {
            reader.wrong(
                "rope_parameters",
                format!("has `rope_theta` {value}; it must be a number above 0"),
            )
        }),
        None => reader.positive_or("rope_theta", 1_000_000.0),
    }
}
