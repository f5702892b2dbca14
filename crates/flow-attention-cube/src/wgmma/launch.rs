//! From tensors on the device to launches.

use super::arguments::{
    BackwardKeysMapsLaunch, BackwardKeysProblemLaunch, BackwardQueriesMapsLaunch,
    BackwardQueriesProblemLaunch, BlockMaskArgsLaunch, ForwardProblemLaunch, OutputRowsLaunch,
    PersistentProblemLaunch, QkvMapsLaunch, QueryStatisticPairsLaunch, QueryStatisticsLaunch,
    WorkScheduleLaunch,
};
use super::backward_keys::backward_keys;
use super::backward_queries::backward_queries;
use super::forward::forward;
use super::forward_persistent::forward_persistent;
use super::reduce_partials::{ReduceProblemLaunch, ReducedPartials, THREADS, reduce_partials};
use super::{BackwardTiles, ForwardMask, ForwardTiles};
pub use crate::tensors::{Backward, BlockMask, Forward, Heads, KvSegment, lse_rows};
use cubecl::prelude::*;
use cubecl::zspace::{Shape, Strides, shape};
use cubecl_runtime::server::Handle;
use flow_cube::wgmma::OperandType;

/// For copies of `rows` rows of 64 channels.
fn map(x: &Heads, rows: usize, operand_type: OperandType) -> TensorMapArg<Tiled> {
    // SAFETY: shape and strides are those of the tensor, as `Heads` has them.
    let tensor = unsafe {
        TensorArg::from_raw_parts(
            x.handle.clone(),
            x.strides.into_iter().collect::<Strides>(),
            x.shape.into_iter().collect::<Shape>(),
        )
    };
    TensorMapArg::new(
        TiledArgs {
            tile_size: shape![1, 1, rows, 64],
        },
        tensor,
        operand_type.element(),
    )
    .with_swizzle(TensorMapSwizzle::B128)
    .with_prefetch(TensorMapPrefetch::B256)
}

