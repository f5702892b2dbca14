//! Operations of a feature cache, each of which is one kernel: putting answers together, keeping features, comparing.
//!
//! A cache holds what it keeps by trajectory, as rows of tensors: of one `[B, …]` as long as all trajectories of a call are kept at the same
//! steps, else of `[1, …]`, one per trajectory, wherever they lie in memory. So every operation here takes lists of rows. The rows
//! that must be computed are gathered by [`select_rows`](crate::tensors::select_rows).
//!
//! What a device must implement, and the bits it owes:
//!
//! - [`FeatureCacheOps::assemble`]: one pass over the output. Each row is copied, or summed in f32 from its base and up to five
//!   features times their weights: from the base on, in the order of the terms, and rounded once, when it is stored. Either
//!   all products are rounded before they are added, as the processor does, or all are added with a fused multiply-add; so
//!   the bits of a row do not depend on the batch.
//! - [`FeatureCacheOps::features`]: rows copied, or subtracted from, into tensors of their own; [`FeatureCacheOps::together`]: into one.
//! - [`FeatureCacheOps::changes`]: three sums per pair of rows, in a fixed order that depends on the number of values alone. The
//!   result stays on the device until [`DeferredSums::read`]; that read is the only synchronisation of a decision, and policies
//!   that decide by a plan never ask for it. Sums must be f64, or f32 with an error below 2^-18 of the sum, for instance by
//!   adding sums of pieces; bits may differ from the host's, since decisions compare with thresholds, not with each other.
//! - [`FeatureCacheOps::frequencies`]: a difference and its low-pass filter, in f32.
//!
//! Tensors are of the type that the model passes from operation to operation, or f32; what is kept has the type of what it
//! was taken from.

use crate::latent::LatentShape;
use crate::tensors::RawTensor;
use std::fmt::{self, Debug};

/// Where a row of [`FeatureCacheOps::assemble`] comes from.
#[derive(Clone, Debug)]
pub enum RowSource<'a> {
    /// The row of this number of what was computed.
    Computed(usize),
    /// The row of the base with the number of this row, if there is a base, plus the features, each times its weight.
    Forecast(Vec<(f32, TensorRow<'a>)>),
}

/// A row of a tensor whose first axis is the batch.
pub type TensorRow<'a> = (&'a RawTensor, usize);

/// Sums of absolute values, per pair of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PairSums {
    /// `Σ |a - b|`.
    pub change: f64,
    /// `Σ |a|`.
    pub of_a: f64,
    /// `Σ |b|`.
    pub of_b: f64,
}

/// Sums that may still be under way on a device.
pub struct DeferredSums(Box<dyn FnOnce() -> Vec<PairSums> + Send>);

impl DeferredSums {
    /// Sums that `read` fetches when they are asked for.
    pub fn deferred(read: impl FnOnce() -> Vec<PairSums> + Send + 'static) -> Self {
        Self(Box::new(read))
    }

    /// The sums on the host, in the order of the pairs.
    pub fn read(self) -> Vec<PairSums> {
        (self.0)()
    }
}

impl Debug for DeferredSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeferredSums")
    }
}

/// The operations of a feature cache. Tensors are plain and of the device that the kernels are for, on the processor f32;
/// shapes are checked by the caller. None of them has a gradient.
pub trait FeatureCacheOps: Debug + Send + Sync {
    /// A tensor of `shape`, `[rows.len(), …]`, each row from where `rows` says. `computed` and `base` have the axes of
    /// `shape` but for the first; `base` has as many rows as `rows`.
    fn assemble(
        &self,
        shape: &[usize],
        computed: Option<&RawTensor>,
        base: Option<&RawTensor>,
        rows: &[RowSource<'_>],
    ) -> RawTensor;

    /// The rows of `outputs [B, …]` as tensors `[1, …]` of their own. With a base, row `i` less row `of[i]` of the base.
    fn features(&self, outputs: &RawTensor, base: Option<(&RawTensor, &[usize])>) -> Vec<RawTensor>;

    /// As [`features`](Self::features), with the rows in one tensor `[B, …]`, which shares nothing with `outputs`.
    fn together(&self, outputs: &RawTensor, base: Option<(&RawTensor, &[usize])>) -> RawTensor;

    /// The sums of each pair of rows `a` and `b`.
    fn changes(&self, pairs: &[(TensorRow<'_>, TensorRow<'_>)]) -> DeferredSums;

    /// Of each pair of rows, which are latents of `shape`, the low and the high frequencies of `a - b`: two tensors of the
    /// shape of the rows, `[1, …]`, that add up to it. Low are those within a disc around frequency 0 whose radius is a fifth of
    /// the shorter side of a plane, rounded down (FasterCache, Lv et al. 2024, arXiv:2410.19355).
    fn frequencies(
        &self,
        pairs: &[(TensorRow<'_>, TensorRow<'_>)],
        shape: &LatentShape,
    ) -> Vec<[RawTensor; 2]>;
}
