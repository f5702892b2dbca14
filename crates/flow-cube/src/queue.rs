//! Turns of blocks at memory that they share: counters in global memory, and additions of f32 there by the accelerator of
//! copies (PTX ISA 9.7.9 `ld` and `st`, 9.7.13.13 `atom`, 9.7.9.25 bulk copies).
//!
//! A thread that adds to a place in its turn does: [`peek`] at the counter some time before, and unless it says that the turn
//! has come already, [`wait_for`] it; [`bulk_add`] and `tma_group_commit`; later [`bulk_wait`] and [`say`]. What is added so is
//! added in the order of turns, and the sums have the same bits each time.
//!
//! What is ordered are additions, not reads: no thread reads a sum before the kernel is over. All of them are made in one
//! place, the cache of the device that holds the address; [`bulk_wait`] returns when they have been made; [`say`] comes after
//! it and is seen there; and an addition that comes after what was seen starts after it. So no fence stands between, though PTX
//! promises the order to fences only: each takes a warp a microsecond (`docs/src/performance/attention-ladder.md`).

use crate::register::read;
use cubecl::prelude::*;

/// Adds one to a counter and returns what it was before; ordered with nothing.
#[cube]
pub fn take_ticket(counter: *const u32) -> u32 {
    let out: u32;
    gpu_asm!("atom.relaxed.gpu.global.add.u32 {}, [{}], 1;", out(_) out, in(_) counter);
    out
}

/// A counter's value. Asks for it and goes on: only what uses the value waits for it.
#[cube]
pub fn peek(counter: *const u32) -> u32 {
    let out: u32;
    gpu_asm!("ld.relaxed.gpu.global.u32 {}, [{}];", out(_) out, in(_) counter);
    out
}

/// Waits until a counter is at least `least`, and returns it.
#[cube]
pub fn wait_for(counter: *const u32, least: u32) -> u32 {
    let least = read::<u32>(least);
    let out: u32;
    gpu_asm!(
        "{{",
        ".reg .pred done;",
        ".reg .b32 now;",
        "TURN_AGAIN:",
        "ld.relaxed.gpu.global.u32 now, [{counter}];",
        "setp.ge.u32 done, now, {least};",
        "@done bra TURN_COME;",
        "bra TURN_AGAIN;",
        "TURN_COME:",
        "mov.b32 {out}, now;",
        "}}",
        out = out(_) out, counter = in(_) counter, least = in(_) least,
    );
    out
}

/// Sets a counter, which one thread alone does.
#[cube]
pub fn say(counter: *const u32, value: u32) {
    let value = read::<u32>(value);
    gpu_asm!("st.relaxed.gpu.global.u32 [{}], {};", in(_) counter, in(_) value);
}

/// Starts writing `bytes` bytes (a multiple of 16, both ends aligned to 16) from a byte address of shared memory to `to`; as
/// part of the thread's next group of bulk copies (PTX ISA 9.7.9.25 `cp.async.bulk`).
#[cube]
pub fn bulk_store<T: CubePrimitive>(to: *const T, from: u32, #[comptime] bytes: u32) {
    let from = read::<u32>(from);
    gpu_asm!(
        "cp.async.bulk.global.shared::cta.bulk_group [{to}], [{from}], {bytes};",
        to = in(_) to, from = in(_) from,
    );
}

/// As [`bulk_store`], but adds f32 to what is there, each rounded to nearest (`cp.reduce.async.bulk`).
#[cube]
pub fn bulk_add<T: CubePrimitive>(to: *const T, from: u32, #[comptime] bytes: u32) {
    let from = read::<u32>(from);
    gpu_asm!(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [{to}], [{from}], {bytes};",
        to = in(_) to, from = in(_) from,
    );
}

/// Waits until all bulk copies of this thread's committed groups are done: what they wrote is there.
#[cube]
pub fn bulk_wait() {
    gpu_asm!("cp.async.bulk.wait_group 0;");
}
