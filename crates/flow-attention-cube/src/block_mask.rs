//! The block mask as kernels read it: the tiles that a block visits, and the partial mask of each.
//!
//! Without a mask a block visits all tiles, in order: those of the first segment of keys, then those of the second. With a mask a
//! list (`flow_attention_mask::MaskTiles`) names them. The list has for each tile and each 64 rows of the block an entry: the tile, and
//! a partial mask: 0 sees all, 1 nothing, `p` from 2 on the bits of partial mask `p - 2`, one for each register of each thread.

use cubecl::prelude::*;
pub(crate) use flow_attention_mask::NONE;
use flow_attention_mask::{ALL, FIRST_PARTIAL, partial_mask_words};

/// Tiles behind the last list that have entries, so that kernels read ahead without checking for the end of their list.
pub(crate) const READ_AHEAD: usize = 4;

/// Half of a [`WorkTile`].
pub(crate) type WorkTileHalf = Vector<u32, Const<4>>;

/// Tiles that a [`WorkTile`] names.
pub(crate) const PREFETCHED: usize = 4;

/// A tile, and what 64 rows see of it.
pub(crate) type BlockMaskEntry = Vector<u32, Const<2>>;

/// Bits of a partial mask for one thread, at most 128.
pub(crate) type Bits = Vector<u32, Const<4>>;

/// A word of the partial masks.
pub(crate) type MaskWord = Vector<u32, Const<1>>;

/// Words of a partial mask that a thread loads at once, for tiles of `columns` columns: the widest load that divides its words.
pub(crate) fn words_per_load(columns: usize) -> usize {
    1 << partial_mask_words(columns).trailing_zeros().min(2)
}

/// Shape of a block mask, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockMaskShape {
    /// Whether there is a list.
    pub masked: bool,
    /// Row groups of 64 rows of a block.
    pub row_groups: usize,
    /// Columns of a tile.
    pub columns: usize,
}

impl BlockMaskShape {
    /// Words of a partial mask for a thread.
    pub(crate) fn partial_mask_words(self) -> usize {
        partial_mask_words(self.columns)
    }
}

/// The work of one block.
#[derive(CubeType)]
pub(crate) struct WorkTile {
    /// Sample of the batch.
    pub sample: u32,
    /// Head; of keys, where keys are stationary.
    pub head: u32,
    /// Index of the block of stationary rows.
    pub block: u32,
    /// First entry of its list.
    pub begin: u32,
    /// Tiles of the list.
    pub tiles: u32,
    /// The first of them, from the beginning again if there are fewer.
    pub prefetched: WorkTileHalf,
}

/// Work tile `at`. The host has sorted them ([`launch_order`](crate::launch_order)), so a block reads its own by its position.
#[cube]
pub(crate) fn work_tile_at(work_tiles: &[WorkTileHalf], at: u32) -> WorkTile {
    let of = work_tiles[(2 * at) as usize];
    WorkTile {
        sample: of.extract(0usize) >> 16u32,
        head: of.extract(0usize) & 0xFFFFu32,
        block: of.extract(1usize),
        begin: of.extract(2usize),
        tiles: of.extract(3usize),
        prefetched: work_tiles[(2 * at + 1) as usize],
    }
}

/// The number of this block in the order in which those of a grid start, of (blocks, heads, samples).
#[cube]
pub(crate) fn block_number() -> u32 {
    (CUBE_POS_Z * CUBE_COUNT_Y + CUBE_POS_Y) * CUBE_COUNT_X + CUBE_POS_X
}

/// This block's work tile; without a list the block, the head and the sample of its position in the grid, with all `all` tiles.
#[cube]
pub(crate) fn work_tile_of(
    work_tiles: &[WorkTileHalf],
    all: u32,
    #[comptime] shape: BlockMaskShape,
) -> WorkTile {
    if comptime!(shape.masked) {
        work_tile_at(work_tiles, block_number())
    } else {
        WorkTile {
            sample: CUBE_POS_Z,
            head: CUBE_POS_Y,
            block: CUBE_POS_X,
            begin: 0u32.runtime(),
            tiles: all,
            prefetched: WorkTileHalf::new(0u32),
        }
    }
}

