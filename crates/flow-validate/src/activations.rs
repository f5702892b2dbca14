//! What passes through a model: what its calls take of memory, in training and without a gradient.

use crate::memory::{Load, features};
use flow_checkpoint::Policy;
use flow_core::{AttentionShape, ModelSpec, ParamKind, ParamLayout, Rows};
use std::collections::BTreeMap;

/// Bytes of an f32.
const F32: f64 = 4.0;
/// What a call without a gradient takes, in inputs and outputs of the layer that has most: on H100s it was 3.7 times that for FLUX.1's size and 4.0
/// times for that of Stable Diffusion 3.5 medium.
const LAYERS_OF_A_CALL: f64 = 4.0;

/// What blocks that are computed again keep beside their inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Whether they keep the results of attention.
    pub attention: bool,
    /// Every how many linear layers of a block one keeps its result, from its first on, if any does.
    pub linear_every: Option<usize>,
}

impl Kept {
    /// By a policy that says so; what patterns or a planner keep is not known here.
    pub(crate) fn of(policy: &Policy) -> Self {
        match policy {
            Policy::AttnOnly { .. } => Self {
                attention: true,
                linear_every: None,
            },
            Policy::EveryNthLinear { n } => Self {
                attention: true,
                linear_every: Some(*n),
            },
            _ => Self::default(),
        }
    }
}

/// Values of one row of a micro-batch.
#[derive(Clone, Copy)]
pub(crate) struct RowValues {
    /// Those that are there in backward.
    pub(crate) kept: f64,
    /// Those that pass through a call without a gradient.
    pub(crate) called: f64,
}

/// Values of one row of a micro-batch in a block that is computed again.
#[derive(Clone, Copy, Default)]
struct Recomputed {
    /// What all its linear layers read and give.
    all: f64,
    /// What enters it of the latent.
    tokens: Option<f64>,
    /// What enters it of the text.
    text: Option<f64>,
    /// Linear layers so far, and layers of experts, which are counted by themselves.
    layers: [usize; 2],
    /// What those give that keep their results.
    results: f64,
}

impl Recomputed {
    /// With a linear layer that reads so many `values` of `rows`: what enters a block is the least that a layer reads.
    fn read(&mut self, rows: Rows, values: f64) {
        let stream = match rows {
            Rows::Tokens | Rows::TokensAndText => &mut self.tokens,
            Rows::Text => &mut self.text,
            Rows::Sample => return,
        };
        *stream = Some(stream.map_or(values, |least| least.min(values)));
    }

    /// With a layer that gives so many `values`, of experts or not: the first of them keeps its result, and each that comes `every` layers
    /// after one that does. Layers compute about in the order of their weights.
    fn give(&mut self, values: f64, of_experts: bool, every: Option<usize>) {
        let layer = &mut self.layers[usize::from(of_experts)];
        if every.is_some_and(|every| layer.is_multiple_of(every)) {
            self.results += values;
        }
        *layer += 1;
    }
}

/// Values of one row of a micro-batch, in training and without a gradient.
pub(crate) fn values_per_row(layout: &ParamLayout, spec: &ModelSpec, load: &Load) -> RowValues {
    let Load {
        recomputed_every,
        text_tokens,
        ..
    } = *load;
    let (mut all, mut kept, mut widest) = (0.0_f64, 0.0, 0.0_f64);
    let mut blocks = BTreeMap::<(&str, usize), Recomputed>::new();
    for weight in layout.specs() {
        // An adapter reads what its layer reads and adds to what that gives; its own values are few.
        if weight.kind == ParamKind::Adapter {
            continue;
        }
        let Some([output, input_channels]) = features(weight) else {
            continue;
        };
        let rows = spec.count_rows(weight.rows, text_tokens) as f64;
        let values = rows * (output + input_channels) as f64;
        all += values;
        widest = widest.max(values);
        let block = recomputed_every.and_then(|every| {
            let (stack, block) = spec.block_of(&weight.name)?;
            block.is_multiple_of(every).then_some((stack, block))
        });
        let Some(block) = block else {
            kept += values;
            continue;
        };
        let block = blocks.entry(block).or_default();
        block.all += values;
        let of_experts = weight.shape.len() > 2;
        block.give(rows * output as f64, of_experts, load.kept.linear_every);
        if weight.kind == ParamKind::Base {
            block.read(weight.rows, rows * input_channels as f64);
        }
    }
    // Text that attention only looks at is one tensor for all blocks.
    let has_text_stream = spec
        .attentions
        .iter()
        .any(|layers| layers.queries.contains(&Rows::Text));
    let inputs: f64 = blocks
        .values()
        .map(|block| {
            let text = block.text.filter(|_| has_text_stream);
            block.tokens.unwrap_or(0.0) + text.unwrap_or(0.0)
        })
        .sum();
    let largest = blocks.values().map(|block| block.all).fold(0.0, f64::max);
    let of_attention = match load.kept.attention {
        true => attention_results(spec, load),
        false => 0.0,
    };
    let of_linear: f64 = blocks.values().map(|block| block.results).sum();
    RowValues {
        kept: kept + inputs + of_attention + of_linear + largest + widest,
        called: all.min(LAYERS_OF_A_CALL * widest),
    }
}

/// What the attention layers give for one row of a micro-batch: a value for each channel of a query, and an f32 for each of its heads.
fn attention_results(spec: &ModelSpec, load: &Load) -> f64 {
    let of_layers = |layers: &AttentionShape| {
        let rows = layers.queries.iter();
        let queries: usize = rows.map(|rows| spec.count_rows(*rows, load.text_tokens)).sum();
        let sums = layers.heads as f64 * F32 / load.stored.activation as f64;
        (layers.layers * queries) as f64 * (layers.width as f64 + sums)
    };
    spec.attentions.iter().map(of_layers).sum()
}
