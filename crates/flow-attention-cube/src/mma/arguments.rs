//! Arguments of the kernels that belong together, as they are launched.
//!
//! A launch passes the fields one by one, in their order: a struct costs a kernel nothing.

use crate::block_mask::{BlockMaskEntry, MaskWord, WorkTileHalf};
use crate::delta::Eight;
use crate::softmax_by_columns::Pair;
use cubecl::prelude::*;

/// Queries, and keys and values in one or two segments: tensors `[B, H, S, D / 8]` of eight values each, of any strides but the
/// last, which is 1. Without a second segment `k_2` and `v_2` are not read.
#[derive(CubeType, CubeLaunch)]
pub struct AttentionInputs {
    /// Queries.
    pub q: &'static Tensor<Eight>,
    /// Keys of the first segment.
    pub k: &'static Tensor<Eight>,
    /// Values of the first segment.
    pub v: &'static Tensor<Eight>,
    /// Keys of the second segment.
    pub k_2: &'static Tensor<Eight>,
    /// Values of the second segment.
    pub v_2: &'static Tensor<Eight>,
}

/// The mask; see [`block_mask`](crate::block_mask).
#[derive(CubeType, CubeLaunch)]
pub struct BlockMaskBuffers {
    /// The work of each block.
    pub work_tiles: &'static [WorkTileHalf],
    /// The tiles of each list.
    pub entries: &'static [BlockMaskEntry],
    /// The bits of partial masks.
    pub partial_masks: &'static [MaskWord],
}

/// Sizes of a call whose keys are streamed.
#[derive(CubeType, CubeLaunch)]
pub struct AttentionSizes {
    /// Queries of a head.
    pub queries: u32,
    /// Rows of statistics of a head: the queries, padded.
    pub lse_rows: u32,
    /// Keys of the first segment.
    pub first_keys: u32,
    /// Keys of the second segment.
    pub second_keys: u32,
    /// Heads of queries that share a head of keys.
    pub group: u32,
}

/// Sizes and scales of the forward kernel.
#[derive(CubeType, CubeLaunch)]
pub struct ForwardProblem {
    /// Sizes.
    pub sizes: AttentionSizes,
    /// Scale of the scores times log2 e.
    pub scale_log2: f32,
    /// 1 over the scale of the scores.
    pub inverse_scale: f32,
}

/// What the kernel for queries reads.
#[derive(CubeType, CubeLaunch)]
pub struct BackwardQueriesInputs {
    /// Inputs of the forward kernel.
    pub attention: AttentionInputs,
    /// Output.
    pub o: &'static Tensor<Eight>,
    /// Gradient of the output.
    pub d_o: &'static Tensor<Eight>,
}

/// Sizes and scales of the kernel for queries.
#[derive(CubeType, CubeLaunch)]
pub struct BackwardQueriesProblem {
    /// Sizes.
    pub sizes: AttentionSizes,
    /// Scale of the scores times log2 e.
    pub scale_log2: f32,
    /// Scale of the scores.
    pub scale: f32,
}

/// What the kernel for keys reads: queries, one segment of keys and values, and the gradient of the output.
#[derive(CubeType, CubeLaunch)]
pub struct BackwardKeysInputs {
    /// Queries.
    pub q: &'static Tensor<Eight>,
    /// Keys.
    pub k: &'static Tensor<Eight>,
    /// Values.
    pub v: &'static Tensor<Eight>,
    /// Gradient of the output.
    pub d_o: &'static Tensor<Eight>,
}

/// Statistics of queries, in pairs, `[B, H, lse_rows / 2]`.
#[derive(CubeType, CubeLaunch)]
pub struct StatisticsBuffers {
    /// Log-sum-exp of forward.
    pub lse: &'static [Pair],
    /// What the kernel for queries wrote.
    pub delta: &'static [Pair],
}

/// Sizes and scales of the kernel for keys.
#[derive(CubeType, CubeLaunch)]
pub struct BackwardKeysProblem {
    /// Queries of a head.
    pub queries: u32,
    /// Keys of a head.
    pub keys: u32,
    /// Rows of statistics of a head: the queries, padded.
    pub lse_rows: u32,
    /// Heads of queries that share a head of keys.
    pub group: u32,
    /// Scale of the scores times log2 e.
    pub scale_log2: f32,
    /// Scale of the scores.
    pub scale: f32,
}
