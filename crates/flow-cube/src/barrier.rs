//! Barriers: of shared memory (`mbarrier`, PTX ISA 9.7.13.15) and by number (`bar`, PTX ISA 9.7.13.1).
//!
//! Addresses are byte addresses of shared memory, as [`first`] and [`at`] give.

use crate::issue::Issue;
use crate::register::read;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;

/// Waits until the phase of parity `parity` is complete. Spins in hardware.
#[cube]
pub fn wait(barrier: u32, parity: u32) {
    let barrier = read::<u32>(barrier);
    let parity = read::<u32>(parity);
    gpu_asm!(
        "{{",
        ".reg .pred done;",
        "WAIT_AGAIN:",
        "mbarrier.try_wait.parity.shared::cta.b64 done, [{barrier}], {parity};",
        "@done bra WAIT_OVER;",
        "bra WAIT_AGAIN;",
        "WAIT_OVER:",
        "}}",
        barrier = in(_) barrier, parity = in(_) parity,
    );
}

/// Arrives, and adds `bytes` to what copies must bring before the phase completes.
#[cube]
pub fn arrive_and_expect(barrier: u32, bytes: u32, #[comptime] issue: Issue) {
    let barrier = read::<u32>(barrier);
    let bytes = read::<u32>(bytes);
    if comptime!(issue == Issue::ElectedLane) {
        gpu_asm!(
            "{{",
            ".reg .b64 token;",
            ".reg .pred one;",
            "elect.sync _|one, 0xffffffff;",
            "@one mbarrier.arrive.expect_tx.shared::cta.b64 token, [{barrier}], {bytes};",
            "}}",
            barrier = in(_) barrier, bytes = in(_) bytes,
        );
    } else {
        gpu_asm!(
            "{{",
            ".reg .b64 token;",
            "mbarrier.arrive.expect_tx.shared::cta.b64 token, [{barrier}], {bytes};",
            "}}",
            barrier = in(_) barrier, bytes = in(_) bytes,
        );
    }
}

/// Waits until `threads` threads (a multiple of 32) came to barrier `number` (1 to 15), with this one.
#[cube]
pub fn named_sync(number: u32, #[comptime] threads: u32) {
    let number = read::<u32>(number);
    gpu_asm!("bar.sync {number}, {threads};", number = in(_) number);
}

/// Counts towards barrier `number` without waiting.
#[cube]
pub fn named_arrive(number: u32, #[comptime] threads: u32) {
    let number = read::<u32>(number);
    gpu_asm!("bar.arrive {number}, {threads};", number = in(_) number);
}

/// Adds one to a counter in shared memory, or sets it back to 0 where it is `last`, and returns what it was. Asks for the
/// value and goes on: only what uses it waits.
///
/// The count is relaxed: the caller has waited for the products that read shared memory (`wgmma::wait`), and the last warp may
/// overwrite what they read by a copy. Nothing was written that the copy should see, and the reads are over when
/// their wait is. With an order (`acq_rel`) each warp would stand still for a fence, twice a tile; a sum by `add` would
/// do the same, since ptxas sums the lanes of a warp first and hands their values out.
#[cube]
pub fn count_around(counter: u32, #[comptime] last: u32) -> u32 {
    let counter = read::<u32>(counter);
    let out: u32;
    gpu_asm!("atom.relaxed.cta.shared::cta.inc.u32 {}, [{}], {last};", out(_) out, in(_) counter);
    out
}

/// [`count_around`] once for a warp: its first lane gets the value, the others 0. So `last`, which is not 0, tells the one
/// thread that came last of all warps.
#[cube]
pub fn count_warp(lane: u32, counter: u32, #[comptime] last: u32) -> u32 {
    let mut before = 0u32;
    if lane == 0 {
        before = count_around(counter, last);
    }
    before
}

/// Words of shared memory of a counter for [`count_warp_by_lanes`].
pub const COUNTER_WORDS: usize = 32;

