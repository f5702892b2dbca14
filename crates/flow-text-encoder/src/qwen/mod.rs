//! Qwen2.5-VL's text decoder stack as an encoder; neither its visual tower nor its head for words is ever loaded.
//!
//! Sources: Bai et al. 2025, arXiv:2502.13923, and transformers 5.24.0, `models/qwen2_5_vl/modeling_qwen2_5_vl.py`, whose weight
//! names and numerics it has.

mod block;
mod config;

pub use config::QwenConfig;

use crate::encoder::check_ids;
use crate::parts::{declared, rms, table};
use crate::weights::Role;
use crate::{EncoderError, TextEncoder, Tokens, config as json};
use block::{Positions, QwenBlock, QwenCall};
use burn::tensor::Tensor;
use flow_core::exec::Exec;
use flow_core::{Handle, ParamLayout, Rows};
use std::path::Path;
use std::sync::Arc;

/// Before the names of all weights.
const PREFIX: &str = "model.";

/// Qwen2.5-VL's text decoder stack.
#[derive(Debug)]
pub struct QwenText {
    config: QwenConfig,
    layout: Arc<ParamLayout>,
    tokens: Handle<2>,
    blocks: Vec<Arc<QwenBlock>>,
    norm: Handle<1>,
}

impl QwenText {
    /// The encoder that `config` describes.
    pub fn new(config: QwenConfig) -> Self {
        let (layout, (tokens, blocks, norm)) = declared(Rows::Text, |parts| {
            let mut model = parts.under("model");
            let tokens = table(&mut model, "embed_tokens", config.vocabulary, config.width);
            let blocks = (0..config.layers)
                .map(|index| {
                    Arc::new(QwenBlock::new(
                        model.under(format_args!("layers.{index}")),
                        &config,
                    ))
                })
                .collect();
            (tokens, blocks, rms(&mut model, "norm", config.width))
        });
        Self {
            config,
            layout,
            tokens,
            blocks,
            norm,
        }
    }

    /// The encoder whose `config.json` lies in `folder`.
    ///
    /// # Errors
    /// [`EncoderError::Folder`], [`EncoderError::Config`].
    pub fn open(folder: &Path) -> Result<Self, EncoderError> {
        let (from, config) = json::of_folder(folder)?;
        Ok(Self::new(QwenConfig::read(&from, &config)?))
    }

    /// Dimensions.
    pub fn config(&self) -> &QwenConfig {
        &self.config
    }

    /// Encodes `tokens`: transformers' `hidden_states[-1]`, `[B, S, width]`, after the final norm. Rows at padding mean nothing.
    /// Positions count the padded row, so tokens after padding stand later than they would alone, as in transformers.
    ///
    /// # Errors
    /// [`EncoderError::Tokens`] for ids beyond the table, or tokens without a mask.
    pub fn encode(&self, exec: &Exec<'_>, tokens: &Tokens) -> Result<Tensor<3>, EncoderError> {
        check_ids(tokens.ids(), self)?;
        let mask = tokens.causal()?;
        let device = exec.params().get(self.tokens).device();
        let positions = Positions::new(&self.config, tokens.length(), &device);
        let calls: Vec<Arc<QwenCall>> = (self.blocks.iter())
            .map(|block| {
                Arc::new(QwenCall {
                    block: block.clone(),
                    mask: mask.clone(),
                    positions: positions.clone(),
                })
            })
            .collect();
        let x_bsd = exec.embedding(self.tokens, tokens.tensor(&device));
        let x_bsd = exec.stack("model.layers", &calls, x_bsd, ());
        Ok(exec.rms_norm(x_bsd, Some(self.norm), self.config.epsilon))
    }
}

impl TextEncoder for QwenText {
    fn class_name(&self) -> &'static str {
        "Qwen2_5_VLForConditionalGeneration"
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }

    fn role(&self, name: &str) -> Role {
        let inner = name.strip_prefix(PREFIX).unwrap_or(name);
        if inner.starts_with("visual.") || inner == "lm_head.weight" {
            return Role::Ignored;
        }
        let inner = inner.strip_prefix("language_model.").unwrap_or(inner);
        Role::Weight(format!("{PREFIX}{inner}"))
    }
}
