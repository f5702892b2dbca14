//! BERT as a text encoder, which sentence encoders such as MiniLM are: post-norm blocks, padding hidden from attention.
//!
//! Sources: Devlin et al. 2019, arXiv:1810.04805, and transformers 5.24.0, `models/bert/modeling_bert.py`, whose weight names and
//! numerics it has; the mean over tokens is that of Reimers and Gurevych 2019, arXiv:1908.10084, section 3.

mod config;

pub use config::BertConfig;

use crate::blip::{Attention, FeedForward};
use crate::encoder::check_ids;
use crate::parts::{LayerNorm, declared, table};
use crate::weights::Role;
use crate::{EncoderError, TextEncoder, Tokens, config as json};
use burn::tensor::{Int, Tensor, TensorData};
use flow_core::exec::{Block, Exec, RegionKind};
use flow_core::ops::attention::Mask;
use flow_core::params::LayoutBuilder;
use flow_core::tensors::plain;
use flow_core::{Handle, ParamLayout, Rows, cpu};
use std::path::Path;
use std::sync::Arc;

/// Before all names, in files of a model that has a BERT within.
const PREFIX: &str = "bert.";
/// The weights of other parts of such files: the pooler, which sentence encoders do not read, and heads of other tasks.
const OTHERS: [&str; 3] = ["pooler.", "cls.", "classifier."];

/// BERT without its pooler.
#[derive(Debug)]
pub struct BertText {
    config: BertConfig,
    layout: Arc<ParamLayout>,
    words: Handle<2>,
    positions: Handle<2>,
    types: Handle<2>,
    norm: LayerNorm,
    blocks: Vec<Arc<BertBlock>>,
}

impl BertText {
    /// The encoder that `config` describes.
    pub fn new(config: BertConfig) -> Self {
        let (layout, (words, positions, types, norm, blocks)) = declared(Rows::Text, |parts| {
            let width = config.width;
            let mut embeddings = parts.under("embeddings");
            let words = table(&mut embeddings, "word_embeddings", config.vocabulary, width);
            let positions = table(&mut embeddings, "position_embeddings", config.positions, width);
            let types = table(&mut embeddings, "token_type_embeddings", config.types, width);
            let norm = LayerNorm::new(&mut embeddings, "LayerNorm", width);
            let blocks = (0..config.layers)
                .map(|index| {
                    let block = parts.under(format_args!("encoder.layer.{index}"));
                    Arc::new(BertBlock::new(block, &config))
                })
                .collect();
            (words, positions, types, norm, blocks)
        });
        Self {
            config,
            layout,
            words,
            positions,
            types,
            norm,
            blocks,
        }
    }

    /// The encoder whose `config.json` lies in `folder`.
    ///
    /// # Errors
    /// [`EncoderError::Folder`], [`EncoderError::Config`].
    pub fn open(folder: &Path) -> Result<Self, EncoderError> {
        let (from, config) = json::of_folder(folder)?;
        Ok(Self::new(BertConfig::read(&from, &config)?))
    }

    /// Dimensions.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// Encodes `tokens`, of which padding is hidden, all as the first of two sentences: transformers' `last_hidden_state`,
    /// `[B, S, width]`. What stands in the rows of padding means nothing.
    ///
    /// # Errors
    /// [`EncoderError::Tokens`] for ids beyond the table, a prompt longer than there are positions, and tokens without a mask.
    pub fn encode(&self, exec: &Exec<'_>, tokens: &Tokens) -> Result<Tensor<3>, EncoderError> {
        check_ids(tokens.ids(), self)?;
        let length = tokens.length();
        if length > self.config.positions {
            return Err(EncoderError::Tokens(format!(
                "prompts have {length}; this BERT has positions for {}. Let the tokenizer truncate to them",
                self.config.positions
            )));
        }
        let mask = tokens.hiding_padding()?.map(Arc::new);
        let calls: Vec<Arc<BertCall>> = (self.blocks.iter())
            .map(|block| {
                Arc::new(BertCall {
                    block: block.clone(),
                    mask: mask.clone(),
                })
            })
            .collect();
        let device = exec.params().get(self.words).device();
        let row = |values: Vec<i64>| -> Tensor<2, Int> {
            let length = values.len();
            Tensor::from_data(TensorData::new(values, [1, length]), &device)
        };
        let of_positions = exec.embedding(self.positions, row((0..length as i64).collect()));
        let of_type = exec.embedding(self.types, row(vec![0]));
        let x_bsd = exec.embedding(self.words, tokens.tensor(&device)) + of_type + of_positions;
        let x_bsd = self.norm.forward(exec, x_bsd, self.config.epsilon);
        Ok(exec.stack("encoder.layer", &calls, x_bsd, ()))
    }
}

