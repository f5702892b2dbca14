//! Arguments of the kernel, as a launch passes them: maps, then buffers, then numbers.

use super::Record;
use cubecl::prelude::*;

/// Both pairs of factors. Where there is no second pair, its maps are not touched.
#[derive(CubeType, CubeLaunch)]
pub struct Factors<E: Numeric> {
    /// A of the first pair.
    pub a: TensorMap<E, Tiled>,
    /// B of the first pair.
    pub b: TensorMap<E, Tiled>,
    /// A of the second pair.
    pub low_rank_a: TensorMap<E, Tiled>,
    /// B of the second pair.
    pub low_rank_b: TensorMap<E, Tiled>,
}

/// What the kernel writes, and what its epilogue reads tile by tile.
#[derive(CubeType, CubeLaunch)]
pub struct Results<O: Numeric> {
    /// The result, or the partial tiles.
    pub d: TensorMap<O, Tiled>,
    /// What the epilogue reads.
    pub read: TensorMap<O, Tiled>,
    /// Where sums are kept.
    pub kept: TensorMap<O, Tiled>,
}

/// What the kernel reads otherwise.
#[derive(CubeType, CubeLaunch)]
pub struct Inputs {
    /// The bias, in pairs.
    pub bias: Box<[u32]>,
    /// The gate, in pairs.
    pub gate: Box<[u32]>,
    /// Scales of codes, of A's rows.
    pub row_scales: Box<[f32]>,
    /// Scales of codes, of B's rows.
    pub column_scales: Box<[f32]>,
    /// Where the items of each block begin, and where the last ones end.
    pub starts: Box<[u32]>,
    /// The items, two records each (see [`Schedule::words`](crate::schedule::Schedule::words)).
    pub items: Box<[Record]>,
}

/// Sizes, strides, and where things begin.
#[derive(CubeType, CubeLaunch)]
pub struct Sizes {
    /// Rows of the result.
    pub rows: u32,
    /// Columns of the result.
    pub columns: u32,
    /// Steps of the first pair of factors.
    pub first_steps: u32,
    /// From a convolution's frame to the next, in rows (see [`KernelRows`](crate::problem::KernelRows)).
    pub frame_stride: u32,
    /// From a row of a convolution's frame to the next, in rows.
    pub row_stride: u32,
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
}
