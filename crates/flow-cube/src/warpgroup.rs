//! The warpgroup of a thread: four warps, 128 threads, that issue one `wgmma` together.

use cubecl::prelude::*;

/// This thread's warpgroup among `warpgroups`, and its index within the warpgroup.
///
/// With one warpgroup the index is a constant. With more, all threads of a warp have the same warpgroup; if `uniform`, a
/// shuffle shows that to the compiler, which then keeps what follows from it (such as descriptors of stationary tiles) in
/// uniform registers, off the critical path of a product.
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
