//! From tensors on the device to a launch.

use super::backward_keys::backward_keys;
use super::backward_queries::backward_queries;
use super::forward::forward;
use super::{BackwardTiles, ForwardTiles};
use cubecl::prelude::*;
use cubecl::zspace::{Shape, Strides, shape};
use cubecl_runtime::server::Handle;
use half::bf16;

/// A tensor `[B, H, S, D]` on the device, with its strides in elements; the last one is 1, the others multiples of 8.
#[derive(Clone, Debug)]
pub struct Heads {
    /// Where it is.
    pub handle: Handle,
    /// `[B, H, S, D]`.
    pub shape: [usize; 4],
    /// Elements from one to the next, of each axis.
    pub strides: [usize; 4],
}

impl Heads {
    /// A tensor without gaps.
    pub fn contiguous(handle: Handle, shape: [usize; 4]) -> Self {
        let [_, heads, rows, channels] = shape;
        let strides = [heads * rows * channels, rows * channels, channels, 1];
        Self { handle, shape, strides }
    }

    /// Elements from the first to the last.
    fn elements(&self) -> usize {
        1 + self.shape.iter().zip(self.strides).map(|(n, s)| (n - 1) * s).sum::<usize>()
    }

    /// For copies of `rows` rows of 64 channels.
    pub(super) fn map(&self, rows: usize) -> TensorMapArg<Tiled> {
        let tensor = unsafe {
            TensorArg::from_raw_parts(
                self.handle.clone(),
                self.strides.into_iter().collect::<Strides>(),
                self.shape.into_iter().collect::<Shape>(),
            )
        };
        TensorMapArg::new(
            TiledArgs { tile_size: shape![1, 1, rows, 64] },
            tensor,
            bf16::elem_type_native(),
        )
        .with_swizzle(TensorMapSwizzle::B128)
        .with_prefetch(TensorMapPrefetch::B256)
    }
}

/// Launches the forward kernel: `o = softmax(q kᵀ scale) v`, and `lse [B, H, lse_rows]` in f32,
/// plus infinity where there is no row.
pub fn launch_forward(
    client: &Client,
    q: &Heads,
    k: &Heads,
    v: &Heads,
    o: &Heads,
    lse: &Handle,
    scale: f32,
    tiles: ForwardTiles,
) {
    let [batch, heads, queries, _] = q.shape;
    let [_, kv_heads, keys, _] = k.shape;
    let blocks = queries.div_ceil(tiles.queries());
    unsafe {
        forward::launch_unchecked(
            client,
            CubeCount::Static(blocks as u32, heads as u32, batch as u32),
            CubeDim::new_1d(tiles.threads()),
            q.map(tiles.queries()),
            k.map(tiles.keys),
            v.map(tiles.keys),
            o.map(64),
            BufferArg::from_raw_parts(lse.clone(), batch * heads * lse_rows(queries)),
            queries as u32,
            lse_rows(queries) as u32,
            keys as u32,
            (heads / kv_heads) as u32,
            scale * std::f32::consts::LOG2_E,
            tiles,
        );
    }
}

/// Rows of `lse` and of `delta` for a head of `queries` queries.
pub fn lse_rows(queries: usize) -> usize {
    queries.next_multiple_of(128)
}

/// Launches both backward kernels: `dq`, `dk`, `dv`, and `delta [B, H, lse_rows]`.
#[allow(clippy::too_many_arguments)]
pub fn launch_backward(
    client: &Client,
    [q, k, v, o, d_o]: [&Heads; 5],
    [dq, dk, dv]: [&Heads; 3],
    lse: &Handle,
    delta: &Handle,
    scale: f32,
    for_queries: BackwardTiles,
    for_keys: BackwardTiles,
) {
    let [batch, heads, queries, _] = q.shape;
    let [_, kv_heads, keys, _] = k.shape;
    let lse_rows = lse_rows(queries);
    let length = batch * heads * lse_rows;
    let factor = scale * std::f32::consts::LOG2_E;
    let eights = |x: &Heads, axis: usize| (x.strides[axis] / 8) as u32;
    let tiles = for_queries;
    unsafe {
        backward_queries::launch_unchecked(
            client,
            CubeCount::Static(queries.div_ceil(tiles.resident()) as u32, heads as u32, batch as u32),
            CubeDim::new_1d(tiles.threads()),
            q.map(tiles.resident()),
            k.map(tiles.passing),
            v.map(tiles.passing),
            d_o.map(tiles.resident()),
            dq.map(64),
            BufferArg::from_raw_parts(o.handle.clone(), o.elements() / 8),
            BufferArg::from_raw_parts(d_o.handle.clone(), d_o.elements() / 8),
            eights(o, 0),
            eights(o, 1),
            eights(o, 2),
            eights(d_o, 0),
            eights(d_o, 1),
            eights(d_o, 2),
            BufferArg::from_raw_parts(lse.clone(), length),
            BufferArg::from_raw_parts(delta.clone(), length),
            queries as u32,
            lse_rows as u32,
            keys as u32,
            (heads / kv_heads) as u32,
            factor,
            scale,
            tiles,
        );
        let tiles = for_keys;
        backward_keys::launch_unchecked(
            client,
            CubeCount::Static(keys.div_ceil(tiles.resident()) as u32, kv_heads as u32, batch as u32),
            CubeDim::new_1d(tiles.threads()),
            q.map(tiles.passing),
            k.map(tiles.resident()),
            v.map(tiles.resident()),
            d_o.map(tiles.passing),
            dk.map(64),
            dv.map(64),
            BufferArg::from_raw_parts(lse.clone(), length / 2),
            BufferArg::from_raw_parts(delta.clone(), length / 2),
            queries as u32,
            lse_rows as u32,
            (heads / kv_heads) as u32,
            factor,
            scale,
            tiles,
        );
    }
}
