//! Reduces the partial sums of a split-Q backward pass to gradients of keys and values, in the order of the splits.

use cubecl::prelude::*;
use flow_cube::register::pack;
use flow_cube::wgmma::OperandType;

/// Threads of a block; each makes eight channels of a row.
pub(crate) const THREADS: usize = 256;

/// `gradient = scale ∑ sums` over `split_q`, for keys that exist. `sums` is `[B, H, split_q, rows, D]` in pairs of channels, `gradient`
/// `[B, H, keys, D]` in eights, as its strides are. The grid is (eights of a head, key heads, samples).
#[cube(launch_unchecked)]
pub fn reduce_partials(
    sums: &[Vector<f32, Const<2>>],
    gradient: &mut [Vector<u32, Const<4>>],
    batch_stride: u32,
    head_stride: u32,
    row_stride: u32,
    rows: u32,
    keys: u32,
    scale: f32,
    #[comptime] split_q: usize,
    #[comptime] head_dim: usize,
    #[comptime] element: OperandType,
) {
    let eights = comptime!((head_dim / 8) as u32);
    let row_group = CUBE_POS_X * comptime!(THREADS as u32) + UNIT_POS;
    let (key, eight) = (row_group / eights, row_group % eights);
    let (head, batch) = (CUBE_POS_Y, CUBE_POS_Z);
    if key < keys {
        let mut sum = Vector::<f32, Const<8>>::new(0.0f32);
        let of_head = (batch * CUBE_COUNT_Y + head) * comptime!(split_q as u32) * rows;
        let mut at = (of_head + key) * comptime!((head_dim / 2) as u32) + eight * 4;
        for _ in 0..comptime!(split_q as u32) {
            #[unroll]
            for i in 0..4usize {
                let pair = sums[at as usize + i];
                sum.insert(
                    comptime!(2 * i),
                    sum.extract(comptime!(2 * i)) + pair.extract(0usize),
                );
                sum.insert(
                    comptime!(2 * i + 1),
                    sum.extract(comptime!(2 * i + 1)) + pair.extract(1usize),
                );
            }
            at += rows * comptime!((head_dim / 2) as u32);
        }
        let mut out = Vector::<u32, Const<4>>::new(0u32);
        #[unroll]
        for i in 0..4usize {
            let (low, high) = (sum.extract(comptime!(2 * i)), sum.extract(comptime!(2 * i + 1)));
            out.insert(i, pack(low * scale, high * scale, element));
        }
        gradient[(batch * batch_stride + head * head_stride + key * row_stride + eight) as usize] = out;
    }
}
