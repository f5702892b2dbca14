//! The interface of attention backends.

use crate::exec::Stash;
use burn::backend::DispatchTensor;
use std::fmt::Debug;

/// The problem an attention call poses. Operands are `[B, S, H, D]`, output `[B, S_query, H, D]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Batch.
    pub batch: usize,
    /// Query tokens.
    pub queries: usize,
    /// Key and value tokens.
    pub keys: usize,
    /// Heads, the same for queries and keys.
    pub heads: usize,
    /// Channels of one head.
    pub head_dim: usize,
    /// Factor on the scores, usually `1/sqrt(head_dim)`.
    pub scale: f32,
}

/// One implementation of `softmax(scale · q kᵀ) v`, forward and backward, the same in rollout and in training.
pub trait AttentionBackend: Debug + Send + Sync {
    /// Name in logs, manifests and configs.
    fn name(&self) -> &str;

    /// Whether it can serve `shape`, or why not.
    ///
    /// # Errors
    /// The reason, for a person.
    fn supports(&self, shape: &AttentionShape) -> Result<(), String>;

    /// Whether the bits of a row of the batch in the forward depend neither on the other rows nor on their number, so that
    /// a row that was computed elsewhere, or for another row with the same operands, may be taken instead. If unsure, no.
    fn is_row_independent(&self) -> bool {
        false
    }

    /// Computes attention. Operands may be tracked. The results that backward needs (output and log-sum-exp) pass
    /// through `stash` under the name `attention`, so that a checkpoint policy can keep them.
    fn attention(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        k: &DispatchTensor,
        v: &DispatchTensor,
        shape: &AttentionShape,
    ) -> DispatchTensor;
}
