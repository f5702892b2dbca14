//! BERT with cross attention to the tokens of an image; every part is followed by a layer norm.

use super::plain;
use crate::encoder::check_ids;
use crate::parts::{LayerNorm, declared, heads_of, linear, side_by_side, table};
use crate::weights::Role;
use crate::{EncoderError, TextEncoder, Tokens};
use burn::tensor::{Int, Tensor, TensorData};
use flow_core::exec::{Block, Exec, Linear, RegionKind};
use flow_core::ops::attention::Mask;
use flow_core::params::LayoutBuilder;
use flow_core::{AttentionSpec, Handle, ParamLayout, Rows};
use std::sync::Arc;

/// Where the weights are.
const UNDER: &str = "text_encoder";

/// Dimensions of a [`BlipText`].
#[derive(Clone, Debug, PartialEq)]
pub struct BlipTextConfig {
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Positions: a prompt has at most so many tokens.
    pub positions: usize,
    /// Channels.
    pub width: usize,
    /// Channels of the image's tokens.
    pub image_width: usize,
    /// Channels within the feed-forward parts.
    pub inner: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads, of which `width` is a multiple.
    pub heads: usize,
    /// Added to the variance in layer norms.
    pub epsilon: f32,
}

/// BLIP's BERT.
#[derive(Debug)]
pub struct BlipText {
    config: BlipTextConfig,
    layout: Arc<ParamLayout>,
    words: Handle<2>,
    positions: Handle<2>,
    norm: LayerNorm,
    blocks: Vec<Arc<TextBlock>>,
}

impl BlipText {
    /// The encoder that `config` describes.
    pub fn new(config: BlipTextConfig) -> Self {
        let (layout, (words, positions, norm, blocks)) = declared(Rows::Text, |parts| {
            let mut model = parts.under(UNDER);
            let mut embeddings = model.under("embeddings");
            let words = table(
                &mut embeddings,
                "word_embeddings",
                config.vocabulary,
                config.width,
            );
            let positions = table(
                &mut embeddings,
                "position_embeddings",
                config.positions,
                config.width,
            );
            let norm = LayerNorm::new(&mut embeddings, "LayerNorm", config.width);
            let blocks = (0..config.layers)
                .map(|index| {
                    let block = model.under(format_args!("encoder.layer.{index}"));
                    Arc::new(TextBlock::new(block, &config))
                })
                .collect();
            (words, positions, norm, blocks)
        });
        Self {
            config,
            layout,
            words,
            positions,
            norm,
            blocks,
        }
    }

    /// Dimensions.
    pub fn config(&self) -> &BlipTextConfig {
        &self.config
    }

    /// Encodes `tokens`, of which padding is hidden, with the images `[B, I, image_width]` that they are about, one for each prompt:
    /// transformers' `last_hidden_state`, `[B, S, width]`.
    ///
    /// # Errors
    /// [`EncoderError::Tokens`] for ids beyond the table, a prompt longer than there are positions, and tokens without a mask;
    /// [`EncoderError::Pixels`] for another number of images than of prompts, or of another encoder.
    pub fn encode(
        &self,
        exec: &Exec<'_>,
        tokens: &Tokens,
        images_bid: Tensor<3>,
    ) -> Result<Tensor<3>, EncoderError> {
        check_ids(tokens.ids(), self)?;
        let length = tokens.length();
        if length > self.config.positions {
            return Err(EncoderError::Tokens(format!(
                "prompts have {length}; this BERT has positions for {}",
                self.config.positions
            )));
        }
        let [images, _, channels] = images_bid.dims();
        if (images, channels) != (tokens.batch(), self.config.image_width) {
            return Err(EncoderError::Pixels(format!(
                "there are {images} images in {channels} channels; this BERT reads one in {} for each of {} prompts",
                self.config.image_width,
                tokens.batch()
            )));
        }
        let mask = tokens.hiding_padding()?.map(Arc::new);
        let calls: Vec<Arc<TextCall>> = (self.blocks.iter())
            .map(|block| {
                Arc::new(TextCall {
                    block: block.clone(),
                    mask: mask.clone(),
                })
            })
            .collect();
        let device = exec.params().get(self.words).device();
        let positions: Tensor<2, Int> = Tensor::from_data(
            TensorData::new((0..length as i64).collect::<Vec<i64>>(), [1, length]),
            &device,
        );
        let x_bsd =
            exec.embedding(self.words, tokens.tensor(&device)) + exec.embedding(self.positions, positions);
        let x_bsd = self.norm.forward(exec, x_bsd, self.config.epsilon);
        Ok(exec.stack("text_encoder.encoder.layer", &calls, x_bsd, images_bid))
    }
}

