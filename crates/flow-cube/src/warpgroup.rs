//! Which warpgroup a thread is in: 128 threads, four warps, that issue one `wgmma` together.

use cubecl::prelude::*;

/// This thread's warpgroup, of `warpgroups`, and its number in it.
///
/// A single warpgroup's number is known. With more of them, a warpgroup's number is the same in all threads of a warp, which the compiler sees if it
/// is `uniform`: then what is computed with it, as descriptors of resident rows are, takes uniform registers and none of a product's time.
#[cube]
pub fn warpgroup_and_thread(#[comptime] warpgroups: usize, #[comptime] uniform: bool) -> (u32, u32) {
    if comptime!(warpgroups == 1) {
        (0u32.runtime(), UNIT_POS)
    } else if comptime!(uniform) {
        (plane_shuffle(UNIT_POS / 128, 0), UNIT_POS % 128)
    } else {
        (UNIT_POS / 128, UNIT_POS % 128)
    }
}
