//! Which block computes what, in which order: data, made on the host once for a call.
//!
//! Work is cut into *items*: a tile of the result, and a range of its summands in steps of 64. A block takes its items one
//! after another. If all summands of each tile are in one item, items write the result. Else they write tiles of sums,
//! which another kernel adds up in the order of the summands: so the result does not depend on who was first.

/// Summands of a step.
pub const STEP: usize = 64;

/// Sizes of tiles, and how many blocks there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Rows of a tile.
    pub rows: usize,
    /// Columns of a tile.
    pub columns: usize,
    /// Tiles, row by row, whose columns are gone through before the next rows: tiles computed at the same time share
    /// rows and columns in the L2 cache.
    pub group: usize,
    /// Blocks at work at the same time.
    pub blocks: usize,
    /// Parts that the summands of a tile are cut into.
    pub parts: usize,
}

/// A tile and a range of its summands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// First row of the result.
    pub row: usize,
    /// First column of the result.
    pub column: usize,
    /// First step.
    pub begin: usize,
    /// Behind the last step.
    pub end: usize,
    /// Number of the tile of sums it writes, if summands are cut.
    pub slot: usize,
}

/// All items, by block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// How it was cut.
    pub cut: Cut,
    /// Items of each block, in order.
    pub blocks: Vec<Vec<Item>>,
    /// Steps of a tile.
    pub steps: usize,
    /// Tiles along rows and along columns.
    pub tiles: [usize; 2],
}

/// Rows and columns of tile `index` in the order of computation.
fn place(index: usize, [rows, columns]: [usize; 2], group: usize) -> [usize; 2] {
    let per_group = group * columns;
    let first = index / per_group * group;
    let height = group.min(rows - first);
    let within = index % per_group;
    [first + within % height, within / height]
}

impl Schedule {
    /// The schedule of `m x n` results with `steps` steps of summands.
    pub fn new([m, n]: [usize; 2], steps: usize, cut: Cut) -> Self {
        let tiles = [m.div_ceil(cut.rows), n.div_ceil(cut.columns)];
        let count = tiles[0] * tiles[1];
        let parts = cut.parts.clamp(1, steps.max(1));
        let bound = |part: usize| part * steps / parts;
        let mut items = Vec::with_capacity(count * parts);
        for part in 0..parts {
            for index in 0..count {
                let [row, column] = place(index, tiles, cut.group);
                items.push(Item {
                    row: row * cut.rows,
                    column: column * cut.columns,
                    begin: bound(part),
                    end: bound(part + 1),
                    slot: (row * tiles[1] + column) * parts + part,
                });
            }
        }
        let blocks = cut.blocks.clamp(1, items.len().max(1));
        Self {
            cut: Cut { parts, ..cut },
            blocks: (0..blocks)
                .map(|block| items.iter().skip(block).step_by(blocks).copied().collect())
                .collect(),
            steps,
            tiles,
        }
    }

    /// Whether tiles of sums are written, for another kernel to add up.
    pub fn in_parts(&self) -> bool {
        self.cut.parts > 1
    }

    /// Tiles of sums.
    pub fn slots(&self) -> usize {
        if self.in_parts() {
            self.tiles[0] * self.tiles[1] * self.cut.parts
        } else {
            0
        }
    }

    /// Where the items of each block begin, and where the last ones end.
    pub fn starts(&self) -> Vec<u32> {
        let mut at = 0;
        let ends = self.blocks.iter().map(|items| {
            at += items.len() as u32;
            at
        });
        std::iter::once(0).chain(ends.collect::<Vec<_>>()).collect()
    }

    /// Items as the kernels read them, eight words each: rows of A and of B, first step, behind the last step, row and
    /// column of what is written, and two that are not used.
    pub fn words(&self) -> Vec<u32> {
        let words = |item: &Item| {
            let [row, column] = match self.in_parts() {
                true => [item.slot * self.cut.rows, 0],
                false => [item.row, item.column],
            };
            [item.row, item.column, item.begin, item.end, row, column, 0, 0].map(|word| word as u32)
        };
        self.blocks.iter().flatten().flat_map(words).collect()
    }
}
