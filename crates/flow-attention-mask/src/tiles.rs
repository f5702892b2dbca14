//! A mask compiled for a kernel: which tiles each block walks through, and what is allowed in each.

use crate::bits::Bits;
use crate::coverage::{Axis, Coverage, Tokens};
use crate::error::MaskError;
use crate::mask::{Bound, Mask, Sizes};
use crate::partial_masks::{PartialMasks, ROW_GROUP, ROW_GROUP_THREADS, partial_mask_words};
use std::ops::Range;

/// Everything in the tile is allowed.
pub const ALL: u32 = 0;

/// Nothing in the tile is allowed.
pub const NONE: u32 = 1;

/// The number of partial mask 0.
pub const FIRST_PARTIAL: u32 = 2;

/// What a kernel keeps while it walks through the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Rows are queries; tiles are of the keys of segment 0, then of those of segment 1, and none straddles.
    Queries,
    /// Rows are the keys of one segment; tiles are of queries.
    Keys {
        /// 0 or 1.
        segment: usize,
    },
}

/// How a kernel cuts its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    /// What is stationary.
    pub side: Side,
    /// Row groups of [`ROW_GROUP`] rows in a block.
    pub row_groups_per_block: usize,
    /// Columns of a tile; a multiple of 8, at most 256.
    pub columns: usize,
}

impl Tiling {
    /// Whether a kernel can have such tiles.
    fn check(self) -> Result<(), MaskError> {
        let Self {
            row_groups_per_block,
            columns,
            ..
        } = self;
        if columns == 0 || columns % 8 != 0 || columns > 256 {
            let (what, allowed) = ("the number of columns of a tile", "multiples of 8 up to 256");
            return Err(MaskError::Tiling {
                what,
                found: columns,
                allowed,
            });
        }
        if row_groups_per_block == 0 || row_groups_per_block > 16 {
            let (what, allowed) = ("the number of row groups in a block", "1 to 16");
            return Err(MaskError::Tiling {
                what,
                found: row_groups_per_block,
                allowed,
            });
        }
        Ok(())
    }

    /// What rows are, which rows there are, and the columns of each tile.
    fn ranges(self, sizes: Sizes) -> Result<Ranges, MaskError> {
        let [first, second] = sizes.kv_segments;
        let segments = [0..first, first..first + second];
        match self.side {
            Side::Queries => {
                let ranges = segments
                    .into_iter()
                    .flat_map(|segment| split_range(segment, self.columns));
                Ok(Ranges {
                    row_axis: Axis::Queries,
                    rows: 0..sizes.queries,
                    columns: ranges.collect(),
                })
            }
            Side::Keys { segment } => {
                let Some(rows) = segments.get(segment).cloned() else {
                    let (what, allowed) = ("the segment of keys", "0 and 1");
                    return Err(MaskError::Tiling {
                        what,
                        found: segment,
                        allowed,
                    });
                };
                let ranges = split_range(0..sizes.queries, self.columns);
                Ok(Ranges {
                    row_axis: Axis::Keys,
                    rows,
                    columns: ranges.collect(),
                })
            }
        }
    }
}

/// What a kernel's blocks and tiles are of.
struct Ranges {
    /// What rows are.
    row_axis: Axis,
    /// Which rows there are.
    rows: Range<usize>,
    /// The columns of each tile.
    columns: Vec<Range<usize>>,
}

/// How much work a mask leaves. Sums over the batch entries that have a mask of their own
/// ([`MaskTiles::mask_batches`]), for one head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pairs of a row and a column that are allowed.
    pub allowed_pairs: u64,
    /// Pairs there are.
    pub dense_pairs: u64,
    /// Tiles that blocks walk through.
    pub listed: u64,
    /// Tiles of row groups in which anything is allowed.
    pub tiles_visited: u64,
    /// Those in which not everything is, or that stick out of the tensor.
    pub tiles_partial: u64,
    /// Tiles of row groups that a full mask would visit.
    pub tiles_dense: u64,
}

