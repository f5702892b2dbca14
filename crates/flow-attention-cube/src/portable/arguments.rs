//! Arguments of the portable kernels that belong together, as they are launched.
//!
//! A launch passes the fields one by one, in their order: a struct costs a kernel nothing.

use cubecl::prelude::*;

/// Queries, and keys and values in one or two segments: tensors `[B, H, S, D]` of any strides. `k2` and `v2` follow on `k` and `v`.
#[derive(CubeType, CubeLaunch)]
pub struct PortableInputs<F: Float> {
    /// Queries.
    pub q: &'static Tensor<F>,
    /// Keys of the first segment.
    pub k: &'static Tensor<F>,
    /// Values of the first segment.
    pub v: &'static Tensor<F>,
    /// Keys of the second segment.
    pub k2: &'static Tensor<F>,
    /// Values of the second segment.
    pub v2: &'static Tensor<F>,
}

/// Where the parts of a list are in its words (`flow_attention_mask::MaskTiles`): offsets come first.
#[derive(CubeType, CubeLaunch)]
pub struct ListLayout {
    /// Offsets of a sample.
    pub batch_stride: usize,
    /// The first entry.
    pub entries_at: usize,
    /// The first partial mask.
    pub patterns_at: usize,
}

/// Sizes of a call whose keys are streamed, and the scale of its scores. `chunk` is always [`CHUNK`](super::tiles::CHUNK), but not so
/// that compilers know: Mesa's for processors would unroll all inner loops and take minutes.
#[derive(CubeType, CubeLaunch)]
pub struct PortableProblem {
    /// Queries of a head.
    pub queries: usize,
    /// Rows of statistics of a head.
    pub lse_rows: usize,
    /// Keys of the first segment.
    pub keys: usize,
    /// Keys of the second segment.
    pub keys2: usize,
    /// Heads of queries that share a head of keys.
    pub group: usize,
    /// The mask's list.
    pub list: ListLayout,
    /// Channels, or columns, that pass through shared memory at a time.
    pub chunk: usize,
    /// Scale of the scores.
    pub scale: f32,
}

/// What the kernel for queries reads.
#[derive(CubeType, CubeLaunch)]
pub struct PortableQueriesInputs<F: Float> {
    /// Inputs of the forward kernel.
    pub attention: PortableInputs<F>,
    /// Output.
    pub o: &'static Tensor<F>,
    /// Gradient of the output.
    pub d_o: &'static Tensor<F>,
}

/// What the kernel for keys reads: queries, one segment of keys and values, and the gradient of the output.
#[derive(CubeType, CubeLaunch)]
pub struct PortableKeysInputs<F: Float> {
    /// Queries.
    pub q: &'static Tensor<F>,
    /// Keys.
    pub k: &'static Tensor<F>,
    /// Values.
    pub v: &'static Tensor<F>,
    /// Gradient of the output.
    pub d_o: &'static Tensor<F>,
}

/// Statistics of queries, `[B, H, lse_rows]`.
#[derive(CubeType, CubeLaunch)]
pub struct PortableStatistics {
    /// Log-sum-exp of forward.
    pub lse: &'static [f32],
    /// What the kernel for queries wrote.
    pub delta: &'static [f32],
}

/// Sizes of a call whose queries are streamed, and the scale of its scores; `chunk` as in [`PortableProblem`].
#[derive(CubeType, CubeLaunch)]
pub struct PortableKeysProblem {
    /// Queries of a head.
    pub queries: usize,
    /// Rows of statistics of a head.
    pub lse_rows: usize,
    /// Keys of a head.
    pub keys: usize,
    /// Heads of queries that share a head of keys.
    pub group: usize,
    /// The mask's list.
    pub list: ListLayout,
    /// Channels, or columns, that pass through shared memory at a time.
    pub chunk: usize,
    /// Scale of the scores.
    pub scale: f32,
}
