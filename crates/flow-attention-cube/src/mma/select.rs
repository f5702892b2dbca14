//! Which tiles a call gets: a fixed table of shapes and of the device's shared memory.

use super::{BackwardTiles, ForwardTiles};
use crate::call::Call;
use crate::run::{Offer, Sums};

/// What is resident.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Queries,
    Keys,
}

/// Tiles of the three kernels.
pub type Selection = crate::run::Selection<ForwardTiles, BackwardTiles>;

/// The first that fits; the last always does, where there are 99 KiB as there are from compute capability 8.0 on.
fn first_that_fits<T: Copy>(candidates: &[T], offer: Offer, bytes: impl Fn(&T) -> usize) -> T {
    let fits = candidates.iter().find(|tiles| bytes(tiles) <= offer.shared_bytes);
    *fits.unwrap_or(&candidates[candidates.len() - 1])
}

/// The table. `masked`: whether the call has a mask.
pub(super) fn select(call: &Call, masked: bool, offer: Offer) -> Selection {
    let (head_dim, factor, two_parts, stages) = (call.head_dim, call.factor, call.keys[1] > 0, 2);
    // (keys of a tile, units)
    let forward: &[(usize, usize)] = match head_dim {
        // ptxas wants 128 registers here, and 64 keys of two parts spill.
        65..=96 if two_parts => &[(32, 2)],
        ..=128 => &[(64, 2)],
        _ => &[(64, 2), (32, 2), (32, 1)],
    };
    // (passing rows of a tile, units)
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
    let sums: &[Sums] = if head_dim <= 128 {
        &[Sums::Both]
    } else {
        &[Sums::Values, Sums::Keys]
    };
    let forward: Vec<ForwardTiles> = forward
        .iter()
        .map(|&(keys, units)| ForwardTiles {
            head_dim,
            keys,
            units,
            stages,
            factor,
            masked,
            two_parts,
        })
        .collect();
    let backward = |cuts: &[(usize, usize)], sums, side: Side| {
        let tiles = |&(passing, units): &(usize, usize)| BackwardTiles {
            head_dim,
            passing,
            units,
            stages,
            factor,
            sums,
            masked,
            // The kernel for keys gets one part at a time.
            two_parts: two_parts && side == Side::Queries,
        };
        let all: Vec<BackwardTiles> = cuts.iter().map(tiles).collect();
        first_that_fits(&all, offer, BackwardTiles::shared_bytes)
    };
    Selection {
        forward: first_that_fits(&forward, offer, ForwardTiles::shared_bytes),
        queries: backward(queries, Sums::Both, Side::Queries),
        keys: sums
            .iter()
            .map(|sums| backward(keys, *sums, Side::Keys))
            .collect(),
    }
}
