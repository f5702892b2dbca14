//! Tensors, masks and statistics on the device, as the kernels for tensor cores take them.

use crate::block_mask::{PREFETCHED, READ_AHEAD};
use crate::launch_order::{Grid, GridBlock};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_mask::MaskTiles;
use flow_cube::lasting::lasting_words;

/// A tensor `[B, H, S, D]` on the device, with its strides in elements; the last one is 1, the others multiples of 8.
#[derive(Clone, Debug)]
pub struct Heads {
    /// Where it is.
    pub handle: Handle,
    /// `[B, H, S, D]`.
    pub shape: [usize; 4],
    /// Elements from one to the next, of each axis.
    pub strides: [usize; 4],
}

impl Heads {
    /// A tensor without gaps.
    pub fn contiguous(handle: Handle, shape: [usize; 4]) -> Self {
        let [_, heads, rows, channels] = shape;
        let strides = [heads * rows * channels, rows * channels, channels, 1];
        Self {
            handle,
            shape,
            strides,
        }
    }

    /// Elements from the first to the last, with both.
    pub(crate) fn elements(&self) -> usize {
        1 + self
            .shape
            .iter()
            .zip(self.strides)
            .map(|(n, s)| (n - 1) * s)
            .sum::<usize>()
    }
}

/// Keys and values of one segment.
#[derive(Clone, Copy, Debug)]
pub struct KvSegment<'a> {
    /// Keys.
    pub k: &'a Heads,
    /// Values.
    pub v: &'a Heads,
}

/// A mask on the device: what each block has to do, which tiles pass it, and what of them is seen.
#[derive(Clone, Debug)]
pub struct BlockMask {
    work_tiles: (Handle, usize),
    entries: (Handle, usize),
    partial_masks: (Handle, usize),
}

impl BlockMask {
    /// Uploads what a mask was compiled to, for `grid`.
    pub fn new(client: &Client, tiles: &MaskTiles, grid: Grid) -> Self {
        let [work_tiles, entries] = Self::words(tiles, grid);
        Self::upload(client, [&work_tiles, &entries, &tiles.partial_masks])
    }

    /// Work tiles, and entries.
    ///
    /// A work tile has eight words: the head and, in the upper half, the sample; the block of rows; where its entries begin, how many tiles there are, and
    /// the first of these. Turns are in the order in which blocks start ([`Grid`]). For each tile there is an entry of two words for each
    /// 64 rows of a block: the tile, and the number of a partial mask. Behind the last list are entries that kernels read ahead and do not use.
    pub fn words(tiles: &MaskTiles, grid: Grid) -> [Vec<u32>; 2] {
        let row_groups = tiles.tiling.row_groups_per_block;
        let mut work_tiles = Vec::with_capacity(8 * grid.samples * grid.heads * tiles.row_blocks);
        for GridBlock { sample, head, block } in grid.order(tiles) {
            let list = tiles.list(sample, block);
            let numbers = [sample << 16 | head, block, list.start, list.len()];
            work_tiles.extend(numbers.map(|number| number as u32));
            let tile = |number: usize| tiles.entries[number * (1 + row_groups)];
            work_tiles.extend((0..PREFETCHED).map(|prefetched| match list.len() {
                0 => 0,
                length => tile(list.start + prefetched % length),
            }));
        }
        let tile_count = tiles.entries.len() / (1 + row_groups);
        let mut entries = Vec::with_capacity(2 * row_groups * (tile_count + READ_AHEAD));
        for entry in tiles.entries.chunks(1 + row_groups) {
            for partial_mask in &entry[1..] {
                entries.extend([entry[0], *partial_mask]);
            }
        }
        entries.resize(entries.len() + 2 * row_groups * READ_AHEAD, 0);
        [work_tiles, entries]
    }

    fn upload(client: &Client, words: [&[u32]; 3]) -> Self {
        let [work_tiles, entries, partial_masks] = words.map(|words| uploaded_words(client, words));
        Self {
            work_tiles,
            entries,
            partial_masks,
        }
    }

