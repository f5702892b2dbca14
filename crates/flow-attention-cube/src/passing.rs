//! Which tiles pass a block, and what of them it sees.
//!
//! Without a mask all tiles pass, in order: those of the first part of keys, then those of the second. With a mask a
//! list (`flow_attention_mask::MaskTiles`) names them. The list has for each tile and each 64 rows of the block an entry: the tile, and
//! a pattern: 0 sees all, 1 nothing, `p` from 2 on the bits of pattern `p - 2`, one for each register of each thread.

use cubecl::prelude::*;
pub(crate) use flow_attention_mask::NONE;
use flow_attention_mask::{ALL, FIRST_PATTERN, pattern_words};

/// Entries of as many tiles stand behind the last list, so that kernels read ahead without a look at where their list ends.
pub(crate) const BEHIND: usize = 4;

/// Half of a [`Turn`].
pub(crate) type TurnHalf = Vector<u32, Const<4>>;

/// Tiles that a [`Turn`] names.
pub(crate) const EARLY: usize = 4;

/// A tile, and what 64 rows see of it.
pub(crate) type Entry = Vector<u32, Const<2>>;

/// Bits of a pattern for one thread, at most 128.
pub(crate) type Bits = Vector<u32, Const<4>>;

/// A word of the patterns.
pub(crate) type Word = Vector<u32, Const<1>>;

/// How many words of a thread's part of a pattern are read at once, for tiles of `columns` columns: as many as make it up evenly.
pub(crate) fn words_at_once(columns: usize) -> usize {
    1 << pattern_words(columns).trailing_zeros().min(2)
}

/// What a list needs besides its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListShape {
    /// Whether there is a list.
    pub masked: bool,
    /// Units of 64 rows of a block.
    pub units: usize,
    /// Columns of a tile.
    pub columns: usize,
}

impl ListShape {
    /// Words of a pattern for a thread.
    pub(crate) fn pattern_words(self) -> usize {
        pattern_words(self.columns)
    }
}

/// What a block has to do.
#[derive(CubeType)]
pub(crate) struct Turn {
    /// Sample of the batch.
    pub sample: u32,
    /// Head; of keys, where keys stay.
    pub head: u32,
    /// Which block of rows stays.
    pub block: u32,
    /// Where its list begins.
    pub begin: u32,
    /// How many tiles that has.
    pub tiles: u32,
    /// The first of them, from the beginning again if there are fewer.
    pub early: TurnHalf,
}

/// Number `at` of the turns. The host has put them in order ([`order`](crate::order)), so that no block calculates which is its.
#[cube]
pub(crate) fn turn_at(turns: &[TurnHalf], at: u32) -> Turn {
    let of = turns[(2 * at) as usize];
    Turn {
        sample: of.extract(0usize) >> 16u32,
        head: of.extract(0usize) & 0xFFFFu32,
        block: of.extract(1usize),
        begin: of.extract(2usize),
        tiles: of.extract(3usize),
        early: turns[(2 * at + 1) as usize],
    }
}

/// The number of this block in the order in which those of a grid start, of (blocks, heads, samples).
#[cube]
pub(crate) fn block_number() -> u32 {
    (CUBE_POS_Z * CUBE_COUNT_Y + CUBE_POS_Y) * CUBE_COUNT_X + CUBE_POS_X
}

/// This block's turn; without a list the block, the head and the sample of its position in the grid, which all `all` tiles pass.
#[cube]
pub(crate) fn turn_of(turns: &[TurnHalf], all: u32, #[comptime] shape: ListShape) -> Turn {
    if comptime!(shape.masked) {
        turn_at(turns, block_number())
    } else {
        Turn {
            sample: CUBE_POS_Z,
            head: CUBE_POS_Y,
            block: CUBE_POS_X,
            begin: 0u32.runtime(),
            tiles: all,
            early: TurnHalf::new(0u32),
        }
    }
}

/// The tile at position `number` of a list, below [`EARLY`].
#[cube]
pub(crate) fn early_tile(early: TurnHalf, #[comptime] number: usize, #[comptime] shape: ListShape) -> u32 {
    if comptime!(shape.masked) {
        early.extract(number)
    } else {
        comptime!(number as u32).runtime()
    }
}

/// The tile that passes at position `at` of the lists, and what unit `unit` sees of it.
///
/// Up to [`BEHIND`] positions behind the end of a list may be asked for. What is there is no tile of the list.
#[cube]
pub(crate) fn entry_at(entries: &[Entry], at: u32, unit: u32, #[comptime] shape: ListShape) -> (u32, u32) {
    if comptime!(shape.masked) {
        let entry = entries[(at * comptime!(shape.units as u32) + unit) as usize];
        (entry.extract(0usize), entry.extract(1usize))
    } else {
        (at, ALL.runtime())
    }
}

/// The tile that passes at position `at`.
#[cube]
pub(crate) fn tile_at(entries: &[Entry], at: u32, #[comptime] shape: ListShape) -> u32 {
    let (tile, _) = entry_at(entries, at, 0u32.runtime(), shape);
    tile
}

/// The pattern of unit `unit` at position `at`.
#[cube]
pub(crate) fn pattern_at(entries: &[Entry], at: u32, unit: u32, #[comptime] shape: ListShape) -> u32 {
    let (_, pattern) = entry_at(entries, at, unit, shape);
    pattern
}

/// The bits of `pattern` for thread `thread` of its warpgroup. `W` words of a thread's part are read at once, and make it up.
#[cube]
pub(crate) fn bits_of<W: Size>(
    patterns: &[Vector<u32, W>],
    pattern: u32,
    thread: u32,
    #[comptime] shape: ListShape,
) -> Bits {
    let mut bits = Bits::new(0u32);
    if comptime!(shape.masked) && pattern >= FIRST_PATTERN {
        let width = W::value();
        let reads = comptime!(shape.pattern_words() / width);
        let at = (pattern * 128 + thread) * comptime!(reads as u32)
            - comptime!(128 * FIRST_PATTERN * reads as u32);
        #[unroll]
        for r in 0..reads {
            let words = patterns[(at + comptime!(r as u32)) as usize];
            #[unroll]
            for w in 0..width {
                bits.insert(comptime!(r * width + w), words.extract(w));
            }
        }
    }
    bits
}

/// Scores that are not seen become minus infinity.
#[cube]
pub(crate) fn hide<N: Size>(
    scores: Vector<f32, N>,
    pattern: u32,
    bits: Bits,
    #[comptime] shape: ListShape,
) -> Vector<f32, N> {
    let mut out = scores;
    if comptime!(shape.masked) && pattern != ALL {
        #[unroll]
        for i in 0..comptime!(shape.columns / 2) {
            let bit = bits.extract(comptime!(i / 32)) & comptime!(1u32 << (i % 32));
            out.insert(i, select(bit != 0, scores.extract(i), -f32::INFINITY));
        }
    }
    out
}

/// Rows of tile `tile` that exist, of `first` rows in the first part and `second` in the second; and the tile's first row
/// within its part.
#[cube]
pub(crate) fn rows_of(
    tile: u32,
    first: u32,
    second: u32,
    #[comptime] columns: usize,
    #[comptime] two_parts: bool,
) -> (u32, u32) {
    let tile_rows = comptime!(columns as u32);
    let row = tile * tile_rows;
    if comptime!(two_parts) {
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
