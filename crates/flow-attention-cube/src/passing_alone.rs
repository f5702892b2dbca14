//! A mask's list, alone: what a unit of 64 rows sees of the tiles that pass it, written to memory. For tests, which execute it without a GPU.

use crate::passing::{Entry, ListShape, TurnHalf, bits_of, early_tile, entry_at, hide, turn_at};
use cubecl::prelude::*;

/// Writes what the block at the place of this one has: to `tiles`, from `CUBE_POS_X` times `stride` on, its number, its list's first tile, how many
/// there are, and the tiles as they pass; to `results` what each thread of unit `unit` of `units` holds of each tile, 1 where it sees and minus
/// infinity where it does not.
#[cube(launch_unchecked)]
pub fn passing_alone<N: Size, W: Size>(
    turns: &[TurnHalf],
    entries: &[Entry],
    patterns: &[Vector<u32, W>],
    tiles: &mut [u32],
    results: &mut [f32],
    stride: u32,
    unit: u32,
    #[comptime] units: usize,
    #[comptime] columns: usize,
    #[define(N, W)] _vectors: [usize; 2],
) {
    let shape = comptime!(ListShape {
        masked: true,
        units,
        columns
    });
    let turn = turn_at(turns, CUBE_POS_X);
    let (begin, count) = (turn.begin, turn.tiles);
    let at = CUBE_POS_X * stride;
    tiles[at as usize] = turn.block;
    tiles[(at + 1) as usize] = early_tile(turn.early, 0usize, shape);
    tiles[(at + 2) as usize] = count;
    for place in 0..count {
        let (tile, pattern) = entry_at(entries, begin + place, unit, shape);
        tiles[(at + 3 + place) as usize] = tile;
        let bits = bits_of::<W>(patterns, pattern, UNIT_POS, shape);
        let seen = hide::<N>(Vector::new(1.0f32), pattern, bits, shape);
        let to = ((at + place) * 128 + UNIT_POS) * comptime!((columns / 2) as u32);
        #[unroll]
        for i in 0..comptime!(columns / 2) {
            results[(to + comptime!(i as u32)) as usize] = seen.extract(i);
        }
    }
}
