//! The encoders of T5 1.1 and of UMT5.
//!
//! Sources: Raffel et al. 2020, arXiv:1910.10683; Chung et al. 2023, arXiv:2304.09151; and transformers 5.24.0,
//! `models/t5/modeling_t5.py` and `models/umt5/modeling_umt5.py`, whose weight names and numerics they have.

mod block;
mod config;
mod position;

pub use config::T5Config;

use crate::encoder::check_ids;
use crate::parts::{declared, rms, table};
use crate::weights::Role;
use crate::{EncoderError, Padding, TextEncoder, Tokens, config as json};
use block::{T5Block, T5Call, bias_of};
use burn::tensor::{Int, Tensor, TensorData};
use flow_core::exec::Exec;
use flow_core::{Handle, ParamLayout, Rows};
use position::buckets_of;
use std::path::Path;
use std::sync::Arc;

/// The embedding table, and what some files call it.
const EMBEDDING: &str = "shared.weight";
const EMBEDDING_ALIAS: &str = "encoder.embed_tokens.weight";

/// The encoder of T5 1.1 (one table of relative positions) or of UMT5 (one for each block).
#[derive(Debug)]
pub struct T5Encoder {
    config: T5Config,
    layout: Arc<ParamLayout>,
    tokens: Handle<2>,
    blocks: Vec<Arc<T5Block>>,
    norm: Handle<1>,
}

impl T5Encoder {
    /// The encoder that `config` describes.
    pub fn new(config: T5Config) -> Self {
        let (layout, (tokens, blocks, norm)) = declared(Rows::Text, |parts| {
            let tokens = table(parts, "shared", config.vocabulary, config.width);
            let mut encoder = parts.under("encoder");
            let blocks = (0..config.layers)
                .map(|index| {
                    let block = encoder.under(format_args!("block.{index}"));
                    Arc::new(T5Block::new(block, &config, index == 0 || config.table_per_block))
                })
                .collect();
            (
                tokens,
                blocks,
                rms(&mut encoder, "final_layer_norm", config.width),
            )
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
        Ok(Self::new(T5Config::read(&from, &config)?))
    }

    /// Dimensions.
    pub fn config(&self) -> &T5Config {
        &self.config
    }

    /// Encodes `tokens`: transformers' `last_hidden_state`, `[B, S, width]`. With [`Padding::Attended`] their mask is not looked
    /// at: so do the pipelines of SD3 and FLUX. Prompts may have any length.
    ///
    /// # Errors
    /// [`EncoderError::Tokens`] for ids beyond the table, or if padding is to be masked and nothing says where it is.
    pub fn encode(
        &self,
        exec: &Exec<'_>,
        tokens: &Tokens,
        padding: Padding,
    ) -> Result<Tensor<3>, EncoderError> {
        check_ids(tokens.ids(), self)?;
        let mask = match padding {
            Padding::Attended => None,
            Padding::Masked => tokens.hiding_padding()?.map(Arc::new),
        };
        let device = exec.params().get(self.tokens).device();
        let buckets = buckets_of(tokens.length(), self.config.buckets, self.config.max_distance);
        let distances = buckets.len();
        let buckets = Tensor::<2, Int>::from_data(TensorData::new(buckets, [1, distances]), &device);
        let shared = match (self.config.table_per_block, self.blocks[0].positions) {
            (false, Some(table)) => Some(bias_of(exec, table, buckets.clone())),
            _ => None,
        };
        let calls: Vec<Arc<T5Call>> = (self.blocks.iter())
            .map(|block| {
                Arc::new(T5Call {
                    block: block.clone(),
                    mask: mask.clone(),
                    bias: shared.clone(),
                    buckets: buckets.clone(),
                })
            })
            .collect();
        let x_bsd = exec.embedding(self.tokens, tokens.tensor(&device));
        let x_bsd = exec.stack("encoder.block", &calls, x_bsd, ());
        Ok(exec.rms_norm(x_bsd, Some(self.norm), self.config.epsilon))
    }
}

impl TextEncoder for T5Encoder {
    fn class_name(&self) -> &'static str {
        match self.config.table_per_block {
            true => "UMT5EncoderModel",
            false => "T5EncoderModel",
        }
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }

    fn role(&self, name: &str) -> Role {
        match name {
            EMBEDDING_ALIAS => Role::Stead(EMBEDDING.into()),
            // Of a file of encoder and decoder.
            "lm_head.weight" => Role::Ignored,
            name if name.starts_with("decoder.") => Role::Ignored,
            name => Role::Weight(name.into()),
        }
    }
}
