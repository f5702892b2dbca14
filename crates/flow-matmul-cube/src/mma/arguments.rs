//! Arguments of the kernel, as a launch passes them.

use cubecl::prelude::*;

/// Eight values of 16 bits.
pub type Eight = Vector<u32, Const<4>>;

/// What the kernel reads. What a call has not is not touched.
#[derive(CubeType, CubeLaunch)]
pub struct Inputs {
    /// A of the first pair of factors.
    pub a: Box<[Eight]>,
    /// B of the first pair.
    pub b: Box<[Eight]>,
    /// A of the second pair.
    pub low_rank_a: Box<[Eight]>,
    /// B of the second pair.
    pub low_rank_b: Box<[Eight]>,
    /// The bias, in pairs.
    pub bias: Box<[u32]>,
    /// The gate, in pairs.
    pub gate: Box<[u32]>,
    /// Scales of codes, of A's rows.
    pub row_scales: Box<[f32]>,
    /// Scales of codes, of B's rows by columns of the result.
    pub column_scales: Box<[f32]>,
}

/// What the kernel writes, in words: of two values, or of one if it is f32.
#[derive(CubeType, CubeLaunch)]
pub struct Outputs {
    /// What the epilogue reads, or where it keeps sums.
    pub other: Box<[u32]>,
    /// The result, or the partial tiles.
    pub d: Box<[u32]>,
}

/// Sizes, strides, and where things begin.
#[derive(CubeType, CubeLaunch)]
pub struct Sizes {
    /// Rows of the result.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Summands of the first pair of factors.
    pub k: u32,
    /// Summands of the second pair.
    pub rank: u32,
    /// From a row of A to the next, in units of eight values.
    pub a_stride: u32,
    /// From a row of B to the next, in units of eight values.
    pub b_stride: u32,
    /// As `a_stride`, of the second pair.
    pub low_rank_a_stride: u32,
    /// As `b_stride`, of the second pair.
    pub low_rank_b_stride: u32,
    /// From a row of `other` to the next, in words.
    pub other_stride: u32,
    /// From a row of the result to the next, in words.
    pub d_stride: u32,
    /// Rows of the result that share a row of the gate.
    pub tokens: u32,
    /// Where the gate begins, in pairs.
    pub gate_start: u32,
    /// From a row of the gate to the next, in pairs.
    pub gate_stride: u32,
    /// Where the scales of A's rows begin.
    pub row_scale_start: u32,
    /// Where the scales of B's rows begin.
    pub column_scale_start: u32,
    /// Tiles, row by row, whose columns are gone through before the next rows.
    pub group: u32,
    /// Groups of rows.
    pub groups: u32,
}
