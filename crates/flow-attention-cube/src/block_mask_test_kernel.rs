//! A test kernel: writes what a row group of 64 rows sees of each tile of a block mask. Tests execute it without a GPU.

use crate::block_mask::{BlockMaskShape, apply_mask, entry_at, mask_bits, prefetched_tile, work_tile_at};
use crate::wgmma::arguments::BlockMaskArgs;
use cubecl::prelude::*;

/// Writes what the block at the place of this one has: to `tiles`, from `CUBE_POS_X` times `stride` on, its number, its list's first tile, how many
/// there are, and the tiles as they pass; to `results` what each thread of row group `row_group` of `row_groups` holds of each tile, 1 where it sees and minus
/// infinity where it does not.
#[cube(launch_unchecked)]
pub fn block_mask_test_kernel<N: Size, W: Size>(
    mask: &BlockMaskArgs<W>,
    tiles: &mut [u32],
    results: &mut [f32],
    stride: u32,
    row_group: u32,
    #[comptime] row_groups: usize,
    #[comptime] columns: usize,
    #[define(N, W)] _vectors: [usize; 2],
) {
    let shape = comptime!(BlockMaskShape {
        masked: true,
        row_groups,
        columns
    });
    let work_tile = work_tile_at(&mask.work_tiles, CUBE_POS_X);
    let (begin, count) = (work_tile.begin, work_tile.tiles);
    let at = CUBE_POS_X * stride;
    tiles[at as usize] = work_tile.block;
    tiles[(at + 1) as usize] = prefetched_tile(work_tile.prefetched, 0usize, shape);
    tiles[(at + 2) as usize] = count;
    for place in 0..count {
        let (tile, partial_mask) = entry_at(&mask.entries, begin + place, row_group, shape);
        tiles[(at + 3 + place) as usize] = tile;
        let bits = mask_bits::<W>(&mask.partial_masks, partial_mask, UNIT_POS, shape);
        let seen = apply_mask::<N>(Vector::new(1.0f32), partial_mask, bits, shape);
        let to = ((at + place) * 128 + UNIT_POS) * comptime!((columns / 2) as u32);
        #[unroll]
        for i in 0..comptime!(columns / 2) {
            results[(to + comptime!(i as u32)) as usize] = seen.extract(i);
        }
    }
}
