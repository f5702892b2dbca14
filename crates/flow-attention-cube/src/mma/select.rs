//! Which tiles a call gets: a fixed table of shapes and of the device's shared memory.

use super::{BackwardTiles, ForwardTiles};
use crate::prepared::{DeviceCapabilities, KvGradients};
use crate::problem::Problem;

/// What is stationary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Queries,
    Keys,
}

/// Tiles of the three kernels.
pub type Selection = crate::prepared::Selection<ForwardTiles, BackwardTiles>;

/// The first that fits; the last always does, where there are 99 KiB as there are from compute capability 8.0 on.
fn first_that_fits<T: Copy>(
    candidates: &[T],
    capabilities: DeviceCapabilities,
    bytes: impl Fn(&T) -> usize,
) -> T {
    let fits = candidates
        .iter()
        .find(|tiles| bytes(tiles) <= capabilities.shared_bytes);
    *fits.unwrap_or(&candidates[candidates.len() - 1])
}

/// The table. `masked`: whether the call has a mask.
pub(super) fn select(problem: &Problem, masked: bool, capabilities: DeviceCapabilities) -> Selection {
    let (head_dim, operand_type, two_segments, stages) =
        (problem.head_dim, problem.operand_type, problem.keys[1] > 0, 2);
    // (keys of a tile, row groups)
    let forward: &[(usize, usize)] = match head_dim {
        // ptxas wants 128 registers here, and 64 keys of two segments spill.
        65..=96 if two_segments => &[(32, 2)],
        ..=128 => &[(64, 2)],
        _ => &[(64, 2), (32, 2), (32, 1)],
    };
    // (streamed rows of a tile, row groups)
    let queries: &[(usize, usize)] = match head_dim {
        ..=64 => &[(64, 2)],
        65..=128 => &[(64, 2), (64, 1)],
        _ => &[(32, 1), (16, 1)],
    };
    let keys: &[(usize, usize)] = match head_dim {
        ..=96 => &[(64, 1)],
        // Two gradients of 128 channels leave no registers for scores of 64 queries.
        97..=128 => &[(32, 1)],
        _ => &[(32, 1), (16, 1)],
    };
    let sums: &[KvGradients] = if head_dim <= 128 {
        &[KvGradients::Both]
    } else {
        &[KvGradients::Values, KvGradients::Keys]
    };
    let forward: Vec<ForwardTiles> = forward
        .iter()
        .map(|&(keys, row_groups)| ForwardTiles {
            head_dim,
            keys,
            row_groups,
            stages,
            operand_type,
            masked,
            two_segments,
            // A launch with a bias says so.
            biased: false,
        })
        .collect();
    let backward = |cuts: &[(usize, usize)], sums, side: Side| {
        let tiles = |&(streamed_rows, row_groups): &(usize, usize)| BackwardTiles {
            head_dim,
            streamed_rows,
            row_groups,
            stages,
            operand_type,
            sums,
            masked,
            // The kernel for keys gets one segment at a time.
            two_segments: two_segments && side == Side::Queries,
        };
        let all: Vec<BackwardTiles> = cuts.iter().map(tiles).collect();
        first_that_fits(&all, capabilities, BackwardTiles::shared_bytes)
    };
    Selection {
        forward: first_that_fits(&forward, capabilities, ForwardTiles::shared_bytes),
        queries: backward(queries, KvGradients::Both, Side::Queries),
        keys: sums
            .iter()
            .map(|sums| backward(keys, *sums, Side::Keys))
            .collect(),
    }
}
