//! What a flow-matching model is, and what it is given, as data.

mod low_precision_rule;

pub use crate::latent::LatentShape;
pub use low_precision_rule::{LowPrecisionRule, MIN_LOW_PRECISION_COLUMNS};

use crate::params::Rows;
use crate::tensors::select;
use burn::tensor::{Int, Tensor};
use std::fmt;
use std::sync::Arc;

/// What a model is told to generate. Each part has the batch as its first axis.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    /// Tokens of the model's own vocabulary, `[B, L]`; a class is one token.
    pub tokens: Option<Tensor<2, Int>>,
    /// Encoded text, `[B, L, D]`.
    pub text: Option<Tensor<3>>,
    /// How many tokens of [`text`](Self::text) each row has, `[B]`, where those behind them are padding that nothing attends to; absent
    /// if all of them are text. Only models that hide padding read it (Qwen-Image). On the host, because kernels skip tiles by it.
    pub text_lengths: Option<Arc<[usize]>>,
    /// Pooled text, `[B, D]`.
    pub pooled: Option<Tensor<2>>,
    /// Guidance scale that the model embeds, `[B]`: guidance that was distilled into its weights, of which one call suffices.
    pub guidance: Option<Tensor<1>>,
}

impl Condition {
    /// The condition of `self` and below it that of `other`: one batch of the rows of both. Where one's texts have fewer tokens than
    /// the other's, zeros are put behind them, and [`text_lengths`](Self::text_lengths) says where they begin.
    pub fn stacked(self, other: Self) -> Self {
        fn join<const D: usize, K: burn::tensor::kind::Basic>(
            a: Option<Tensor<D, K>>,
            b: Option<Tensor<D, K>>,
        ) -> Option<Tensor<D, K>> {
            a.zip(b).map(|(a, b)| Tensor::cat(vec![a, b], 0))
        }
        let tokens = [&self, &other].map(|one| one.text.as_ref().map_or(0, |text| text.dims()[1]));
        let longest = tokens[0].max(tokens[1]);
        let is_padded = tokens[0] != tokens[1] && self.text.is_some() && other.text.is_some();
        let text_lengths = (is_padded || self.text_lengths.is_some() || other.text_lengths.is_some())
            .then(|| [self.lengths(), other.lengths()].concat().into());
        let padded = |text: Option<Tensor<3>>| text.map(|text| padded_to(text, longest));
        Self {
            text_lengths,
            tokens: join(self.tokens, other.tokens),
            text: join(padded(self.text), padded(other.text)),
            pooled: join(self.pooled, other.pooled),
            guidance: join(self.guidance, other.guidance),
        }
    }

    /// Tokens of text in each row, padding left out.
    fn lengths(&self) -> Vec<usize> {
        match (&self.text_lengths, &self.text) {
            (Some(lengths), _) => lengths.to_vec(),
            (None, Some(text)) => {
                let [batch, tokens, _] = text.dims();
                vec![tokens; batch]
            }
            (None, None) => Vec::new(),
        }
    }

    /// The condition of some rows, in the order asked for.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn rows(&self, rows: &[usize]) -> Self {
        let of = |lengths: &Arc<[usize]>| rows.iter().map(|row| lengths[*row]).collect();
        Self {
            text_lengths: self.text_lengths.as_ref().map(of),
            tokens: self.tokens.as_ref().map(|tokens| select(tokens, rows)),
            text: self.text.as_ref().map(|text| select(text, rows)),
            pooled: self.pooled.as_ref().map(|pooled| select(pooled, rows)),
            guidance: (self.guidance.as_ref()).map(|guidance| select(guidance, rows)),
        }
    }
}

/// Texts `[B, L, D]` with zeros behind them, `[B, tokens, D]`.
fn padded_to(text_bld: Tensor<3>, tokens: usize) -> Tensor<3> {
    let [batch, length, channels] = text_bld.dims();
    if length == tokens {
        return text_bld;
    }
    let like = (&text_bld.device(), text_bld.dtype());
    let zeros = Tensor::zeros([batch, tokens - length, channels], like);
    Tensor::cat(vec![text_bld, zeros], 1)
}

