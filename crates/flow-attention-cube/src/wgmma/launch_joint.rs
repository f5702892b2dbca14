//! Backward by the [joint kernel](super::joint): its scratch, and its launches.

use super::BackwardTiles;
use super::joint::{TICKETS, joint};
use super::joint_ends::{BEGIN_ROWS, THREADS, begin, blocks_of_finish, finish};
use super::launch::map;
use crate::call::Call;
use crate::tensors::{Backward, Heads, Part, lse_rows};
use cubecl::prelude::*;

/// Multiprocessors of an H100 (NVIDIA H100 datasheet, SXM). With others the table's choices are less good.
pub(super) const MULTIPROCESSORS: usize = 132;

/// How often all multiprocessors together take blocks of the same heads, at most, before they go on to the next heads.
const WAVES: usize = 8;

/// Heads that take turns, at most.
const MOST_TOGETHER: usize = 12;

/// Where things are in the scratch of a call, in f32 or u32 words.
struct Scratch {
    /// Words of `delta`, which comes first.
    delta: usize,
    /// Words of the counters.
    counters: usize,
    /// Words of the sums.
    sums: usize,
}

impl Scratch {
    fn of(call: &Call, tiles: &BackwardTiles) -> Self {
        let rows = call.batch * call.heads * lse_rows(call.queries);
        let counters = TICKETS + call.batch * call.kv_heads * blocks_of(call, tiles) * tiles.warpgroups;
        Self {
            delta: rows,
            counters: counters.next_multiple_of(128),
            sums: rows * call.head_dim,
        }
    }
}

/// Bytes of scratch: `delta`, counters, and the gradient of queries in f32.
pub fn scratch_bytes(call: &Call, tiles: &BackwardTiles) -> usize {
    let Scratch {
        delta,
        counters,
        sums,
    } = Scratch::of(call, tiles);
    4 * (delta + counters + sums)
}

/// How many heads, of all samples, take turns in the order of blocks. A block adds to a tile a turn and a half after the one
/// before it of its head; so blocks of a head that start together end up one behind another, and the last of them has waited
/// that long for each of the others. The more heads, the shorter the line. But blocks drift apart with every wave, and what
/// many heads read and add to leaves the device's cache: 31,200 tokens take 11 % more time with twelve heads than with
/// four, 12,480 tokens 20 % more with one than with twelve.
fn heads_together(call: &Call, tiles: &BackwardTiles) -> usize {
    let heads = call.batch * call.kv_heads;
    let blocks = blocks_of(call, tiles);
    (WAVES * MULTIPROCESSORS / blocks)
        .clamp(1, MOST_TOGETHER)
        .min(heads)
}

/// Blocks of keys of a head, of all parts.
fn blocks_of(call: &Call, tiles: &BackwardTiles) -> usize {
    call.keys.iter().map(|n| n.div_ceil(tiles.resident())).sum()
}

/// Launches the kernels: `dq`, and `dk` and `dv` of each part. The operands' `delta` is scratch of [`scratch_bytes`].
pub fn launch_joint(
    client: &Client,
    call: &Call,
    of: Backward<'_>,
    parts: &[Part<'_>],
    dq: &Heads,
    d_parts: &[[&Heads; 2]],
    tiles: BackwardTiles,
) {
    let [batch, heads, queries, head_dim] = of.q.shape;
    let rows = lse_rows(queries);
    let scratch = Scratch::of(call, &tiles);
    let part_of = |from: usize| of.delta.clone().offset_start(4 * from as u64);
    let delta = |width: usize| unsafe { BufferArg::from_raw_parts(part_of(0), scratch.delta / width) };
    let counters = || unsafe { BufferArg::from_raw_parts(part_of(scratch.delta), scratch.counters) };
    let sums =
        || unsafe { BufferArg::from_raw_parts(part_of(scratch.delta + scratch.counters), scratch.sums / 4) };
    let eights = |x: &Heads, axis: usize| (x.strides[axis] / 8) as u32;
    let buffer = |x: &Heads| unsafe { BufferArg::from_raw_parts(x.handle.clone(), x.elements().div_ceil(8)) };
    let grid = |blocks: usize| CubeCount::Static(blocks as u32, heads as u32, batch as u32);
    unsafe {
        begin::launch_unchecked(
            client,
            grid(rows / BEGIN_ROWS),
            CubeDim::new_1d(THREADS),
            buffer(of.o),
            buffer(of.d_o),
            delta(1),
            counters(),
            eights(of.o, 0),
            eights(of.o, 1),
            eights(of.o, 2),
            eights(of.d_o, 0),
            eights(of.d_o, 1),
            eights(of.d_o, 2),
            queries as u32,
            scratch.counters as u32,
            head_dim,
            tiles.factor,
        );
    }
    let map = |x: &Heads, rows| map(x, rows, tiles.factor);
    let all_blocks = blocks_of(call, &tiles);
    let mut turns = 0;
    for (index, (part, [dk, dv])) in parts.iter().zip(d_parts).enumerate() {
        let [_, kv_heads, keys, _] = part.k.shape;
        let blocks = keys.div_ceil(tiles.resident());
        unsafe {
            joint::launch_unchecked(
                client,
                CubeCount::Static((blocks * kv_heads * batch) as u32, 1, 1),
                CubeDim::new_1d(tiles.threads()),
                map(of.q, tiles.passing),
                map(part.k, tiles.resident()),
                map(part.v, tiles.resident()),
                map(of.d_o, tiles.passing),
                map(dk, 64),
                map(dv, 64),
                BufferArg::from_raw_parts(of.lse.clone(), scratch.delta / 2),
                delta(2),
                sums(),
                counters(),
                index as u32,
                turns as u32,
                all_blocks as u32,
                blocks as u32,
                kv_heads as u32,
                batch as u32,
                heads_together(call, &tiles) as u32,
                queries as u32,
                keys as u32,
                rows as u32,
                (heads / kv_heads) as u32,
                of.scale * std::f32::consts::LOG2_E,
                of.scale,
                tiles,
                tiles.factor.element(),
                tiles.joint_vectors(),
            );
        }
        turns += blocks;
    }
    unsafe {
        finish::launch_unchecked(
            client,
            grid(blocks_of_finish(rows, head_dim)),
            CubeDim::new_1d(THREADS),
            sums(),
            buffer(dq),
            eights(dq, 0),
            eights(dq, 1),
            eights(dq, 2),
            queries as u32,
            rows as u32,
            of.scale,
            head_dim,
            tiles.factor,
        );
    }
}
