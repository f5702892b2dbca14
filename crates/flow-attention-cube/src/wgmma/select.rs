//! Which tiles a call gets: a fixed table of shapes, measured on an H100 (`docs/src/performance/attention-ladder.md`).

use super::launch_joint::MULTIPROCESSORS;
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
    let backward = |warpgroups, stages, sums| BackwardTiles {
        head_dim,
        passing: 64,
        warpgroups,
        stages,
        factor,
        sums,
        masked,
        two_parts,
    };
    let (queries, keys_tiles) = match head_dim {
        ..=64 => (backward(1, 2, Sums::Both), vec![backward(1, 2, Sums::Both)]),
        65..=128 => (backward(2, 3, Sums::Both), vec![backward(2, 3, Sums::Both)]),
        _ => (
            backward(1, 2, Sums::Both),
            vec![backward(1, 2, Sums::Values), backward(1, 2, Sums::Keys)],
        ),
    };
    Selection {
        forward: ForwardTiles {
            head_dim,
            keys,
            warpgroups,
            stages,
            ping_pong,
            factor,
            masked,
            two_parts,
        },
        queries,
        keys: keys_tiles,
        joint: joint(call, masked).filter(|_| joint_pays(call)),
    }
}

/// Tiles of the joint kernel for a call that it serves.
pub fn joint(call: &Call, masked: bool) -> Option<BackwardTiles> {
    (call.head_dim == 128 && !masked).then_some(BackwardTiles {
        head_dim: call.head_dim,
        passing: 64,
        warpgroups: 2,
        // The joint kernel has stages of its own.
        stages: 2,
        factor: call.factor,
        sums: Sums::Both,
        masked,
        // A launch for each part, with the same kernel.
        two_parts: false,
    })
}

/// Whether the joint kernel takes less time than the two kernels: where blocks wait for one another a small part of the time.
/// Measured on an H100: 0.93 of it at 31,200 queries, 0.955 at 16,384, the same at 12,480 and 4096, 1.09 at 2048
/// (`docs/src/performance/attention-ladder.md`).
fn joint_pays(call: &Call) -> bool {
    // Not the batch: a sample's gradients have the same bits in any.
    let pairs = call.heads * call.queries * call.keys.iter().sum::<usize>();
    let visits = pairs / (128 * 64);
    call.queries >= 16_384 && call.keys[0] >= 16_384 && visits >= 400 * MULTIPROCESSORS
}
