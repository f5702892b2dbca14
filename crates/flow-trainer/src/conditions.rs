//! From prompts to what a model reads.

use crate::policy::{ConditionKeys, Conditions};
use crate::text::EncodedText;
use flow_core::device::ComputeDevice;
use flow_core::{Condition, ModelSpec};
use flow_data::{Dataset, Prompt};
use std::sync::Arc;

/// Turns prompts into conditions: tokens, or encoded text.
#[derive(Clone, Debug)]
pub struct Conditioner {
    device: ComputeDevice,
    null: Vec<u32>,
    /// For a model that reads encoded text.
    text: Option<EncodedText>,
    guided: bool,
}

impl Conditioner {
    /// For `dataset`'s prompts and a model of `spec` that reads tokens.
    ///
    /// # Errors
    /// A message if the model reads no tokens, or if its vocabulary or prompt length is too small for the data.
    pub fn new(
        dataset: &dyn Dataset,
        spec: &ModelSpec,
        guided: bool,
        device: &ComputeDevice,
    ) -> Result<Self, String> {
        let Some(vocabulary) = spec.vocabulary else {
            return Err(format!(
                "model `{}` reads no tokens, and data set `{}` offers nothing else; \
                 `Conditioner::encoded` is for models that read text",
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
        Ok(Self {
            device: device.clone(),
            null: dataset.null_tokens(),
            text: None,
            guided,
        })
    }

    /// For `dataset`'s prompts, encoded as `text`.
    pub fn encoded(dataset: &dyn Dataset, text: EncodedText, guided: bool, device: &ComputeDevice) -> Self {
        Self {
            device: device.clone(),
            null: dataset.null_tokens(),
            text: Some(text),
            guided,
        }
    }

    /// Tokens of a prompt's encoded text; 0 without.
    pub fn text_tokens(&self) -> usize {
        self.text.as_ref().map_or(0, EncodedText::tokens)
    }

    /// Conditions of a batch of prompts, with the empty condition beside them under guidance.
    pub fn conditions<'a>(&self, prompts: impl Iterator<Item = &'a Prompt>) -> Conditions {
        let rows: Vec<&[u32]> = prompts.map(|prompt| prompt.tokens.as_slice()).collect();
        let key = |tokens: &[u32]| {
            let tokens = tokens.iter().map(|token| i64::from(*token));
            tokens.flat_map(i64::to_le_bytes).collect::<Arc<[u8]>>()
        };
        let keys = ConditionKeys {
            conditional: rows.iter().map(|row| key(row)).collect(),
            unconditional: key(&self.null),
        };
        let unconditional = self
            .guided
            .then(|| self.condition(&vec![&*self.null; rows.len()]));
        let conditional = self.condition(&rows);
        Conditions {
            conditional,
            unconditional,
            keys: Some(keys),
        }
    }

    /// A condition of prompts given by their tokens, the empty one where `None`.
    pub fn rows(&self, rows: &[Option<Vec<u32>>]) -> Condition {
        let rows: Vec<&[u32]> = rows
            .iter()
            .map(|row| row.as_deref().unwrap_or(&self.null))
            .collect();
        self.condition(&rows)
    }

    fn condition(&self, rows: &[&[u32]]) -> Condition {
        if let Some(text) = &self.text {
            return text.condition(rows.iter().copied(), &self.device);
        }
        let tokens = rows.concat().into_iter().map(i64::from).collect();
        let tokens = self.device.int_tensor(tokens, [rows.len(), self.null.len()]);
        Condition {
            tokens: Some(tokens),
            ..Condition::default()
        }
    }
}
