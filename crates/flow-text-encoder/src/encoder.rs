//! What all text encoders have in common.

use crate::EncoderError;
use crate::weights::Role;
use flow_core::ParamLayout;
use std::fmt::Debug;
use std::sync::Arc;

/// A text encoder: a description that holds weight handles, not weights.
pub trait TextEncoder: Debug + Send + Sync {
    /// What transformers calls it.
    fn class_name(&self) -> &'static str;

    /// Its weights' names and shapes. Names are those of the published files; [`role`](Self::role) knows the others that are
    /// in use. How many values it has can be counted without weights: [`ParamLayout::count_values`].
    fn layout(&self) -> &Arc<ParamLayout>;

    /// Rows of its embedding table: ids below this are tokens.
    fn vocabulary(&self) -> usize;

    /// What the tensor called `name` in a file is to this encoder.
    fn role(&self, name: &str) -> Role;
}

/// What becomes of padding in attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// It is attended to like any token: T5 in the pipelines of SD3 and FLUX.
    Attended,
    /// Nothing attends to it: UMT5 in Wan's.
    Masked,
}

/// Ok if all of `rows` are ids below `vocabulary`.
pub(crate) fn check_ids(rows: &[Vec<u32>], encoder: &dyn TextEncoder) -> Result<(), EncoderError> {
    let vocabulary = encoder.vocabulary();
    for (row, ids) in rows.iter().enumerate() {
        if let Some(at) = ids.iter().position(|id| *id as usize >= vocabulary) {
            return Err(EncoderError::Tokens(format!(
                "id {} at position {at} of prompt {row} is beyond the {vocabulary} rows of the embedding table of the {}; the \
                 tokenizer is another model's",
                ids[at],
                encoder.class_name()
            )));
        }
    }
    Ok(())
}
