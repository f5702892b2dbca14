//! The tokens of some prompts, as a tokenizer gives them.

use crate::EncoderError;
use burn::tensor::{Device, Int, Tensor, TensorData};
use flow_core::ops::attention::Mask;
use std::sync::Arc;

/// Ids `[B, L]` of some prompts, padded to one length, and which of them are no padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    ids: Vec<Vec<u32>>,
    mask: Option<Vec<Vec<bool>>>,
    length: usize,
}

impl Tokens {
    /// Tokens without a mask.
    ///
    /// # Errors
    /// [`EncoderError::Tokens`] if there is no prompt or token, or prompts have different lengths.
    pub fn new(ids: Vec<Vec<u32>>) -> Result<Self, EncoderError> {
        let length = ids.first().map_or(0, Vec::len);
        if length == 0 {
            return Err(EncoderError::Tokens(
                "there are none; an empty prompt has those that its tokenizer adds".into(),
            ));
        }
        if let Some(row) = ids.iter().position(|ids| ids.len() != length) {
            return Err(EncoderError::Tokens(format!(
                "prompt {row} has {}, prompt 0 has {length}; pad prompts of a batch to one length",
                ids[row].len()
            )));
        }
        Ok(Self {
            ids,
            mask: None,
            length,
        })
    }

    /// Tokens with a mask of the same shape: true where a token is no padding. Padding may be on either side.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if the mask has another shape.
    pub fn with_mask(ids: Vec<Vec<u32>>, mask: Vec<Vec<bool>>) -> Result<Self, EncoderError> {
        let tokens = Self::new(ids)?;
        let (rows, length) = (tokens.batch(), tokens.length);
        if mask.len() != rows || mask.iter().any(|row| row.len() != length) {
            return Err(EncoderError::Tokens(format!(
                "the mask has {} rows, the first of {}; the tokens are {rows} rows of {length}",
                mask.len(),
                mask.first().map_or(0, Vec::len)
            )));
        }
        Ok(Self {
            mask: Some(mask),
            ..tokens
        })
    }

    /// Number of prompts.
    pub fn batch(&self) -> usize {
        self.ids.len()
    }

    /// Tokens of a prompt, padding included.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The ids, prompt by prompt.
    pub fn ids(&self) -> &[Vec<u32>] {
        &self.ids
    }

    /// Positions of the tokens of prompt `row` that are no padding, ascending. All of them without a mask.
    ///
    /// # Panics
    /// If there is no such prompt.
    pub fn kept(&self, row: usize) -> Vec<usize> {
        match &self.mask {
            Some(mask) => (0..self.length).filter(|at| mask[row][*at]).collect(),
            None => (0..self.length).collect(),
        }
    }

    /// Whether there is a mask.
    pub fn has_mask(&self) -> bool {
        self.mask.is_some()
    }

    /// The ids on `device`, `[B, L]`.
    pub(crate) fn tensor(&self, device: &Device) -> Tensor<2, Int> {
        let values: Vec<i64> = self.ids.iter().flatten().map(|id| i64::from(*id)).collect();
        Tensor::from_data(TensorData::new(values, [self.batch(), self.length]), device)
    }

    /// The attention mask that hides padding from all queries; `None` if there is no padding.
    ///
    /// # Errors
    /// [`EncoderError::Tokens`] if the tokens have no mask: without one nobody knows what is padding.
    pub(crate) fn hiding_padding(&self) -> Result<Option<Mask>, EncoderError> {
        let Some(mask) = &self.mask else {
            return Err(EncoderError::Tokens(
                "they have no mask, and this encoder hides padding; give the tokenizer's attention mask"
                    .into(),
            ));
        };
        if mask.iter().flatten().all(|kept| *kept) {
            return Ok(None);
        }
        let kept = |row: &Vec<bool>| row.iter().filter(|kept| **kept).count();
        let is_first = |row: &Vec<bool>| row[..kept(row)].iter().all(|kept| *kept);
        let made = if mask.iter().all(is_first) {
            Mask::key_padding(mask.iter().map(kept).collect())
        } else {
            // Every query bears the number of the keys that are kept.
            let keys = mask
                .iter()
                .map(|row| row.iter().map(|kept| u32::from(*kept)).collect());
            Mask::documents(vec![vec![1; self.length]; self.batch()], keys.collect())
        };
        made.map(Some)
            .map_err(|error| EncoderError::Tokens(error.to_string()))
    }

    /// [`hiding_padding`](Self::hiding_padding), and every query sees no token after it.
    pub(crate) fn causal(&self) -> Result<Arc<Mask>, EncoderError> {
        Ok(Arc::new(match self.hiding_padding()? {
            Some(padding) => Mask::And(vec![Mask::Causal, padding]),
            None => Mask::Causal,
        }))
    }
}
