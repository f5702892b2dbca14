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

/// A block of rows, where its list begins, how many tiles that has, and the first of them.
pub(crate) type Place = Vector<u32, Const<4>>;

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

/// In which order a grid goes through the places of a list, and through heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Heads whose places take turns.
    pub heads_together: u32,
    /// Places at the end of the list that come last of all heads.
    pub late_places: u32,
}

/// The head of this block, and its place in the order of the list. For a grid of (places, heads, samples), whose blocks
/// start in that order.
///
/// With a list the places of `heads_together` heads take turns, but the last `late_places` of them come when all heads are done with the
/// others; see [`Order`]. (The kernels on `mma.sync` go head by head: the divisions made one of them spill.)
#[cube]
pub(crate) fn turn_of(heads_together: u32, late_places: u32, #[comptime] shape: ListShape) -> (u32, u32) {
    if comptime!(shape.masked) {
        let at = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
        let early_places = CUBE_COUNT_X - late_places;
        let early = early_places * CUBE_COUNT_Y;
        let late = at >= early;
        let together = select(late, CUBE_COUNT_Y, heads_together);
        let at = select(late, at - early, at);
        let places = select(late, late_places, early_places) * together;
        let first_head = at / places * together;
        let rest = at % places;
        let left = CUBE_COUNT_Y - first_head;
        let heads = select(left < together, left, together);
        let place = rest / heads;
        (
            first_head + rest % heads,
            select(late, early_places + place, place),
        )
    } else {
        (CUBE_POS_Y, CUBE_POS_X)
    }
}

impl Order {
    /// Head by head.
    pub(crate) const BY_HEAD: Self = Self {
        heads_together: 1,
        late_places: 0,
    };

    /// For lists of `lengths` tiles in the order of their places, one slice for each sample, where `bytes` pass the blocks of a head.
    ///
    /// Two things decide how long a grid takes. What passes the blocks that run at a time should find room in the cache of the device, so
    /// few heads take turns. And the device's last blocks should be short ones, which those of many heads are: head by head the grid ends on
    /// the long blocks of the last head, which costs packed sequences 5 to 10 % of their time. So the short places of all heads come last, if
    /// there are some. `bench/attention_cache.py` models both: it is right to 5 % about what `ncu` counts of an H100's memory.
    pub(crate) fn of<'a>(lengths: impl Iterator<Item = &'a [u32]>, bytes: usize) -> Self {
        /// What may pass.
        const ROOM: usize = 8 << 20;
        const MOST: usize = 8;
        const LEAST: usize = 2;
        let fit = (ROOM / bytes.max(1)).clamp(LEAST, MOST);
        Self {
            heads_together: 1 << fit.ilog2(),
            late_places: lengths.map(late_places).min().unwrap_or(0) as u32,
        }
    }
}

/// How many of a sample's places come late: the last ones with at most half the tiles of the first, which together have at most a
/// sixteenth of all tiles. Not all of them.
fn late_places(lengths: &[u32]) -> usize {
    let all: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
    let longest = lengths.first().copied().unwrap_or(0);
    let mut tiles = 0;
    (lengths.iter().rev())
        .take_while(|length| {
            tiles += u64::from(**length);
            2 * **length <= longest && 16 * tiles <= all
        })
        .count()
        .min(lengths.len().saturating_sub(1))
}

/// Which block of rows is at `place`, start and length of its list, and the list's first tile; without a list `place` itself, 0, `all`,
/// and 0. `places` begin with those of the sample. Long lists come first.
#[cube]
pub(crate) fn list_of(
    places: &[Place],
    batch_start: u32,
    place: u32,
    all: u32,
    #[comptime] shape: ListShape,
) -> (u32, u32, u32, u32) {
    if comptime!(shape.masked) {
        let of = places[(batch_start + place) as usize];
        (
            of.extract(0usize),
            of.extract(1usize),
            of.extract(2usize),
            of.extract(3usize),
        )
    } else {
        (place, 0u32.runtime(), all, 0u32.runtime())
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

/// The tile at position `number` of the list that begins at `begin`, of which `first` is the first.
#[cube]
pub(crate) fn early_tile(
    entries: &[Entry],
    begin: u32,
    first: u32,
    #[comptime] number: usize,
    #[comptime] shape: ListShape,
) -> u32 {
    if comptime!(number == 0) {
        first
    } else {
        tile_at(entries, begin + comptime!(number as u32), shape)
    }
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

#[cfg(test)]
mod tests {
    use super::Order;

    fn order(lengths: &[&[u32]], rows: usize, channels: usize) -> Order {
        Order::of(lengths.iter().copied(), 2 * rows * channels * 2)
    }

    #[test]
    fn heads_that_take_turns_find_room_in_the_cache_and_two_always_do() {
        let together = |rows, channels| order(&[&[4, 4]], rows, channels).heads_together;
        assert_eq!(together(8192, 128), 2);
        assert_eq!(together(8192, 64), 4);
        assert_eq!(together(4096, 64), 8);
        assert_eq!(together(1_000_000, 256), 2);
        assert_eq!(together(0, 64), 8);
    }

    #[test]
    fn short_lists_come_late_where_there_are_some_and_they_are_little_of_the_work() {
        let late = |lengths: &[&[u32]]| order(lengths, 8192, 128).late_places;
        assert_eq!(late(&[&[100; 40]]), 0);
        let causal: Vec<u32> = (1..=64).rev().collect();
        // 1 + 2 + … + 15 of 2080.
        assert_eq!(late(&[&causal]), 15);
        assert_eq!(late(&[&[100, 100, 100, 50, 50, 10, 10]]), 2);
        assert_eq!(
            late(&[&[100, 100, 100, 100, 10, 10], &[100, 100, 100, 100, 100, 10]]),
            1
        );
        assert_eq!(late(&[&[100]]), 0);
        assert_eq!(late(&[&[0, 0, 0]]), 2);
        assert_eq!(late(&[]), 0);
    }
}
