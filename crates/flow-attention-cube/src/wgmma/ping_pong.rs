//! Ping-pong scheduling (FlashAttention-3): two warpgroups take turns at the tensor cores, so one multiplies while the other
//! computes its softmax.
//!
//! By a named barrier for each, to which the one that waits and the other that lets it count.

use cubecl::prelude::*;
use flow_cube::barrier::{named_arrive, named_sync};

/// The barrier of the first warpgroup; that of the second follows. Those before are each warpgroup's own.
const FIRST: u32 = 4;

/// Threads of both.
const THREADS: u32 = 256;

/// Gives the first turn to the first warpgroup. Once: every turn lets the other begin, the last one, too.
#[cube]
pub(super) fn give_first_turn(warpgroup: u32) {
    if warpgroup == 1 {
        named_arrive(FIRST.runtime(), THREADS);
    }
}

/// Waits for this warpgroup's turn.
#[cube]
pub(super) fn wait_for_turn(warpgroup: u32) {
    named_sync(FIRST + warpgroup, THREADS);
}

/// Lets the other warpgroup begin.
#[cube]
pub(super) fn end_turn(warpgroup: u32) {
    named_arrive(FIRST + 1 - warpgroup, THREADS);
}