impl TextEncoder for BlipText {
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
        let name = plain(name);
        match name.strip_prefix(UNDER) {
            // A buffer that files of older versions have.
            Some(".embeddings.position_ids") => Role::Ignored,
            Some(rest) if rest.starts_with('.') => Role::Weight(name.into()),
            _ => Role::Ignored,
        }
    }
}

/// Attention of queries to keys and values, with what follows it.
#[derive(Debug)]
pub(crate) struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    norm: LayerNorm,
}

impl Attention {
    /// Of `width` channels, to keys and values of `of_keys` channels.
    pub fn new(mut parts: LayoutBuilder<'_>, width: usize, of_keys: usize) -> Self {
        let mut own = parts.under("self");
        let query = linear(&mut own, "query", width, width);
        let [key, value] = ["key", "value"].map(|name| linear(&mut own, name, of_keys, width));
        let mut output = parts.under("output");
        Self {
            query,
            key,
            value,
            out: linear(&mut output, "dense", width, width),
            norm: LayerNorm::new(&mut output, "LayerNorm", width),
        }
    }

    /// The norm of `x` and what it attends to among `seen`.
    pub fn forward(
        &self,
        exec: &Exec<'_>,
        (x_bsd, seen_bkd): (Tensor<3>, Tensor<3>),
        (heads, epsilon): (usize, f32),
        mask: Option<&Arc<Mask>>,
    ) -> Tensor<3> {
        let q = heads_of(exec, &self.query, x_bsd.clone(), heads);
        let [k, v] = [&self.key, &self.value].map(|layer| heads_of(exec, layer, seen_bkd.clone(), heads));
        let spec = AttentionSpec {
            mask: mask.cloned(),
            ..AttentionSpec::default()
        };
        let attended = side_by_side(exec.attention_with(q, [(k, v)], &spec));
        self.norm
            .forward(exec, x_bsd + exec.linear(&self.out, attended), epsilon)
    }
}

/// Two linear layers with GELU between, what they read, and the norm of the sum.
#[derive(Debug)]
pub(crate) struct FeedForward {
    up: Linear,
    down: Linear,
    norm: LayerNorm,
}

impl FeedForward {
    /// Of `width` channels, `inner` between the layers; `parts` are those of a block.
    pub fn new(parts: &mut LayoutBuilder<'_>, width: usize, inner: usize) -> Self {
        let up = linear(parts, "intermediate.dense", width, inner);
        let mut output = parts.under("output");
        Self {
            up,
            down: linear(&mut output, "dense", inner, width),
            norm: LayerNorm::new(&mut output, "LayerNorm", width),
        }
    }

    pub fn forward(&self, exec: &Exec<'_>, x_bsd: Tensor<3>, epsilon: f32) -> Tensor<3> {
        let inner = burn::tensor::activation::gelu(exec.linear(&self.up, x_bsd.clone()));
        let x_bsd = x_bsd + exec.linear(&self.down, inner);
        self.norm.forward(exec, x_bsd, epsilon)
    }
}

/// Attention to the prompt, attention to the image, and a feed-forward part.
#[derive(Debug)]
struct TextBlock {
    own: Attention,
    images: Attention,
    feed_forward: FeedForward,
    heads: usize,
    epsilon: f32,
}

impl TextBlock {
    fn new(mut parts: LayoutBuilder<'_>, config: &BlipTextConfig) -> Self {
        let (width, inner) = (config.width, config.inner);
        let own = Attention::new(parts.under("attention"), width, width);
        let images = Attention::new(parts.under("crossattention"), width, config.image_width);
        Self {
            own,
            images,
            feed_forward: FeedForward::new(&mut parts, width, inner),
            heads: config.heads,
            epsilon: config.epsilon,
        }
    }
}

/// A block, and what hides padding in a call.
#[derive(Debug)]
struct TextCall {
    block: Arc<TextBlock>,
    mask: Option<Arc<Mask>>,
}

impl TextCall {
    fn attend(self: &Arc<Self>, exec: &Exec<'_>, (x_bsd, images_bid): (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let block = &*self.block;
        let shape = (block.heads, block.epsilon);
        let own = block
            .own
            .forward(exec, (x_bsd.clone(), x_bsd), shape, self.mask.as_ref());
        block.images.forward(exec, (own, images_bid), shape, None)
    }

    fn feed_forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let block = &*self.block;
        block.feed_forward.forward(exec, x_bsd, block.epsilon)
    }
}

impl Block for TextCall {
    type Carried = Tensor<3>;
    /// The tokens of the images.
    type Shared = Tensor<3>;

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>, images_bid: Tensor<3>) -> Tensor<3> {
        let attended = exec.region(RegionKind::Attention, self, (x_bsd, images_bid), Self::attend);
        exec.region(RegionKind::Mlp, self, attended, Self::feed_forward)
    }
}
