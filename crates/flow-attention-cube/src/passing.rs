//! Which tiles pass a block, and what of them it sees.
//!
//! Without a mask all tiles pass, in order: those of the first part of keys, then those of the second. With a mask a
//! list (`flow_attention_mask::MaskTiles`) names them. An entry of the list is the tile, then for each 64 rows of the
//! block a pattern: 0 sees all, 1 nothing, `p` from 2 on the bits of pattern `p - 2`, one for each register of each
//! thread.

use cubecl::prelude::*;

/// The pattern that sees nothing.
pub(crate) const NONE: u32 = 1;

/// Bits of a pattern for one thread, at most 128.
pub(crate) type Bits = Vector<u32, Const<4>>;

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
    /// Words of an entry.
    pub(crate) fn entry_words(self) -> usize {
        1 + self.units
    }

    /// Words of a pattern for a thread.
    pub(crate) fn pattern_words(self) -> usize {
        (self.columns / 2).div_ceil(32)
    }
}

/// Heads whose blocks start together when there is a list.
const HEADS_TOGETHER: u32 = 8;

/// The head of this block, and its place in the order of the list. For a grid of (places, heads, samples), whose blocks
/// start in that order.
///
/// With a list the places of [`HEADS_TOGETHER`] heads take turns, so that the device's last blocks are short ones of many
/// heads. Head by head it would end on the long ones of the last head: that cost packed sequences 5 to 10 % of their time.
/// All heads at once would not find their keys in the cache of the device. (The kernels on `mma.sync` go head by head: the
/// divisions made one of them spill.)
#[cube]
pub(crate) fn turn_of(#[comptime] shape: ListShape) -> (u32, u32) {
    if comptime!(shape.masked) {
        let at = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
        let places = CUBE_COUNT_X * HEADS_TOGETHER;
        let first_head = at / places * HEADS_TOGETHER;
        let rest = at % places;
        let left = CUBE_COUNT_Y - first_head;
        let heads = select(left < HEADS_TOGETHER, left, HEADS_TOGETHER.runtime());
        (first_head + rest % heads, rest / heads)
    } else {
        (CUBE_POS_Y, CUBE_POS_X)
    }
}

/// Which block of rows is at `place`, and start and length of its list; without a list `place` itself, 0 and `all`.
///
/// `offsets` holds for each place the block, then where its list begins and how long it is. Long lists come first.
#[cube]
pub(crate) fn list_of(
    offsets: &[u32],
    batch_start: u32,
    place: u32,
    all: u32,
    #[comptime] shape: ListShape,
) -> (u32, u32, u32) {
    if comptime!(shape.masked) {
        let at = ((batch_start + place) * 3) as usize;
        (offsets[at], offsets[at + 1], offsets[at + 2])
    } else {
        (place, 0u32.runtime(), all)
    }
}

/// The tile that passes at position `at` of the list.
#[cube]
pub(crate) fn tile_at(entries: &[u32], at: u32, #[comptime] shape: ListShape) -> u32 {
    if comptime!(shape.masked) {
        entries[(at * comptime!(shape.entry_words() as u32)) as usize]
    } else {
        at
    }
}

/// The tile at position `place` of a list of `count` tiles that begins at `begin`; the last one if there is none.
#[cube]
pub(crate) fn tile_ahead(
    entries: &[u32],
    begin: u32,
    place: u32,
    count: u32,
    #[comptime] shape: ListShape,
) -> u32 {
    if comptime!(shape.masked) {
        let place = select(place < count, place, count - 1);
        tile_at(entries, begin + place, shape)
    } else {
        place
    }
}

/// The pattern of unit `unit` at position `at`.
#[cube]
pub(crate) fn pattern_at(entries: &[u32], at: u32, unit: u32, #[comptime] shape: ListShape) -> u32 {
    if comptime!(shape.masked) {
        entries[(at * comptime!(shape.entry_words() as u32) + 1 + unit) as usize]
    } else {
        0u32.runtime()
    }
}

/// The pattern of unit `unit` at position `place` of a list of `count` tiles that begins at `begin`; the last one if there
/// is none. Read a tile ahead, so that no product waits for the list.
#[cube]
pub(crate) fn pattern_ahead(
    entries: &[u32],
    begin: u32,
    place: u32,
    count: u32,
    unit: u32,
    #[comptime] shape: ListShape,
) -> u32 {
    if comptime!(shape.masked) {
        let place = select(place < count, place, count - 1);
        pattern_at(entries, begin + place, unit, shape)
    } else {
        0u32.runtime()
    }
}

/// The bits of `pattern` for thread `thread` of its warpgroup.
#[cube]
pub(crate) fn bits_of(patterns: &[u32], pattern: u32, thread: u32, #[comptime] shape: ListShape) -> Bits {
    let mut bits = Bits::new(0u32);
    if comptime!(shape.masked) && pattern >= 2 {
        let words = comptime!(shape.pattern_words() as u32);
        let at = ((pattern - 2) * 128 + thread) * words;
        #[unroll]
        for w in 0..comptime!(shape.pattern_words()) {
            bits.insert(w, patterns[(at + comptime!(w as u32)) as usize]);
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
    if comptime!(shape.masked) && pattern != 0 {
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