/// [`count_warp`] without a branch: every lane counts, in a word of its own, and all but the first count up to 0. For kernels
/// that have something to calculate beside it, since ptxas moves no instruction across a branch: in forward attention the
/// exponentials, eight cycles each, stood on one side of the count, and what could have gone between them on the other.
///
/// `counter` is the byte address of [`COUNTER_WORDS`] words, as [`counter_at`] gives.
#[cube]
pub fn count_warp_by_lanes(lane: u32, counter: u32, #[comptime] last: u32) -> u32 {
    let word = counter + lane * 4;
    let word = read::<u32>(word);
    let up_to = select(lane == 0, comptime!(last).runtime(), 0u32);
    let before: u32;
    gpu_asm!(
        "atom.relaxed.cta.shared::cta.inc.u32 {}, [{}], {};", out(_) before, in(_) word, in(_) up_to
    );
    before
}

/// Whether this warp is the one that came last: `before` is what its count gave. For all threads of the warp, together: after
/// `wgmma::wait` or what issues a product, which want them so, too.
#[cube]
pub fn came_last(before: u32, #[comptime] last: u32) -> bool {
    plane_any(before == last)
}

/// The byte address of counter `index` of those that begin at `first`.
#[cube]
pub fn counter_at(first: u32, index: u32) -> u32 {
    first + index * comptime!(4 * COUNTER_WORDS as u32)
}

/// Sets `counters` counters of [`COUNTER_WORDS`] words to 0. For all threads of a block, before they meet.
#[cube]
pub fn reset_counters(words: &mut [u32], #[comptime] counters: usize) {
    if UNIT_POS < comptime!(COUNTER_WORDS as u32) {
        #[unroll]
        for i in 0..counters {
            words[comptime!(i * COUNTER_WORDS) + UNIT_POS as usize] = 0u32;
        }
    }
}

/// Starts the copy of `bytes` bytes (a multiple of 16, both ends aligned to 16) from global memory to a byte address of
/// shared memory; they count towards `barrier`.
#[cube]
pub fn bulk_copy<T: CubePrimitive>(
    to: u32,
    from: *const T,
    #[comptime] bytes: u32,
    barrier: u32,
    #[comptime] issue: Issue,
) {
    let to = read::<u32>(to);
    let barrier = read::<u32>(barrier);
    if comptime!(issue == Issue::ElectedLane) {
        gpu_asm!(
            "{{",
            ".reg .pred one;",
            "elect.sync _|one, 0xffffffff;",
            "@one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {bytes}, [{barrier}];",
            "}}",
            to = mem_out(_) to, from = mem_in(_) from, barrier = mem_inout(_) barrier, options(explicit_mem),
        );
    } else {
        gpu_asm!(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {bytes}, [{barrier}];",
            to = mem_out(_) to, from = mem_in(_) from, barrier = mem_inout(_) barrier, options(explicit_mem),
        );
    }
}

/// The address of barriers in shared memory, 8 bytes each; [`at`] gives those behind the first.
#[cube]
pub fn first(barriers: &[u64]) -> u32 {
    // SAFETY: only the address is taken, of barriers in shared memory.
    generic_to_shared::<u64>(unsafe { barriers.as_ptr_unchecked() })
}

/// The address of a barrier behind the `first`.
#[cube]
pub fn at(first: u32, index: usize) -> u32 {
    first + 8 * index as u32
}

/// Makes a barrier whose phases complete with one arrival. For one thread, before any other sees it.
#[cube]
pub fn init(barrier: u32) {
    let barrier = read::<u32>(barrier);
    gpu_asm!("mbarrier.init.shared::cta.b64 [{barrier}], 1;", barrier = in(_) barrier);
}

/// Makes a barrier anew that copies have completed and nobody waits at. For one thread, before any other sees it.
#[cube]
pub fn renew(barrier: u32) {
    let used = read::<u32>(barrier);
    gpu_asm!("mbarrier.inval.shared::cta.b64 [{used}];", used = in(_) used);
    init(barrier);
}