/// Input of a model call.
#[derive(Clone, Debug)]
pub struct ModelInput {
    /// Latents, `[B, N]` with `N` = [`LatentShape::values`].
    pub x: Tensor<2>,
    /// Noise level of each row in `[0, 1]`, `[B]`: `x = (1 - sigma) · data + sigma · noise`.
    pub sigma: Tensor<1>,
    /// The condition.
    pub condition: Condition,
}

impl ModelInput {
    /// The input of some rows, in the order asked for.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn rows(&self, rows: &[usize]) -> Self {
        Self {
            x: select(&self.x, rows),
            sigma: select(&self.sigma, rows),
            condition: self.condition.rows(rows),
        }
    }
}

/// What a model is, as data. The default has nothing: no latent, no condition, no stack, no region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSpec {
    /// Architecture, for instance `dit`.
    pub architecture: String,
    /// Axes of a latent.
    pub latent: LatentShape,
    /// Transformer tokens of one latent.
    pub tokens: usize,
    /// Whether it reads [`Condition::tokens`], and how many and from which vocabulary.
    pub vocabulary: Option<Vocabulary>,
    /// Whether it reads [`Condition::text`], and how wide.
    pub text: Option<TextWidth>,
    /// Names of the stacks of repeated blocks with their number of blocks.
    pub stacks: Vec<(String, usize)>,
    /// Kinds of the regions that its blocks announce.
    pub regions: Vec<RegionKind>,
    /// Whether it reads [`Condition::guidance`].
    pub guidance: bool,
    /// Its attention layers, for estimates of what it computes.
    pub attentions: Vec<AttentionShape>,
}

impl ModelSpec {
    /// How many `rows` one sample has, with `text_tokens` tokens of encoded text.
    pub fn count_rows(&self, rows: Rows, text_tokens: usize) -> usize {
        match rows {
            Rows::Tokens => self.tokens,
            Rows::Text => text_tokens,
            Rows::TokensAndText => self.tokens + text_tokens,
            Rows::Sample => 1,
        }
    }

    /// The stack and the number of the block that a weight called `STACK.NUMBER.…` belongs to; none of a weight outside of blocks. So all
    /// architectures name the weights of their blocks.
    pub fn block_of(&self, name: &str) -> Option<(&str, usize)> {
        self.stacks.iter().find_map(|(stack, _)| {
            let rest = name.strip_prefix(stack.as_str())?.strip_prefix('.')?;
            let block = rest.split('.').next()?.parse().ok()?;
            Some((stack.as_str(), block))
        })
    }
}

/// What a region computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RegionKind {
    /// A whole block of a stack.
    Block,
    /// Projections, attention and output projection.
    Attention,
    /// Feed-forward.
    Mlp,
    /// Mixture of experts.
    Moe,
    /// The router of a mixture of experts.
    Router,
    /// Normalisation with modulation.
    Norm,
    /// The modulation from the conditioning.
    AdaLn,
}

impl fmt::Display for RegionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Block => "block",
            Self::Attention => "attention",
            Self::Mlp => "mlp",
            Self::Moe => "moe",
            Self::Router => "router",
            Self::Norm => "norm",
            Self::AdaLn => "adaln",
        })
    }
}

/// Attention layers that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// How many there are.
    pub layers: usize,
    /// What asks: one stream, or several side by side.
    pub queries: &'static [Rows],
    /// What is asked.
    pub keys: &'static [Rows],
    /// Channels of all heads together.
    pub width: usize,
    /// Heads, a divisor of the width.
    pub heads: usize,
}

/// Encoded text that a model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextWidth {
    /// Channels of a token of [`Condition::text`].
    pub channels: usize,
    /// Channels of [`Condition::pooled`], if it reads that too.
    pub pooled: Option<usize>,
}

/// Tokens that a model understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// Number of different tokens.
    pub size: usize,
    /// Tokens of one condition.
    pub length: usize,
}