/// A mask compiled for one kernel. The lists of words are never empty unless there are no rows, ready for upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskTiles {
    /// Where the list of row block `r` of batch entry `b` begins and ends, in entries:
    /// `offsets[b * mask_batch_stride + r]` and the next.
    pub offsets: Vec<u32>,
    /// Row blocks, or 0 if all batch entries have the same mask.
    pub mask_batch_stride: u32,
    /// For each listed tile `1 + row_groups_per_block` words: its index, and for each row group of the block [`ALL`], [`NONE`] or
    /// [`FIRST_PARTIAL`] plus the number of a partial mask. Indices ascend ([`whole_first`](Self::whole_first) aside). Every block has at least
    /// one entry.
    pub entries: Vec<u32>,
    /// Bit `i` of thread `t` of partial mask `p` is in word `(p * 128 + t) * partial_mask_words + i / 32`. One blank partial mask if
    /// there is none.
    pub partial_masks: Vec<u32>,
    /// Words of a thread's part of a partial mask.
    pub partial_mask_words: usize,
    /// Distinct partial masks.
    pub partial_mask_count: usize,
    /// Blocks of rows.
    pub row_blocks: usize,
    /// Tiles of the other side.
    pub column_tiles: usize,
    /// Masks: the batch, or 1 if all batch entries have the same mask.
    pub mask_batches: usize,
    /// What it was compiled for.
    pub tiling: Tiling,
    /// How much work is left.
    pub counts: Counts,
}

impl MaskTiles {
    /// The entries of row block `block` of batch entry `batch`.
    ///
    /// # Panics
    /// If there is no such block or batch entry.
    #[must_use]
    pub fn list(&self, batch: usize, block: usize) -> Range<usize> {
        let at = batch * self.mask_batch_stride as usize + block;
        self.offsets[at] as usize..self.offsets[at + 1] as usize
    }

    /// The same with the first tile that a whole block sees, where there is one, at the front of the block's list: for kernels that judge by
    /// the first tile how large scores are. Indices ascend behind it.
    #[must_use]
    pub fn whole_first(mut self) -> Self {
        let words = 1 + self.tiling.row_groups_per_block;
        for ends in self.offsets.windows(2) {
            let list = &mut self.entries[ends[0] as usize * words..ends[1] as usize * words];
            let whole = |entry: &[u32]| entry[1..].iter().all(|partial_mask| *partial_mask == ALL);
            if let Some(at) = list.chunks(words).position(whole) {
                list[..(at + 1) * words].rotate_right(words);
            }
        }
        self
    }
}

/// Ranges of `step` tokens that cover `range`.
fn split_range(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    range
        .clone()
        .step_by(step)
        .map(move |start| start..(start + step).min(range.end))
}