/// The tile at position `number` of a list, below [`PREFETCHED`].
#[cube]
pub(crate) fn prefetched_tile(
    prefetched: WorkTileHalf,
    #[comptime] number: usize,
    #[comptime] shape: BlockMaskShape,
) -> u32 {
    if comptime!(shape.masked) {
        prefetched.extract(number)
    } else {
        comptime!(number as u32).runtime()
    }
}

/// The tile at position `at` of the lists, and what row group `row_group` sees of it.
///
/// Up to [`READ_AHEAD`] positions behind the end of a list may be asked for. What is there is no tile of the list.
#[cube]
pub(crate) fn entry_at(
    entries: &[BlockMaskEntry],
    at: u32,
    row_group: u32,
    #[comptime] shape: BlockMaskShape,
) -> (u32, u32) {
    if comptime!(shape.masked) {
        let entry = entries[(at * comptime!(shape.row_groups as u32) + row_group) as usize];
        (entry.extract(0usize), entry.extract(1usize))
    } else {
        (at, ALL.runtime())
    }
}

/// The tile at position `at`.
#[cube]
pub(crate) fn tile_at(entries: &[BlockMaskEntry], at: u32, #[comptime] shape: BlockMaskShape) -> u32 {
    let (tile, _) = entry_at(entries, at, 0u32.runtime(), shape);
    tile
}

/// The partial mask of row group `row_group` at position `at`.
#[cube]
pub(crate) fn partial_mask_at(
    entries: &[BlockMaskEntry],
    at: u32,
    row_group: u32,
    #[comptime] shape: BlockMaskShape,
) -> u32 {
    let (_, partial_mask) = entry_at(entries, at, row_group, shape);
    partial_mask
}

/// The bits of `partial_mask` for thread `thread` of its warpgroup. A load reads `W` words, which divide a thread's words.
#[cube]
pub(crate) fn mask_bits<W: Size>(
    partial_masks: &[Vector<u32, W>],
    partial_mask: u32,
    thread: u32,
    #[comptime] shape: BlockMaskShape,
) -> Bits {
    let mut bits = Bits::new(0u32);
    if comptime!(shape.masked) && partial_mask >= FIRST_PARTIAL {
        let width = W::value();
        let reads = comptime!(shape.partial_mask_words() / width);
        let at = (partial_mask * 128 + thread) * comptime!(reads as u32)
            - comptime!(128 * FIRST_PARTIAL * reads as u32);
        #[unroll]
        for r in 0..reads {
            let words = partial_masks[(at + comptime!(r as u32)) as usize];
            #[unroll]
            for w in 0..width {
                bits.insert(comptime!(r * width + w), words.extract(w));
            }
        }
    }
    bits
}

/// Masked scores become minus infinity.
#[cube]
pub(crate) fn apply_mask<N: Size>(
    scores: Vector<f32, N>,
    partial_mask: u32,
    bits: Bits,
    #[comptime] shape: BlockMaskShape,
) -> Vector<f32, N> {
    let mut out = scores;
    if comptime!(shape.masked) && partial_mask != ALL {
        #[unroll]
        for i in 0..comptime!(shape.columns / 2) {
            let bit = bits.extract(comptime!(i / 32)) & comptime!(1u32 << (i % 32));
            out.insert(i, select(bit != 0, scores.extract(i), -f32::INFINITY));
        }
    }
    out
}

/// Rows of tile `tile` that exist, of `first` rows in the first segment and `second` in the second; and the tile's first row
/// within its segment.
#[cube]
pub(crate) fn tile_rows_in_segment(
    tile: u32,
    first: u32,
    second: u32,
    #[comptime] columns: usize,
    #[comptime] two_segments: bool,
) -> (u32, u32) {
    let tile_rows = comptime!(columns as u32);
    let row = tile * tile_rows;
    if comptime!(two_segments) {
        let first_tiles = first.div_ceil(tile_rows);
        if tile < first_tiles {
            (first - row, row)
        } else {
            let row = row - first_tiles * tile_rows;
            (second - row, row)
        }
    } else {
        (first - row, row)
    }
}
