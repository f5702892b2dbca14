//! Arguments of the kernels' launches, several to a struct. CubeCL lays the fields out one after the other, as if each were an argument.

use super::scheduled_tiles::Four;
use crate::block_mask::{BlockMaskEntry, WorkTileHalf};
use crate::delta::Eight;
use crate::softmax_by_columns::Pair;
use cubecl::prelude::*;

/// Queries, keys and values `[B, H, S, D]`; `k_2` and `v_2` are the second segment of keys and values, or the first once more.
#[derive(CubeType, CubeLaunch)]
pub struct QkvMaps<E: Numeric> {
    pub q: TensorMap<E, Tiled>,
    pub k: TensorMap<E, Tiled>,
    pub v: TensorMap<E, Tiled>,
    pub k_2: TensorMap<E, Tiled>,
    pub v_2: TensorMap<E, Tiled>,
}

/// A block mask; see [`block_mask`](crate::block_mask). A load of a partial mask reads `W` words.
#[derive(CubeType, CubeLaunch)]
pub struct BlockMaskArgs<W: Size> {
    pub work_tiles: Box<[WorkTileHalf]>,
    pub entries: Box<[BlockMaskEntry]>,
    pub partial_masks: Box<[Vector<u32, W>]>,
}

/// Sizes and scale of a forward call: rows of queries, of `lse`, and of both segments of keys; heads of queries for each head of
/// keys; and the scale of scores in units of log2.
#[derive(CubeType, CubeLaunch)]
pub struct ForwardProblem {
    pub queries: u32,
    pub lse_rows: u32,
    pub first_keys: u32,
    pub second_keys: u32,
    pub group: u32,
    pub scale_log2: f32,
}

/// What persistent blocks do; see [`tile_scheduler`](crate::tile_scheduler). `assignments` has for each block where its items and its
/// records begin and how many there are, then the items; `record_words` are the records once more, word by word.
#[derive(CubeType, CubeLaunch)]
pub struct WorkSchedule<W: Size> {
    pub assignments: Box<[Four]>,
    pub records: Box<[Four]>,
    pub record_words: Box<[u32]>,
    pub partial_masks: Box<[Vector<u32, W>]>,
}

/// Sizes and scale of a forward call to persistent blocks, as in [`ForwardProblem`]; and the heads of queries.
#[derive(CubeType, CubeLaunch)]
pub struct PersistentProblem {
    pub head_count: u32,
    pub queries: u32,
    pub lse_rows: u32,
    pub scale_log2: f32,
}

/// Operands of the kernel for queries: queries, keys and values; the output's gradient; and the gradient of queries, which is written.
#[derive(CubeType, CubeLaunch)]
pub struct BackwardQueriesMaps<E: Numeric> {
    pub qkv: QkvMaps<E>,
    pub d_o: TensorMap<E, Tiled>,
    pub dq: TensorMap<E, Tiled>,
}

/// The buffers of `o` and of its gradient, row by row, with their strides: all in units of eight values.
#[derive(CubeType, CubeLaunch)]
pub struct OutputRows {
    pub o_rows: Box<[Eight]>,
    pub do_rows: Box<[Eight]>,
    pub o_batch: u32,
    pub o_head: u32,
    pub o_row: u32,
    pub do_batch: u32,
    pub do_head: u32,
    pub do_row: u32,
}

/// Statistics of rows of queries, `[B, H, lse_rows]`. The kernel for queries writes `delta`.
#[derive(CubeType, CubeLaunch)]
pub struct QueryStatistics {
    pub lse: Box<[f32]>,
    pub delta: Box<[f32]>,
}

/// Sizes of a backward call as in [`ForwardProblem`]; and the scale of scores, in units of log2 and as it is.
#[derive(CubeType, CubeLaunch)]
pub struct BackwardQueriesProblem {
    pub queries: u32,
    pub lse_rows: u32,
    pub first_keys: u32,
    pub second_keys: u32,
    pub group: u32,
    pub scale_log2: f32,
    pub scale: f32,
}

/// Operands of the kernel for keys: queries, keys and values of one segment, the output's gradient; and the gradients of keys and values,
/// which are written.
#[derive(CubeType, CubeLaunch)]
pub struct BackwardKeysMaps<E: Numeric> {
    pub q: TensorMap<E, Tiled>,
    pub k: TensorMap<E, Tiled>,
    pub v: TensorMap<E, Tiled>,
    pub d_o: TensorMap<E, Tiled>,
    pub dk: TensorMap<E, Tiled>,
    pub dv: TensorMap<E, Tiled>,
}

/// Statistics of rows of queries, `[B, H, lse_rows]`, in pairs.
#[derive(CubeType, CubeLaunch)]
pub struct QueryStatisticPairs {
    pub lse: Box<[Pair]>,
    pub delta: Box<[Pair]>,
}

/// Rows of queries and of `lse`, heads of queries for each head of keys, and the scale of scores: in units of log2 and as it is.
#[derive(CubeType, CubeLaunch)]
pub struct BackwardKeysProblem {
    pub queries: u32,
    pub lse_rows: u32,
    pub group: u32,
    pub scale_log2: f32,
    pub scale: f32,
}
