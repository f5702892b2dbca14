//! `cp.async`: copies from global to shared memory that each thread starts for itself and that go on beside its work
//! (PTX ISA 9.7.9.25.3); from compute capability 8.0 on.
//!
//! A thread's copies since its last [`commit`] are a group. [`wait`] is for the thread's own groups only: a barrier must
//! follow before others read what it brought.

use crate::register::read;
use cubecl::prelude::*;

/// Starts copying `bytes` bytes, 0 to 16, to a byte address of shared memory; the rest of the 16 becomes zero. Both ends
/// are aligned to 16. With 0 bytes nothing is read.
#[cube]
pub fn copy_16<T: CubePrimitive>(to: u32, from: *const T, bytes: u32) {
    let to = read::<u32>(to);
    let bytes = read::<u32>(bytes);
    gpu_asm!(
        "cp.async.cg.shared.global [{to}], [{from}], 16, {bytes};",
        to = mem_out(_) to, from = mem_in(_) from, bytes = in(_) bytes, options(explicit_mem),
    );
}

/// Ends a group; it may be empty.
#[cube]
pub fn commit() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until at most `pending` of this thread's groups are under way.
#[cube]
pub fn wait(#[comptime] pending: usize) {
    gpu_asm!("cp.async.wait_group {pending};");
}
