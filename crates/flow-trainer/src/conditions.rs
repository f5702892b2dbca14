//! From prompts to what a model reads.

use crate::policy::{ConditionKeys, Conditions};
use flow_core::device::ComputeDevice;
use flow_core::{Condition, ModelSpec};
use flow_data::{Dataset, Prompt};
use std::sync::Arc;

/// Turns prompts into token conditions, padded to the model's length.
#[derive(Clone, Debug)]
pub struct Conditioner {
    device: ComputeDevice,
    null: Vec<i64>,
    length: usize,
    guided: bool,
}

impl Conditioner {
    /// For `dataset`'s prompts and a model of `spec`.
    ///
    /// # Errors
    /// A message if the model's vocabulary or prompt length is too small for the data.
    pub fn new(
        dataset: &dyn Dataset,
        spec: &ModelSpec,
        guided: bool,
        device: &ComputeDevice,
    ) -> Result<Self, String> {
        let Some(vocabulary) = spec.vocabulary else {
            return Err(format!(
                "model `{}` reads no tokens, and data set `{}` offers nothing else",
                spec.architecture,
                dataset.name()
            ));
        };
        let (words, length) = (dataset.vocabulary().len(), dataset.prompt_length());
        if vocabulary.size < words || vocabulary.length != length {
            return Err(format!(
                "the model reads {} tokens out of {}, but prompts of `{}` have {length} tokens out of {words}; set \
                 `model.dit.conditioning = {{ kind = \"tokens\", vocabulary = {words}, max_tokens = {length} }}`",
                vocabulary.length,
                vocabulary.size,
                dataset.name()
            ));
        }
        let null = dataset.null_tokens().into_iter().map(i64::from).collect();
        Ok(Self {
            device: device.clone(),
            null,
            length,
            guided,
        })
    }

    /// Conditions of a batch of prompts, with the empty condition beside them under guidance.
    pub fn conditions<'a>(&self, prompts: impl Iterator<Item = &'a Prompt>) -> Conditions {
        let rows: Vec<&[u32]> = prompts.map(|prompt| prompt.tokens.as_slice()).collect();
        let key =
            |tokens: &mut dyn Iterator<Item = i64>| tokens.flat_map(i64::to_le_bytes).collect::<Arc<[u8]>>();
        let keys = ConditionKeys {
            conditional: (rows.iter())
                .map(|row| key(&mut row.iter().copied().map(i64::from)))
                .collect(),
            unconditional: key(&mut self.null.iter().copied()),
        };
        let unconditional = self.guided.then(|| self.tokens(self.null.repeat(rows.len())));
        let conditional = self.tokens(rows.concat().into_iter().map(i64::from).collect());
        Conditions {
            conditional,
            unconditional,
            keys: Some(keys),
        }
    }

    /// A condition of raw token rows, the empty one where `None`.
    pub fn rows(&self, rows: &[Option<Vec<u32>>]) -> Condition {
        let mut tokens = Vec::with_capacity(rows.len() * self.length);
        for row in rows {
            match row {
                Some(row) => tokens.extend(row.iter().map(|token| i64::from(*token))),
                None => tokens.extend_from_slice(&self.null),
            }
        }
        self.tokens(tokens)
    }

    fn tokens(&self, tokens: Vec<i64>) -> Condition {
        let batch = tokens.len() / self.length;
        Condition {
            tokens: Some(self.device.int_tensor(tokens, [batch, self.length])),
            ..Condition::default()
        }
    }
}
