//! From tensors on the device to launches.

use super::backward_keys::backward_keys;
use super::backward_queries::backward_queries;
use super::forward::forward;
use super::{BackwardTiles, ForwardTiles};
pub use crate::tensors::{Backward, Heads, Part, TileList, lse_rows};
use cubecl::prelude::*;
use cubecl::zspace::{Shape, Strides, shape};
use cubecl_runtime::server::Handle;
use flow_cube::wgmma::Factor;

/// For copies of `rows` rows of 64 channels.
fn map(x: &Heads, rows: usize, factor: Factor) -> TensorMapArg<Tiled> {
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
        factor.element(),
    )
    .with_swizzle(TensorMapSwizzle::B128)
    .with_prefetch(TensorMapPrefetch::B256)
}

/// Launches the forward kernel: `o = softmax(q kᵀ scale) v`, and `lse [B, H, lse_rows]` in f32, plus infinity where there
/// is no row or no key.
#[allow(clippy::too_many_arguments)]
pub fn launch_forward(
    client: &Client,
    q: &Heads,
    parts: &[Part<'_>],
    o: &Heads,
    lse: &Handle,
    list: &TileList,
    scale: f32,
    tiles: ForwardTiles,
) {
    let [batch, heads, queries, _] = q.shape;
    let [_, kv_heads, first_keys, _] = parts[0].k.shape;
    let second = parts.last().expect("a part of keys");
    let second_keys = if parts.len() > 1 { second.k.shape[2] } else { 0 };
    let blocks = queries.div_ceil(tiles.queries());
    let map = |x: &Heads, rows| map(x, rows, tiles.factor);
    let [offsets, entries, patterns] = list.arguments();
    unsafe {
        forward::launch_unchecked(
            client,
            CubeCount::Static(blocks as u32, heads as u32, batch as u32),
            CubeDim::new_1d(tiles.threads()),
            map(q, tiles.queries()),
            map(parts[0].k, tiles.keys),
            map(parts[0].v, tiles.keys),
            map(second.k, tiles.keys),
            map(second.v, tiles.keys),
            map(o, 64),
            BufferArg::from_raw_parts(lse.clone(), batch * heads * lse_rows(queries)),
            offsets,
            entries,
            patterns,
            list.batch_stride,
            queries as u32,
            lse_rows(queries) as u32,
            first_keys as u32,
            second_keys as u32,
            (heads / kv_heads) as u32,
            scale * std::f32::consts::LOG2_E,
            tiles,
            tiles.factor.element(),
            tiles.vectors(),
        );
    }
}

/// Launches the kernel for queries: `dq` and `delta`. The list is that of forward, for its tiles.
pub fn launch_backward_queries(
    client: &Client,
    of: Backward<'_>,
    parts: &[Part<'_>],
    dq: &Heads,
    list: &TileList,
    tiles: BackwardTiles,
) {
    let [batch, heads, queries, _] = of.q.shape;
    let [_, kv_heads, first_keys, _] = parts[0].k.shape;
    let second = parts.last().expect("a part of keys");
    let second_keys = if parts.len() > 1 { second.k.shape[2] } else { 0 };
    let lse_rows = lse_rows(queries);
    let length = batch * heads * lse_rows;
    let eights = |x: &Heads, axis: usize| (x.strides[axis] / 8) as u32;
    let map = |x: &Heads, rows| map(x, rows, tiles.factor);
    let [offsets, entries, patterns] = list.arguments();
    unsafe {
        backward_queries::launch_unchecked(
            client,
            CubeCount::Static(
                queries.div_ceil(tiles.resident()) as u32,
                heads as u32,
                batch as u32,
            ),
            CubeDim::new_1d(tiles.threads()),
            map(of.q, tiles.resident()),
            map(parts[0].k, tiles.passing),
            map(parts[0].v, tiles.passing),
            map(second.k, tiles.passing),
            map(second.v, tiles.passing),
            map(of.d_o, tiles.resident()),
            map(dq, 64),
            BufferArg::from_raw_parts(of.o.handle.clone(), of.o.elements() / 8),
            BufferArg::from_raw_parts(of.d_o.handle.clone(), of.d_o.elements() / 8),
            eights(of.o, 0),
            eights(of.o, 1),
            eights(of.o, 2),
            eights(of.d_o, 0),
            eights(of.d_o, 1),
            eights(of.d_o, 2),
            BufferArg::from_raw_parts(of.lse.clone(), length),
            BufferArg::from_raw_parts(of.delta.clone(), length),
            offsets,
            entries,
            patterns,
            list.batch_stride,
            queries as u32,
            lse_rows as u32,
            first_keys as u32,
            second_keys as u32,
            (heads / kv_heads) as u32,
            of.scale * std::f32::consts::LOG2_E,
            of.scale,
            tiles,
            tiles.factor.element(),
            tiles.vectors(),
        );
    }
}

/// Launches the kernel for one part of the keys: `dk` and `dv`. Its list has keys as rows, queries pass.
pub fn launch_backward_keys(
    client: &Client,
    of: Backward<'_>,
    part: Part<'_>,
    [dk, dv]: [&Heads; 2],
    list: &TileList,
    tiles: BackwardTiles,
) {
    let [batch, heads, queries, _] = of.q.shape;
    let [_, kv_heads, keys, _] = part.k.shape;
    let lse_rows = lse_rows(queries);
    let length = batch * heads * lse_rows;
    let map = |x: &Heads, rows| map(x, rows, tiles.factor);
    let [offsets, entries, patterns] = list.arguments();
    unsafe {
        backward_keys::launch_unchecked(
            client,
            CubeCount::Static(
                keys.div_ceil(tiles.resident()) as u32,
                kv_heads as u32,
                batch as u32,
            ),
            CubeDim::new_1d(tiles.threads()),
            map(of.q, tiles.passing),
            map(part.k, tiles.resident()),
            map(part.v, tiles.resident()),
            map(of.d_o, tiles.passing),
            map(dk, 64),
            map(dv, 64),
            BufferArg::from_raw_parts(of.lse.clone(), length / 2),
            BufferArg::from_raw_parts(of.delta.clone(), length / 2),
            offsets,
            entries,
            patterns,
            list.batch_stride,
            queries as u32,
            lse_rows as u32,
            (heads / kv_heads) as u32,
            of.scale * std::f32::consts::LOG2_E,
            of.scale,
            tiles,
            tiles.factor.element(),
            tiles.vectors(),
        );
    }
}