/// For copies of `rows` queries, and of `keys` keys and values of both segments; with one segment, of it twice.
fn qkv_maps<E: Numeric>(
    q: &Heads,
    rows: usize,
    kv_segments: &[KvSegment<'_>],
    keys: usize,
    operand_type: OperandType,
) -> QkvMapsLaunch<E> {
    let first = &kv_segments[0];
    let second = kv_segments.last().expect("a segment of keys");
    QkvMapsLaunch::new(
        map(q, rows, operand_type),
        map(first.k, keys, operand_type),
        map(first.v, keys, operand_type),
        map(second.k, keys, operand_type),
        map(second.v, keys, operand_type),
    )
}

/// Launches the forward kernel: `o = softmax(q kᵀ scale) v`, and `lse [B, H, lse_rows]` in f32, plus infinity where there
/// is no row or no key.
pub fn launch_forward(
    client: &Client,
    Forward { q, scale, .. }: Forward<'_>,
    kv_segments: &[KvSegment<'_>],
    o: &Heads,
    lse: &Handle,
    list: &ForwardMask,
    tiles: ForwardTiles,
) {
    let [batch, heads, queries, _] = q.shape;
    let [_, kv_heads, first_keys, _] = kv_segments[0].k.shape;
    let second = kv_segments.last().expect("a segment of keys");
    let second_keys = if kv_segments.len() > 1 {
        second.k.shape[2]
    } else {
        0
    };
    let blocks = queries.div_ceil(tiles.queries());
    let map = |x: &Heads, rows| map(x, rows, tiles.operand_type);
    let list = match list {
        ForwardMask::Grid(list) => list,
        ForwardMask::Persistent(list) => {
            let [assignments, records, record_words, partial_masks] = list.arguments();
            // SAFETY: the operands are those of the call, as `Prepared` wants them; the kernel stays within them.
            unsafe {
                forward_persistent::launch_unchecked(
                    client,
                    CubeCount::Static(list.blocks(), 1, 1),
                    CubeDim::new_1d(tiles.threads()),
                    qkv_maps(q, tiles.queries(), kv_segments, tiles.keys, tiles.operand_type),
                    map(o, 64),
                    BufferArg::from_raw_parts(lse.clone(), batch * heads * lse_rows(queries)),
                    WorkScheduleLaunch::new(assignments, records, record_words, partial_masks),
                    PersistentProblemLaunch::new(
                        heads as u32,
                        queries as u32,
                        lse_rows(queries) as u32,
                        scale * std::f32::consts::LOG2_E,
                    ),
                    tiles,
                    tiles.operand_type.element(),
                    tiles.vectors(),
                );
            }
            return;
        }
    };
    let [work_tiles, entries, partial_masks] = list.arguments();
    // SAFETY: the operands are those of the call, as `Prepared` wants them; the kernel stays within them.
    unsafe {
        forward::launch_unchecked(
            client,
            CubeCount::Static(blocks as u32, heads as u32, batch as u32),
            CubeDim::new_1d(tiles.threads()),
            qkv_maps(q, tiles.queries(), kv_segments, tiles.keys, tiles.operand_type),
            map(o, 64),
            BufferArg::from_raw_parts(lse.clone(), batch * heads * lse_rows(queries)),
            BlockMaskArgsLaunch::new(work_tiles, entries, partial_masks),
            ForwardProblemLaunch::new(
                queries as u32,
                lse_rows(queries) as u32,
                first_keys as u32,
                second_keys as u32,
                (heads / kv_heads) as u32,
                scale * std::f32::consts::LOG2_E,
            ),
            tiles,
            tiles.operand_type.element(),
            tiles.vectors(),
        );
    }
}

/// Launches the kernel for queries: `dq` and `delta`. The list is that of forward, for its tiles.
pub fn launch_backward_queries(
    client: &Client,
    of: Backward<'_>,
    kv_segments: &[KvSegment<'_>],
    dq: &Heads,
    list: &BlockMask,
    tiles: BackwardTiles,
) {
    let [batch, heads, queries, _] = of.q.shape;
    let [_, kv_heads, first_keys, _] = kv_segments[0].k.shape;
    let second = kv_segments.last().expect("a segment of keys");
    let second_keys = if kv_segments.len() > 1 {
        second.k.shape[2]
    } else {
        0
    };
    let lse_rows = lse_rows(queries);
    let length = batch * heads * lse_rows;
    let eights = |x: &Heads, axis: usize| (x.strides[axis] / 8) as u32;
    let map = |x: &Heads, rows| map(x, rows, tiles.operand_type);
    let [work_tiles, entries, partial_masks] = list.arguments();
    // SAFETY: the operands are those of the call, as `Prepared` wants them; the kernel stays within them.
    unsafe {
        backward_queries::launch_unchecked(
            client,
            CubeCount::Static(
                queries.div_ceil(tiles.stationary_rows()) as u32,
                heads as u32,
                batch as u32,
            ),
            CubeDim::new_1d(tiles.threads()),
            BackwardQueriesMapsLaunch::new(
                qkv_maps(
                    of.q,
                    tiles.stationary_rows(),
                    kv_segments,
                    tiles.streamed_rows,
                    tiles.operand_type,
                ),
                map(of.d_o, tiles.stationary_rows()),
                map(dq, 64),
            ),
            OutputRowsLaunch::new(
                BufferArg::from_raw_parts(of.o.handle.clone(), of.o.elements() / 8),
                BufferArg::from_raw_parts(of.d_o.handle.clone(), of.d_o.elements() / 8),
                eights(of.o, 0),
                eights(of.o, 1),
                eights(of.o, 2),
                eights(of.d_o, 0),
                eights(of.d_o, 1),
                eights(of.d_o, 2),
            ),
            QueryStatisticsLaunch::new(
                BufferArg::from_raw_parts(of.lse.clone(), length),
                BufferArg::from_raw_parts(of.delta.clone(), length),
            ),
            BlockMaskArgsLaunch::new(work_tiles, entries, partial_masks),
            BackwardQueriesProblemLaunch::new(
                queries as u32,
                lse_rows as u32,
                first_keys as u32,
                second_keys as u32,
                (heads / kv_heads) as u32,
                of.scale * std::f32::consts::LOG2_E,
                of.scale,
            ),
            tiles,
            tiles.operand_type.element(),
            tiles.vectors(),
        );
    }
}

/// Launches the kernel for one segment of the keys: `dk` and `dv`. Its list has keys as rows, queries are streamed. If it takes queries in
/// splits, their sums are behind the statistics in `of.delta`, and kernels that add them up follow.
pub fn launch_backward_keys(
    client: &Client,
    of: Backward<'_>,
    part: KvSegment<'_>,
    [dk, dv]: [&Heads; 2],
    list: &BlockMask,
    tiles: BackwardTiles,
) {
    let [batch, heads, queries, _] = of.q.shape;
    let [_, kv_heads, keys, _] = part.k.shape;
    let lse_rows = lse_rows(queries);
    let length = batch * heads * lse_rows;
    let map = |x: &Heads, rows| map(x, rows, tiles.operand_type);
    let [work_tiles, entries, partial_masks] = list.arguments();
    let key_blocks = keys.div_ceil(tiles.stationary_rows());
    let sums = tiles.partial_sums(batch * kv_heads, keys);
    let sums_at = of.delta.clone().offset_start(4 * length as u64);
    // SAFETY: the operands are those of the call, as `Prepared` wants them; the kernel stays within them.
    unsafe {
        backward_keys::launch_unchecked(
            client,
            CubeCount::Static((key_blocks * tiles.split_q) as u32, kv_heads as u32, batch as u32),
            CubeDim::new_1d(tiles.threads()),
            BackwardKeysMapsLaunch::new(
                map(of.q, tiles.streamed_rows),
                map(part.k, tiles.stationary_rows()),
                map(part.v, tiles.stationary_rows()),
                map(of.d_o, tiles.streamed_rows),
                map(dk, 64),
                map(dv, 64),
            ),
            match sums {
                // Not written.
                0 => BufferArg::from_raw_parts(of.delta.clone(), length / 2),
                sums => BufferArg::from_raw_parts(sums_at.clone(), sums / 2),
            },
            QueryStatisticPairsLaunch::new(
                BufferArg::from_raw_parts(of.lse.clone(), length / 2),
                BufferArg::from_raw_parts(of.delta.clone(), length / 2),
            ),
            BlockMaskArgsLaunch::new(work_tiles, entries, partial_masks),
            BackwardKeysProblemLaunch::new(
                queries as u32,
                lse_rows as u32,
                (heads / kv_heads) as u32,
                of.scale * std::f32::consts::LOG2_E,
                of.scale,
            ),
            tiles,
            tiles.operand_type.element(),
            tiles.vectors(),
        );
    }
    if sums == 0 {
        return;
    }
    let half = (sums / 2 * 4) as u64;
    if tiles.sums.values() {
        launch_reduce_partials(client, sums_at.clone(), dv, 1.0, tiles);
    }
    if tiles.sums.keys() {
        launch_reduce_partials(client, sums_at.offset_start(half), dk, of.scale, tiles);
    }
}

/// Launches the kernel that makes a gradient, times `scale`, of the sums that begin at `sums`.
fn launch_reduce_partials(client: &Client, sums: Handle, gradient: &Heads, scale: f32, tiles: BackwardTiles) {
    let [batch, heads, keys, _] = gradient.shape;
    let eights = |axis: usize| (gradient.strides[axis] / 8) as u32;
    let blocks = (keys * tiles.head_dim / 8).div_ceil(THREADS);
    // SAFETY: the operands are those of the call, as `Prepared` wants them; the kernel stays within them.
    unsafe {
        reduce_partials::launch_unchecked(
            client,
            CubeCount::Static(blocks as u32, heads as u32, batch as u32),
            CubeDim::new_1d(THREADS as u32),
            BufferArg::from_raw_parts(sums, tiles.partial_sums(batch * heads, keys) / 4),
            BufferArg::from_raw_parts(gradient.handle.clone(), gradient.elements() / 8),
            ReduceProblemLaunch::new(
                eights(0),
                eights(1),
                eights(2),
                keys.next_multiple_of(tiles.stationary_rows()) as u32,
                keys as u32,
                scale,
            ),
            ReducedPartials::of(tiles),
        );
    }
}