impl MaskTiles {
    /// Compiles `mask` for a call of `sizes`. Takes a step for each tile and each row of a tile that is allowed in part.
    ///
    /// # Errors
    /// If the mask does not fit the sizes, or a kernel cannot have such a tiling.
    pub fn new(mask: &Mask, sizes: Sizes, tiling: Tiling) -> Result<Self, MaskError> {
        let bound = mask.bind(sizes)?;
        tiling.check()?;
        let Ranges {
            row_axis,
            rows,
            columns: column_ranges,
        } = tiling.ranges(sizes)?;
        let Tiling {
            row_groups_per_block,
            columns,
            ..
        } = tiling;
        let mask_batches = if mask.depends_on_batch() { sizes.batch } else { 1 };
        let row_ranges: Vec<_> = split_range(rows, ROW_GROUP).collect();
        let row_blocks = row_ranges.len().div_ceil(row_groups_per_block);
        let mut builder = Builder {
            bound,
            tiling,
            transposed: row_axis == Axis::Keys,
            entries: Vec::new(),
            partial_masks: PartialMasks::default(),
            counts: Counts::default(),
            bits: Bits::default(),
        };
        let mut offsets = vec![0];
        for batch in 0..mask_batches {
            let sum_up = |axis, ranges: &[Range<usize>]| -> Vec<Tokens> {
                ranges
                    .iter()
                    .map(|range| bound.tokens(batch, axis, range.clone()))
                    .collect()
            };
            let column_axis = if row_axis == Axis::Keys {
                Axis::Queries
            } else {
                Axis::Keys
            };
            let (rows, columns) = (sum_up(row_axis, &row_ranges), sum_up(column_axis, &column_ranges));
            for block in rows.chunks(row_groups_per_block) {
                builder.block(batch, block, &columns);
                offsets.push((builder.entries.len() / (1 + row_groups_per_block)) as u32);
            }
        }
        let Builder {
            entries,
            partial_masks,
            counts,
            ..
        } = builder;
        let partial_mask_count = partial_masks.count();
        let mut partial_masks = partial_masks.words;
        if partial_masks.is_empty() {
            partial_masks.resize(ROW_GROUP_THREADS * partial_mask_words(columns), 0);
        }
        Ok(Self {
            offsets,
            mask_batch_stride: if mask_batches > 1 { row_blocks as u32 } else { 0 },
            entries,
            partial_masks,
            partial_mask_words: partial_mask_words(columns),
            partial_mask_count,
            row_blocks,
            column_tiles: column_ranges.len(),
            mask_batches,
            tiling,
            counts,
        })
    }
}

struct Builder<'a> {
    bound: Bound<'a>,
    tiling: Tiling,
    transposed: bool,
    entries: Vec<u32>,
    partial_masks: PartialMasks,
    counts: Counts,
    bits: Bits,
}

impl Builder<'_> {
    /// Appends the list of one block.
    fn block(&mut self, batch: usize, row_groups: &[Tokens], tiles: &[Tokens]) {
        let per_entry = 1 + self.tiling.row_groups_per_block;
        let before = self.entries.len();
        for (index, tile) in tiles.iter().enumerate() {
            let at = self.entries.len();
            self.entries.push(index as u32);
            for row_group in row_groups {
                let number = self.row_group(batch, row_group, tile);
                self.entries.push(number);
            }
            // Units that begin behind the last row.
            self.entries.resize(at + per_entry, NONE);
            match self.entries[at + 1..].iter().all(|&number| number == NONE) {
                true => self.entries.truncate(at),
                false => self.counts.listed += 1,
            }
        }
        if self.entries.len() == before {
            self.entries.push(0);
            self.entries.resize(before + per_entry, NONE);
        }
    }

    /// What is allowed in one tile of one row group.
    fn row_group(&mut self, batch: usize, row_group: &Tokens, tile: &Tokens) -> u32 {
        let pairs = (row_group.range.len() * tile.range.len()) as u64;
        self.counts.dense_pairs += pairs;
        self.counts.tiles_dense += 1;
        let (queries, keys) = if self.transposed {
            (tile, row_group)
        } else {
            (row_group, tile)
        };
        let whole = pairs == (ROW_GROUP * self.tiling.columns) as u64;
        let allowed = match self.bound.coverage(batch, queries, keys) {
            Coverage::None => 0,
            Coverage::All if whole => pairs,
            _ => {
                self.bound
                    .bits(batch, queries.range.clone(), keys.range.clone(), &mut self.bits);
                self.bits.count()
            }
        };
        self.counts.allowed_pairs += allowed;
        if allowed == 0 {
            return NONE;
        }
        self.counts.tiles_visited += 1;
        if allowed == pairs && whole {
            return ALL;
        }
        self.counts.tiles_partial += 1;
        let queries = queries.range.len();
        FIRST_PARTIAL
            + self
                .partial_masks
                .number(&self.bits, queries, self.transposed, self.tiling.columns)
    }
}
