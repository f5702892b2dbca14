//! From tensors on the device to launches.

use super::arguments::{
    AttentionInputsLaunch, AttentionSizesLaunch, BackwardKeysInputsLaunch, BackwardKeysProblemLaunch,
    BackwardQueriesInputsLaunch, BackwardQueriesProblemLaunch, BlockMaskBuffersLaunch, ForwardProblemLaunch,
    StatisticsBuffersLaunch,
};
use super::backward_keys::mma_backward_keys;
use super::backward_queries::mma_backward_queries;
use super::forward::mma_forward;
use super::{BackwardTiles, ForwardTiles};
use crate::tensors::{Backward, BlockMask, Forward, Heads, KvSegment, lse_rows};
use cubecl::prelude::*;
use cubecl::zspace::{Shape, Strides};
use cubecl_runtime::server::Handle;

/// The tensor in units of eight values.
fn eights(x: &Heads) -> TensorArg {
    let [batch, heads, rows, channels] = x.shape;
    let [b, h, s, _] = x.strides;
    let strides = [b / 8, h / 8, s / 8, 1].into_iter().collect::<Strides>();
    let shape = [batch, heads, rows, channels / 8].into_iter().collect::<Shape>();
    // SAFETY: `Heads` says so.
    unsafe { TensorArg::from_raw_parts(x.handle.clone(), strides, shape) }
}

/// The queries, and the keys and values of both segments: those of the first stand for a missing second, and are not read.
fn attention_inputs(q: &Heads, kv_segments: &[KvSegment<'_>]) -> AttentionInputsLaunch {
    let first = &kv_segments[0];
    let second = kv_segments.last().expect("a segment of keys");
    AttentionInputsLaunch::new(
        eights(q),
        eights(first.k),
        eights(first.v),
        eights(second.k),
        eights(second.v),
    )
}

/// The sizes of a call.
fn attention_sizes(q: &Heads, kv_segments: &[KvSegment<'_>]) -> AttentionSizesLaunch {
    let [_, heads, queries, _] = q.shape;
    let [_, kv_heads, first_keys, _] = kv_segments[0].k.shape;
    let second_keys = kv_segments.get(1).map_or(0, |second| second.k.shape[2]);
    AttentionSizesLaunch::new(
        queries as u32,
        lse_rows(queries) as u32,
        first_keys as u32,
        second_keys as u32,
        (heads / kv_heads) as u32,
    )
}

/// The mask's buffers.
fn mask_buffers(list: &BlockMask) -> BlockMaskBuffersLaunch {
    let [work_tiles, entries, partial_masks] = list.arguments();
    BlockMaskBuffersLaunch::new(work_tiles, entries, partial_masks)
}

/// Launches the forward kernel.
pub(super) fn launch_forward(
    client: &Client,
    Forward { q, scale, bias }: Forward<'_>,
    kv_segments: &[KvSegment<'_>],
    o: &Heads,
    lse: &Handle,
    list: &BlockMask,
    tiles: ForwardTiles,
) {
    let [batch, heads, queries, _] = q.shape;
    let [_, _, first_keys, _] = kv_segments[0].k.shape;
    let tiles = ForwardTiles {
        biased: bias.is_some(),
        ..tiles
    };
    let bias = match bias {
        // SAFETY: a value for each distance, for each head.
        Some(values) => unsafe {
            BufferArg::from_raw_parts(values.clone(), heads * (queries + first_keys - 1))
        },
        // Not read.
        None => {
            let [_, _, unread] = list.arguments();
            unread
        }
    };
    // SAFETY: the operands are those of the call, as `Prepared` wants them; the kernel stays within them.
    unsafe {
        mma_forward::launch_unchecked(
            client,
            CubeCount::Static(
                queries.div_ceil(tiles.queries()) as u32,
                heads as u32,
                batch as u32,
            ),
            CubeDim::new_1d(tiles.threads() as u32),
            attention_inputs(q, kv_segments),
            eights(o),
            BufferArg::from_raw_parts(lse.clone(), batch * heads * lse_rows(queries)),
            mask_buffers(list),
            bias,
            ForwardProblemLaunch::new(
                attention_sizes(q, kv_segments),
                scale * std::f32::consts::LOG2_E,
                1.0 / scale,
            ),
            tiles,
            tiles.vectors(),
        );
    }
}

/// Launches the kernel for queries.
pub(super) fn launch_backward_queries(
    client: &Client,
    of: Backward<'_>,
    kv_segments: &[KvSegment<'_>],
    dq: &Heads,
    list: &BlockMask,
    tiles: BackwardTiles,
) {
    let [batch, heads, queries, _] = of.q.shape;
    let length = batch * heads * lse_rows(queries);
    // SAFETY: the operands are those of the call, as `Prepared` wants them; the kernel stays within them.
    unsafe {
        mma_backward_queries::launch_unchecked(
            client,
            CubeCount::Static(
                queries.div_ceil(tiles.stationary_rows()) as u32,
                heads as u32,
                batch as u32,
            ),
            CubeDim::new_1d(tiles.threads() as u32),
            BackwardQueriesInputsLaunch::new(
                attention_inputs(of.q, kv_segments),
                eights(of.o),
                eights(of.d_o),
            ),
            eights(dq),
            BufferArg::from_raw_parts(of.lse.clone(), length),
            BufferArg::from_raw_parts(of.delta.clone(), length),
            mask_buffers(list),
            BackwardQueriesProblemLaunch::new(
                attention_sizes(of.q, kv_segments),
                of.scale * std::f32::consts::LOG2_E,
                of.scale,
            ),
            tiles,
            tiles.vectors(),
        );
    }
}

/// Launches the kernel for one segment of the keys.
pub(super) fn launch_backward_keys(
    client: &Client,
    of: Backward<'_>,
    part: KvSegment<'_>,
    [dk, dv]: [&Heads; 2],
    list: &BlockMask,
    tiles: BackwardTiles,
) {
    let [batch, heads, queries, _] = of.q.shape;
    let [_, kv_heads, keys, _] = part.k.shape;
    let length = batch * heads * lse_rows(queries);
    // SAFETY: the operands are those of the call, as `Prepared` wants them; the kernel stays within them.
    unsafe {
        mma_backward_keys::launch_unchecked(
            client,
            CubeCount::Static(
                keys.div_ceil(tiles.stationary_rows()) as u32,
                kv_heads as u32,
                batch as u32,
            ),
            CubeDim::new_1d(tiles.threads() as u32),
            BackwardKeysInputsLaunch::new(eights(of.q), eights(part.k), eights(part.v), eights(of.d_o)),
            eights(dk),
            eights(dv),
            StatisticsBuffersLaunch::new(
                BufferArg::from_raw_parts(of.lse.clone(), length / 2),
                BufferArg::from_raw_parts(of.delta.clone(), length / 2),
            ),
            mask_buffers(list),
            BackwardKeysProblemLaunch::new(
                queries as u32,
                keys as u32,
                lse_rows(queries) as u32,
                (heads / kv_heads) as u32,
                of.scale * std::f32::consts::LOG2_E,
                of.scale,
            ),
            tiles,
            tiles.vectors(),
        );
    }
}
