//! Operations of a forward pass, counted from a model's layout: a multiplication and an addition are two.
//!
//! Linear layers have 2 for each weight and row that it sees, attention `4 · queries · keys · width`. The rest is small beside them.

use crate::features;
use flow_core::{ModelSpec, ParamLayout, Rows};

/// Operations of one sample's forward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Operations {
    /// Of linear layers whose weights are trained.
    pub trained: f64,
    /// Of linear layers whose weights are frozen.
    pub frozen: f64,
    /// Of attention between queries, keys and values.
    pub attention: f64,
}

impl Operations {
    /// Of a model, of whose weights `trained` says whether they are, and of a text of `text_tokens` tokens if it reads one.
    pub fn of(layout: &ParamLayout, spec: &ModelSpec, trained: &[bool], text_tokens: usize) -> Self {
        let mut all = Self::default();
        for (weight, trained) in layout.specs().iter().zip(trained) {
            let Some([output, input]) = features(weight) else {
                continue;
            };
            let rows = spec.count_rows(weight.rows, text_tokens);
            let kind = match trained {
                true => &mut all.trained,
                false => &mut all.frozen,
            };
            *kind += 2.0 * rows as f64 * (output * input) as f64;
        }
        for attention in &spec.attentions {
            let tokens = |streams: &[Rows]| {
                let counts = streams.iter().map(|rows| spec.count_rows(*rows, text_tokens));
                counts.sum::<usize>() as f64
            };
            let pairs = tokens(attention.queries) * tokens(attention.keys);
            all.attention += 4.0 * pairs * (attention.layers * attention.width) as f64;
        }
        all
    }

    /// Of the forward pass.
    pub fn forward(&self) -> f64 {
        self.trained + self.frozen + self.attention
    }

    /// Of the backward pass: two products for each of forward, and one where the weight is frozen and only the input gets a
    /// gradient. What is computed again is not in it.
    pub fn backward(&self) -> f64 {
        2.0 * self.trained + self.frozen + 2.0 * self.attention
    }
}
