//! From tensors on the device to a launch.

use super::ForwardTiles;
use super::forward::forward;
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

/// Launches the forward kernel: `o = softmax(q kᵀ scale) v`, and `lse [B, H, S]` in f32.
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
            BufferArg::from_raw_parts(lse.clone(), batch * heads * queries),
            queries as u32,
            keys as u32,
            (heads / kv_heads) as u32,
            scale * std::f32::consts::LOG2_E,
            tiles,
        );
    }
}
