//! The tensor memory accelerator: copies of tiles between tensors and shared memory (PTX ISA 9.7.9.27).
//!
//! By inline PTX. CubeCL's own operations of the same name reach the same instructions through libcu++, whose headers NVRTC would
//! read for each kernel anew: a second of compilation, of the one to three that a kernel takes.

use crate::issue::Issue;
use crate::register::read;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::{generic_to_shared, tensor_map_address};

/// Starts the copy of a tile from row `row` and column `column` on; its bytes count towards `barrier`.
#[cube]
pub fn load_2d<E: Numeric>(
    map: &TensorMap<E, Tiled>,
    to: &[E],
    barrier: u32,
    row: i32,
    column: i32,
    #[comptime] issue: Issue,
) {
    // SAFETY: only the address is taken, of memory that holds a tile, as the caller sees to.
    let to = generic_to_shared::<E>(unsafe { to.as_ptr_unchecked() });
    let map = tensor_map_address(map);
    let barrier = read::<u32>(barrier);
    let (row, column) = (read::<i32>(row), read::<i32>(column));
    if comptime!(issue == Issue::ElectedLane) {
        gpu_asm!(
            "{{",
            ".reg .pred one;",
            "elect.sync _|one, 0xffffffff;",
            "@one cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{column}, {row}}}], [{barrier}];",
            "}}",
            to = in(_) to, map = in(_) map, barrier = in(_) barrier, row = in(_) row, column = in(_) column,
        );
    } else {
        gpu_asm!(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{column}, {row}}}], [{barrier}];",
            to = in(_) to, map = in(_) map, barrier = in(_) barrier, row = in(_) row, column = in(_) column,
        );
    }
}

/// As [`load_2d`], of a tensor with four axes.
#[cube]
pub fn load_4d<E: Numeric>(
    map: &TensorMap<E, Tiled>,
    to: &[E],
    barrier: u32,
    batch: i32,
    head: i32,
    row: i32,
    channel: i32,
    #[comptime] issue: Issue,
) {
    // SAFETY: only the address is taken, of memory that holds a tile, as the caller sees to.
    let to = generic_to_shared::<E>(unsafe { to.as_ptr_unchecked() });
    let map = tensor_map_address(map);
    let barrier = read::<u32>(barrier);
    let (batch, head) = (read::<i32>(batch), read::<i32>(head));
    let (row, channel) = (read::<i32>(row), read::<i32>(channel));
    if comptime!(issue == Issue::ElectedLane) {
        gpu_asm!(
            "{{",
            ".reg .pred one;",
            "elect.sync _|one, 0xffffffff;",
            "@one cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{channel}, {row}, {head}, {batch}}}], [{barrier}];",
            "}}",
            to = in(_) to, map = in(_) map, barrier = in(_) barrier,
            batch = in(_) batch, head = in(_) head, row = in(_) row, channel = in(_) channel,
        );
    } else {
        gpu_asm!(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{channel}, {row}, {head}, {batch}}}], [{barrier}];",
            to = in(_) to, map = in(_) map, barrier = in(_) barrier,
            batch = in(_) batch, head = in(_) head, row = in(_) row, channel = in(_) channel,
        );
    }
}

/// Brings a tile of a tensor with four axes to the cache of the device, where a [`load_4d`] soon finds it. For a whole warp, of which the
/// hardware elects a thread.
#[cube]
pub fn prefetch_4d<E: Numeric>(map: &TensorMap<E, Tiled>, batch: i32, head: i32, row: i32, channel: i32) {
    let map = tensor_map_address(map);
    let (batch, head) = (read::<i32>(batch), read::<i32>(head));
    let (row, channel) = (read::<i32>(row), read::<i32>(channel));
    gpu_asm!(
        "{{",
        ".reg .pred one;",
        "elect.sync _|one, 0xffffffff;",
        "@one cp.async.bulk.prefetch.tensor.4d.L2.global.tile [{map}, {{{channel}, {row}, {head}, {batch}}}];",
        "}}",
        map = in(_) map, batch = in(_) batch, head = in(_) head, row = in(_) row, channel = in(_) channel,
    );
}

/// Starts writing a tile to row `row` and column `column`, in the group that [`commit`] closes.
#[cube]
pub fn store_2d<E: Numeric>(from: &[E], map: &mut TensorMap<E, Tiled>, row: i32, column: i32) {
    // SAFETY: only the address is taken, of memory that holds a tile, as the caller sees to.
    let from = generic_to_shared::<E>(unsafe { from.as_ptr_unchecked() });
    let map = tensor_map_address::<E, Tiled>(&*map);
    let (row, column) = (read::<i32>(row), read::<i32>(column));
    gpu_asm!(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [{map}, {{{column}, {row}}}], [{from}];",
        from = in(_) from, map = in(_) map, row = in(_) row, column = in(_) column,
    );
}

/// As [`store_2d`], to a tensor with four axes. If a warp calls it, the store is of the thread that it elects, which is always the same.
#[cube]
pub fn store_4d<E: Numeric>(
    from: &[E],
    map: &mut TensorMap<E, Tiled>,
    batch: i32,
    head: i32,
    row: i32,
    channel: i32,
    #[comptime] issue: Issue,
) {
    // SAFETY: only the address is taken, of memory that holds a tile, as the caller sees to.
    let from = generic_to_shared::<E>(unsafe { from.as_ptr_unchecked() });
    let map = tensor_map_address::<E, Tiled>(&*map);
    let (batch, head) = (read::<i32>(batch), read::<i32>(head));
    let (row, channel) = (read::<i32>(row), read::<i32>(channel));
    if comptime!(issue == Issue::ElectedLane) {
        gpu_asm!(
            "{{",
            ".reg .pred one;",
            "elect.sync _|one, 0xffffffff;",
            "@one cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [{map}, {{{channel}, {row}, {head}, {batch}}}], [{from}];",
            "}}",
            from = in(_) from, map = in(_) map,
            batch = in(_) batch, head = in(_) head, row = in(_) row, channel = in(_) channel,
        );
    } else {
        gpu_asm!(
            "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [{map}, {{{channel}, {row}, {head}, {batch}}}], [{from}];",
            from = in(_) from, map = in(_) map,
            batch = in(_) batch, head = in(_) head, row = in(_) row, channel = in(_) channel,
        );
    }
}

/// Closes the group of this thread's stores so far.
#[cube]
pub fn commit() {
    gpu_asm!("cp.async.bulk.commit_group;");
}

/// Waits until all but the last `pending` groups have been read from shared memory.
#[cube]
pub fn wait_read(#[comptime] pending: usize) {
    gpu_asm!("cp.async.bulk.wait_group.read {pending};");
}

/// Waits until this thread's stores have been written.
#[cube]
pub fn wait_all() {
    gpu_asm!("cp.async.bulk.wait_group 0;");
}

/// Makes what this thread wrote to shared memory, barriers included, visible to the accelerator.
#[cube]
pub fn fence() {
    gpu_asm!("fence.proxy.async.shared::cta;");
}
