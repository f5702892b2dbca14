//! Arguments of the kernel, as a launch passes them.

use cubecl::prelude::*;

/// What the kernel reads. What a call has not is not touched.
#[derive(CubeType, CubeLaunch)]
pub struct Inputs<F: Float> {
    /// A of the first pair of factors.
    pub a: Box<[F]>,
    /// B of the first pair.
    pub b: Box<[F]>,
    /// A of the second pair.
    pub low_rank_a: Box<[F]>,
    /// B of the second pair.
    pub low_rank_b: Box<[F]>,
    /// The bias.
    pub bias: Box<[F]>,
    /// The gate.
    pub gate: Box<[F]>,
    /// Scales of codes, of A's rows.
    pub row_scales: Box<[f32]>,
    /// Scales of codes, of B's rows by columns of the result.
    pub column_scales: Box<[f32]>,
}

/// What the kernel writes.
#[derive(CubeType, CubeLaunch)]
pub struct Outputs<F: Float, O: Float> {
    /// What the epilogue reads, or where it keeps sums.
    pub other: Box<[F]>,
    /// The result.
    pub d: Box<[O]>,
}

/// Sizes, strides, and where things begin, in elements.
#[derive(CubeType, CubeLaunch)]
pub struct Sizes {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Summands of the first pair of factors.
    pub k: usize,
    /// Summands of the second pair.
    pub rank: usize,
    /// From a row of A to the next.
    pub a_stride: usize,
    /// From a row of B to the next.
    pub b_stride: usize,
    /// As `a_stride`, of the second pair.
    pub low_rank_a_stride: usize,
    /// As `b_stride`, of the second pair.
    pub low_rank_b_stride: usize,
    /// Where the gate begins.
    pub gate_start: usize,
    /// From a row of the gate to the next.
    pub gate_stride: usize,
    /// Where the scales of A's rows begin.
    pub row_scale_start: usize,
    /// Where the scales of B's rows begin.
    pub column_scale_start: usize,
    /// From a row of `other` to the next.
    pub other_stride: usize,
    /// From a row of the result to the next.
    pub d_stride: usize,
    /// Rows of the result that share a row of the gate.
    pub tokens: usize,
    /// Groups of rows.
    pub groups: usize,
    /// Always [`CHUNK`](super::kind::CHUNK), but not so that compilers know: Mesa's for processors would unroll all inner
    /// loops and take minutes.
    pub chunk: usize,
}