/// The mean over those tokens of each prompt that are no padding, on the host, `[B, width]` row by row: the pooling of
/// sentence-transformers, without its normalisation. `encoded` `[B, S, width]` is what [`BertText::encode`] made of `tokens`.
///
/// # Errors
/// [`EncoderError::Embeds`] if `encoded` is not of `tokens`.
pub fn mean_of_tokens(encoded: &Tensor<3>, tokens: &Tokens) -> Result<Vec<f32>, EncoderError> {
    let [batch, length, width] = encoded.dims();
    if [batch, length] != [tokens.batch(), tokens.length()] {
        return Err(EncoderError::Embeds(format!(
            "encoded are {batch} prompts of {length} tokens, given are the tokens of {} prompts of {}",
            tokens.batch(),
            tokens.length()
        )));
    }
    let values = cpu::to_host(&plain(&encoded.clone().into_dispatch()));
    let mut means = Vec::with_capacity(batch * width);
    for row in 0..batch {
        let kept = tokens.kept(row);
        // A prompt has at least the tokens that its tokenizer adds.
        let share = 1.0 / kept.len().max(1) as f64;
        means.extend((0..width).map(|channel| {
            let of_token = |at: &usize| f64::from(values[(row * length + at) * width + channel]);
            (kept.iter().map(of_token).sum::<f64>() * share) as f32
        }));
    }
    Ok(means)
}

impl TextEncoder for BertText {
    fn class_name(&self) -> &'static str {
        "BertModel"
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }

    fn role(&self, name: &str) -> Role {
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        // The positions are a buffer that files of older versions have.
        let is_other = OTHERS.iter().any(|other| name.starts_with(other));
        match is_other || name == "embeddings.position_ids" {
            true => Role::Ignored,
            false => Role::Weight(name.into()),
        }
    }
}

/// Attention and a feed-forward part, each followed by a layer norm.
#[derive(Debug)]
struct BertBlock {
    attention: Attention,
    feed_forward: FeedForward,
    heads: usize,
    epsilon: f32,
}

impl BertBlock {
    fn new(mut parts: LayoutBuilder<'_>, config: &BertConfig) -> Self {
        let (width, inner) = (config.width, config.inner);
        let attention = Attention::new(parts.under("attention"), width, width);
        Self {
            attention,
            feed_forward: FeedForward::new(&mut parts, width, inner),
            heads: config.heads,
            epsilon: config.epsilon,
        }
    }
}

/// A block, and what hides padding in a call.
#[derive(Debug)]
struct BertCall {
    block: Arc<BertBlock>,
    mask: Option<Arc<Mask>>,
}

impl BertCall {
    fn attend(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let block = &*self.block;
        let shape = (block.heads, block.epsilon);
        let seen = (x_bsd.clone(), x_bsd);
        block.attention.forward(exec, seen, shape, self.mask.as_ref())
    }

    fn feed_forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let block = &*self.block;
        block.feed_forward.forward(exec, x_bsd, block.epsilon)
    }
}

impl Block for BertCall {
    type Carried = Tensor<3>;
    type Shared = ();

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>, (): ()) -> Tensor<3> {
        let attended = exec.region(RegionKind::Attention, self, x_bsd, Self::attend);
        exec.region(RegionKind::Mlp, self, attended, Self::feed_forward)
    }
}
