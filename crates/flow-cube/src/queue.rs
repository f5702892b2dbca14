//! Turns of blocks at memory that they share: counters in global memory, and additions of f32 there (PTX ISA 9.7.13.13
//! `red`, 9.7.9 `ld`, 9.7.13.4 `fence`).
//!
//! A block that adds to a place in its turn does: [`peek`] at the place's counter, [`fence`], and unless the counter was at
//! its turn already [`wait`]; then it adds, then [`fence`], then one thread [`advance`]s the counter. Threads that add but do
//! neither load nor advance the counter are ordered with the one that does by a barrier or `sync_plane`. What is added so
//! is added in the order of turns, and the sums have the same bits each time.

use crate::register::read;
use cubecl::prelude::*;

/// Adds one to a counter and returns what it was before; ordered with nothing.
#[cube]
pub fn take_ticket(counter: *const u32) -> u32 {
    let out: u32;
    gpu_asm!("atom.relaxed.gpu.global.add.u32 {}, [{}], 1;", out(_) out, in(_) counter);
    out
}

/// A counter's value, which orders nothing until a [`fence`] after it.
#[cube]
pub fn peek(counter: *const u32) -> u32 {
    let out: u32;
    gpu_asm!("ld.relaxed.gpu.global.u32 {}, [{}];", out(_) out, in(_) counter);
    out
}

/// Waits until a counter is at `turn`: what was done before it was advanced to there is seen after.
#[cube]
pub fn wait(counter: *const u32, turn: u32) {
    let turn = read::<u32>(turn);
    gpu_asm!(
        "{{",
        ".reg .pred done;",
        ".reg .b32 now;",
        "TURN_AGAIN:",
        "ld.acquire.gpu.global.u32 now, [{counter}];",
        "setp.eq.u32 done, now, {turn};",
        "@done bra TURN_COME;",
        "bra TURN_AGAIN;",
        "TURN_COME:",
        "}}",
        counter = in(_) counter, turn = in(_) turn,
    );
}

/// Orders what this thread did before with what it does after, for the whole device.
#[cube]
pub fn fence() {
    gpu_asm!("fence.acq_rel.gpu;");
}

/// Adds one to a counter. After a [`fence`]: whoever sees it sees what was before the fence.
#[cube]
pub fn advance(counter: *const u32) {
    gpu_asm!("red.relaxed.gpu.global.add.u32 [{}], 1;", in(_) counter);
}

/// Adds four values to those at `to` and `offset` bytes; each is rounded to nearest.
#[cube]
pub fn add_4<T: CubePrimitive>(to: *const T, #[comptime] offset: usize, a: f32, b: f32, c: f32, d: f32) {
    let a = read::<f32>(a);
    let b = read::<f32>(b);
    let c = read::<f32>(c);
    let d = read::<f32>(d);
    gpu_asm!(
        "red.relaxed.gpu.global.add.v4.f32 [{to}+{offset}], {{{a}, {b}, {c}, {d}}};",
        to = in(_) to, a = in(_) a, b = in(_) b, c = in(_) c, d = in(_) d,
    );
}

/// Stores four values at `to` and `offset` bytes.
#[cube]
pub fn store_4<T: CubePrimitive>(to: *const T, #[comptime] offset: usize, a: f32, b: f32, c: f32, d: f32) {
    let a = read::<f32>(a);
    let b = read::<f32>(b);
    let c = read::<f32>(c);
    let d = read::<f32>(d);
    gpu_asm!(
        "st.global.v4.f32 [{to}+{offset}], {{{a}, {b}, {c}, {d}}};",
        to = in(_) to, a = in(_) a, b = in(_) b, c = in(_) c, d = in(_) d,
    );
}
