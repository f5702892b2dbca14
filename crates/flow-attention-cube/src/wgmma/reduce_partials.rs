//! Reduces the partial sums of a split-Q backward pass to gradients of keys and values, in the order of the splits.

use super::BackwardTiles;
use cubecl::prelude::*;
use flow_cube::register::pack;
use flow_cube::wgmma::OperandType;

/// Threads of a block; each makes eight channels of a row.
pub(crate) const THREADS: usize = 256;

/// Strides and sizes of the gradient, and its scale.
#[derive(CubeType, CubeLaunch)]
pub struct ReduceProblem {
    /// From a sample to the next, in eights of channels.
    pub batch_stride: u32,
    /// From a head to the next, in eights of channels.
    pub head_stride: u32,
    /// From a row to the next, in eights of channels.
    pub row_stride: u32,
    /// Rows of the sums of a head: the keys, padded.
    pub rows: u32,
    /// Keys of a head.
    pub keys: u32,
    /// What the sums are multiplied by.
    pub scale: f32,
}

/// What is reduced, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReducedPartials {
    /// Sums of a gradient.
    pub split_q: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Element type of the gradient.
    pub operand_type: OperandType,
}

impl ReducedPartials {
    /// Those that the kernel for keys leaves with `tiles`.
    pub(crate) fn of(tiles: BackwardTiles) -> Self {
        Self {
            split_q: tiles.split_q,
            head_dim: tiles.head_dim,
            operand_type: tiles.operand_type,
        }
    }
}

/// `gradient = scale ∑ sums` over `split_q`, for keys that exist. `sums` is `[B, H, split_q, rows, D]` in pairs of channels, `gradient`
/// `[B, H, keys, D]` in eights, as its strides are. The grid is (eights of a head, key heads, samples).
#[cube(launch_unchecked)]
pub fn reduce_partials(
    sums: &[Vector<f32, Const<2>>],
    gradient: &mut [Vector<u32, Const<4>>],
    problem: &ReduceProblem,
    #[comptime] partials: ReducedPartials,
) {
    let split_q = comptime!(partials.split_q);
    let head_dim = comptime!(partials.head_dim);
    let element = comptime!(partials.operand_type);
    let eights = comptime!((head_dim / 8) as u32);
    let row_group = CUBE_POS_X * comptime!(THREADS as u32) + UNIT_POS;
    let (key, eight) = (row_group / eights, row_group % eights);
    let (head, batch) = (CUBE_POS_Y, CUBE_POS_Z);
    if key < problem.keys {
        let mut sum = Vector::<f32, Const<8>>::new(0.0f32);
        let of_head = (batch * CUBE_COUNT_Y + head) * comptime!(split_q as u32) * problem.rows;
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
            at += problem.rows * comptime!((head_dim / 2) as u32);
        }
        let mut out = Vector::<u32, Const<4>>::new(0u32);
        #[unroll]
        for i in 0..4usize {
            let (low, high) = (sum.extract(comptime!(2 * i)), sum.extract(comptime!(2 * i + 1)));
            out.insert(i, pack(low * problem.scale, high * problem.scale, element));
        }
        let to = batch * problem.batch_stride + head * problem.head_stride + key * problem.row_stride + eight;
        gradient[to as usize] = out;
    }
}
