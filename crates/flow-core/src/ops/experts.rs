//! The operations of a mixture of experts.
//!
//! Nothing here reads back from a device: how many rows each expert has is a tensor, and the number of rows in all is
//! the number of tokens times the experts of each, whoever they are. Legend: `B` batch, `S` tokens, `E` experts, `K`
//! experts of a token, `R = B·S·K` rows, `D` channels.

use super::{Activation, Stash};
use crate::tensors::RawTensor;
use burn::backend::DispatchTensor;
use std::fmt::Debug;

/// What a router decides.
#[derive(Clone, Debug)]
pub struct Routed {
    /// How much each chosen expert counts, `[B, S, K]`, f32.
    pub weights: DispatchTensor,
    /// The chosen experts, highest score first, `[B, S, K]`, integers.
    pub experts: RawTensor,
    /// How unevenly the tokens of a sample load the experts, `[B]`, f32; see [`ExpertOps::route`].
    pub balance: DispatchTensor,
}

/// Rows sorted by expert. Row `r` belongs to a token and one of its `K` choices: a *slot*, numbered `token · K + choice`.
#[derive(Clone, Debug)]
pub struct Grouping {
    /// The slot of each row, `[R]`: all of expert 0, then of expert 1, …; within an expert in the slots' order.
    pub slots: RawTensor,
    /// The row of each slot, `[R]`: the inverse.
    pub rows: RawTensor,
    /// Where each expert's rows begin, and the end, `[E + 1]`.
    pub offsets: RawTensor,
}

/// A linear layer per expert.
#[derive(Clone, Debug)]
pub struct GroupedWeights {
    /// `[E, out, in]`.
    pub weight: DispatchTensor,
    /// `[E, out]`.
    pub bias: DispatchTensor,
    /// After the layer.
    pub activation: Activation,
}

/// Operations of a mixture of experts, forward and backward. What a token comes to does not depend on other tokens, bit for
/// bit; sums over tokens (gradients of weights) go through the rows in order.
pub trait ExpertOps: Debug + Send + Sync {
    /// Chooses `top_k` experts for each token by `p = softmax(logits)` of `[B, S, E]`, computed in f32: the largest `p`
    /// first, of equal ones the lowest index. Weights are the chosen `p`, divided by their sum if `normalize`.
    ///
    /// The choice passes through `stash` under the name `router`, so that a region that runs again routes as it did before.
    ///
    /// `balance = E / (K · S) · Σ_e count(e) · mean over S of p(e)` per sample, which is 1 for an even load, after Fedus et
    /// al. 2021, arXiv:2101.03961, eq. 4, per sequence as in DeepSeek-V3, arXiv:2412.19437, eq. 17. Counts are
    /// constants to the gradient; choices have none.
    fn route(&self, stash: &dyn Stash, logits: &DispatchTensor, top_k: usize, normalize: bool) -> Routed;

    /// Sorts the slots of `choices [B, S, K]` by expert, of which there are `experts`.
    fn group(&self, choices: &RawTensor, experts: usize) -> Grouping;

    /// The tokens of `x [B, S, D]` in the order of `grouping`, `[R, D]`. The gradient of a token is the sum over its
    /// choices in order.
    fn permute(&self, x: &DispatchTensor, grouping: &Grouping) -> DispatchTensor;

    /// `activation(x W_eᵀ + b_e)` of each row of `x [R, in]`, `e` being its expert; gives `[R, out]`. What backward needs of
    /// the result passes through `stash` under the name `grouped_linear`. An expert without rows gets gradients of zero.
    fn grouped_linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        grouping: &Grouping,
        weights: &GroupedWeights,
    ) -> DispatchTensor;

    /// `Σ over a token's choices, in order, of weights · y` for `y [R, D]` in the order of `grouping` and `weights [B, S, K]`;
    /// gives `[B, S, D]`.
    fn combine(&self, y: &DispatchTensor, weights: &DispatchTensor, grouping: &Grouping) -> DispatchTensor;
}