    /// What kernels without a mask get.
    pub fn none(client: &Client) -> Self {
        Self::upload(client, [&[]; 3])
    }

    /// Work tiles, entries and partial masks.
    pub(crate) fn arguments(&self) -> [BufferArg; 3] {
        // SAFETY: each buffer is as long as it was uploaded, in words.
        let of = |(handle, length): &(Handle, usize), width| unsafe {
            BufferArg::from_raw_parts(handle.clone(), length / width)
        };
        [
            of(&self.work_tiles, 4),
            of(&self.entries, 2),
            of(&self.partial_masks, 1),
        ]
    }
}

/// Words on the device, and how many there are: some, for a kernel that reads none.
pub(crate) fn uploaded_words(client: &Client, words: &[u32]) -> (Handle, usize) {
    let words = if words.is_empty() { &[0; 8] } else { words };
    (lasting_words(client, words), words.len())
}

/// Rows of `lse` and of `delta` for a head of `queries` queries.
pub fn lse_rows(queries: usize) -> usize {
    queries.next_multiple_of(128)
}

/// What scores of forward are made from, beside keys.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'a> {
    /// Queries.
    pub q: &'a Heads,
    /// Scale of the scores.
    pub scale: f32,
    /// What is added to the scaled scores, if anything is: `[H, S + T - 1]` in f32 without gaps, in which key `j` of query `i` has the
    /// place `j - i + S - 1`.
    pub bias: Option<&'a Handle>,
}

/// Operands of backward.
#[derive(Clone, Copy, Debug)]
pub struct Backward<'a> {
    /// Queries.
    pub q: &'a Heads,
    /// Output of forward.
    pub o: &'a Heads,
    /// Gradient of the output.
    pub d_o: &'a Heads,
    /// Log-sum-exp of forward, `[B, H, lse_rows]`.
    pub lse: &'a Handle,
    /// Scratch in f32: sums over channels of `d_o ∘ o`, `[B, H, lse_rows]`, which the kernel for queries writes; then sums of the
    /// kernel for keys, if it takes queries in splits.
    pub delta: &'a Handle,
    /// Scale of the scores.
    pub scale: f32,
}

#[cfg(test)]
mod tests {
    use super::BlockMask;
    use crate::block_mask::{PREFETCHED, READ_AHEAD};
    use crate::launch_order::Grid;
    use flow_attention_mask::{Mask, MaskTiles, Side, Sizes, Tiling};

    #[test]
    fn a_turn_names_its_list_and_the_first_tiles_of_it_again_and_again() {
        let mask = Mask::packed(vec![0, 10, 700, 1000], vec![0, 10, 700, 1000]).expect("a mask");
        let tiling = Tiling {
            side: Side::Queries,
            row_groups_per_block: 2,
            columns: 64,
        };
        let tiles = MaskTiles::new(&mask, Sizes::new(2, 1000, 1000), tiling).expect("a mask that fits");
        let grid = Grid {
            samples: 2,
            heads: 3,
            streamed_bytes: 1,
        };
        let [work_tiles, entries] = BlockMask::words(&tiles, grid);
        assert_eq!(work_tiles.len(), 8 * 2 * 3 * tiles.row_blocks);
        let tile = |entry: u32| entries[4 * entry as usize];
        for work_tile in work_tiles.chunks(8) {
            let [_, block, begin, length] = [0, 1, 2, 3].map(|at| work_tile[at]);
            assert_eq!(begin, tiles.offsets[block as usize]);
            assert_eq!(begin + length, tiles.offsets[block as usize + 1]);
            assert!(work_tile[0] >> 16 < 2 && work_tile[0] & 0xFFFF < 3 && length > 0);
            for prefetched in 0..PREFETCHED as u32 {
                assert_eq!(
                    work_tile[4 + prefetched as usize],
                    tile(begin + prefetched % length)
                );
            }
        }
        // Kernels read that far behind the last list.
        let last = tiles.offsets[tiles.row_blocks] as usize;
        assert_eq!(entries.len(), 4 * (last + READ_AHEAD));
    }
}
