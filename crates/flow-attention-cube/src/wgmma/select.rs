//! Which tiles a call gets: a fixed table of shapes, measured on an H100 (`docs/src/performance/attention-ladder.md`).

use super::{BackwardTiles, ForwardTiles, Sums};
pub use crate::call::{Call, Declined};

/// Tiles of the three kernels.
pub type Selection = crate::run::Selection<ForwardTiles, BackwardTiles>;

/// The table. `masked`: whether the call has a mask.
pub fn select(call: &Call, masked: bool) -> Selection {
    let (head_dim, factor, two_parts) = (call.head_dim, call.factor, call.keys[1] > 0);
    // (keys of a tile, warpgroups, stages, taking turns)
    let (keys, warpgroups, stages, ping_pong) = match head_dim {
        ..=64 => (128, 1, 2, false),
        // Tiles of masks are narrow, so that fewer are visited in part.
        65..=128 if call.keys[0] >= 4096 && !masked => (176, 2, 2, true),
        65..=128 => (128, 2, 2, false),
        _ => (80, 2, 1, false),
    };
    // Resident rows that stay in registers, in steps of 16 channels: what adds no spill and takes no block from a multiprocessor.
    let steps = |kept: usize| kept.min(head_dim.div_ceil(16));
    let queries_kept = match head_dim {
        ..=64 => steps(2),
        65..=128 if !ping_pong => steps(8),
        _ => 0,
    };
    // (of the kernel for queries: queries, outputs' gradients; of that for keys: keys, values)
    let (beside_queries, beside_keys) = match head_dim {
        ..=64 => ([4, 3], [4, 4]),
        65..=128 => ([8, 8], [0, 0]),
        _ => ([0, 0], [0, 0]),
    };
    // (warpgroups, stages, launches of the kernel for keys)
    let (backward_warpgroups, backward_stages, launches) = match head_dim {
        ..=64 => (1, 2, &[Sums::Both][..]),
        65..=128 => (2, 3, &[Sums::Both][..]),
        _ => (1, 2, &[Sums::Values, Sums::Keys][..]),
    };
    let backward = |sums, kept: [usize; 2]| BackwardTiles {
        head_dim,
        passing: 64,
        warpgroups: backward_warpgroups,
        stages: backward_stages,
        factor,
        sums,
        masked,
        two_parts,
        kept: kept.map(steps),
    };
    Selection {
        forward: ForwardTiles {
            head_dim,
            keys,
            warpgroups,
            stages,
            ping_pong,
            queries_kept,
            factor,
            masked,
            two_parts,
        },
        queries: backward(Sums::Both, beside_queries),
        keys: (launches.iter())
            .map(|sums| backward(*sums, beside_keys))
            .collect(),
    }
}
