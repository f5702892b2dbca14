//! The tile schedule: which block computes what, in which order. Data, made on the host once for a problem.
//!
//! Work is tiled into *items*: a tile of the result, and a range of its summands in steps of 64. A block takes its items one
//! after another. If all summands of each tile are in one item, items write the result. Else they write partial tiles,
//! which another kernel sums in the order of the summands: so the result does not depend on who was first.

/// Summands of a step.
pub const STEP: usize = 64;

/// Sizes of tiles, and how many blocks there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    /// Rows of a tile.
    pub rows: usize,
    /// Columns of a tile.
    pub columns: usize,
    /// Tiles, row by row, whose columns are gone through before the next rows: tiles computed at the same time share
    /// rows and columns in the L2 cache.
    pub group: usize,
    /// Blocks at work at the same time.
    pub blocks: usize,
    /// Equal splits of the summands of each tile (split-K).
    pub split_k: usize,
    /// Stream-K (Osama et al. 2023, arXiv:2301.03598): the tiles of the last, partial wave are divided so that all blocks have the
    /// same work.
    pub stream_k: bool,
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
    /// Number of the partial tile it writes, if summands are split.
    pub workspace_tile: usize,
}

/// All items, by block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Its tiling.
    pub tiling: Tiling,
    /// Items of each block, in order.
    pub blocks: Vec<Vec<Item>>,
    /// Steps of a tile.
    pub steps: usize,
    /// Tiles that are made of sums; none if items write the result.
    pub partial_tiles: Vec<PartialTiles>,
}

/// A tile of the result, and the partial tiles that it is made of, in the order of their summands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialTiles {
    /// First row.
    pub row: usize,
    /// First column.
    pub column: usize,
    /// Number of the first partial tile.
    pub first: usize,
    /// How many there are.
    pub count: usize,
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
    /// What is launched, one after another, for `m x n` results with `steps` steps of summands: one schedule; or, balanced,
    /// one of whole tiles that keep all blocks busy to the end, and one of what is left.
    pub fn all([m, n]: [usize; 2], steps: usize, tiling: Tiling) -> Vec<Self> {
        let tiles = [m.div_ceil(tiling.rows), n.div_ceil(tiling.columns)];
        let places: Vec<[usize; 2]> = (0..tiles[0] * tiles[1])
            .map(|index| {
                let [row, column] = place(index, tiles, tiling.group);
                [row * tiling.rows, column * tiling.columns]
            })
            .collect();
        if !tiling.stream_k {
            return vec![Self::equal_splits(&places, steps, tiling)];
        }
        let (whole, rest) = places.split_at(places.len() / tiling.blocks * tiling.blocks);
        let mut out = Vec::new();
        if !whole.is_empty() {
            out.push(Self::equal_splits(whole, steps, Tiling { split_k: 1, ..tiling }));
        }
        if !rest.is_empty() {
            out.push(Self::stream_k_items(rest, steps, tiling));
        }
        out
    }

    /// All tiles whole, or in equal splits, split by split: blocks at work at the same time read the same summands.
    fn equal_splits(places: &[[usize; 2]], steps: usize, tiling: Tiling) -> Self {
        let split_k = tiling.split_k.clamp(1, steps.max(1));
        let bound = |part: usize| part * steps / split_k;
        let mut items = Vec::with_capacity(places.len() * split_k);
        for part in 0..split_k {
            for (tile, [row, column]) in places.iter().copied().enumerate() {
                items.push(Item {
                    row,
                    column,
                    begin: bound(part),
                    end: bound(part + 1),
                    workspace_tile: tile * split_k + part,
                });
            }
        }
        let partial_tiles = match split_k {
            1 => Vec::new(),
            _ => (0..places.len())
                .map(|tile| PartialTiles {
                    row: places[tile][0],
                    column: places[tile][1],
                    first: tile * split_k,
                    count: split_k,
                })
                .collect(),
        };
        let blocks = tiling.blocks.clamp(1, items.len().max(1));
        Self {
            tiling: Tiling { split_k, ..tiling },
            blocks: (0..blocks)
                .map(|block| items.iter().skip(block).step_by(blocks).copied().collect())
                .collect(),
            steps,
            partial_tiles,
        }
    }

    /// Fewer tiles than blocks: each tile has some blocks to itself, for equal ranges of its summands; the blocks that are
    /// over share the ranges at the end of all tiles. Ranges are the same for all tiles, so that blocks read the same
    /// summands at the same time.
    fn stream_k_items(places: &[[usize; 2]], steps: usize, tiling: Tiling) -> Self {
        let own = tiling.blocks / places.len();
        let over = tiling.blocks - own * places.len();
        let length = match over {
            0 => steps.div_ceil(own),
            _ => (places.len() * steps).div_ceil(tiling.blocks),
        };
        let tail = steps.saturating_sub(own * length);
        let mut blocks = Vec::with_capacity(tiling.blocks);
        let mut ranges: Vec<Vec<[usize; 2]>> = vec![Vec::new(); places.len()];
        // Blocks by tile, range and place in `blocks`; slots are numbered when all are known.
        for part in 0..own {
            let [begin, end] = [part * length, (part + 1) * length].map(|step| step.min(steps - tail));
            for (tile, ranges) in ranges.iter_mut().enumerate() {
                if begin < end {
                    blocks.push(vec![(tile, [begin, end])]);
                    ranges.push([begin, end]);
                }
            }
        }
        let work = places.len() * tail;
        for block in 0..over.min(work) {
            let share = over.min(work);
            let (mut at, end) = (block * work / share, (block + 1) * work / share);
            let mut items = Vec::new();
            while at < end {
                let tile = at / tail;
                let stop = end.min((tile + 1) * tail);
                let range = [at - tile * tail, stop - tile * tail].map(|step| steps - tail + step);
                items.push((tile, range));
                ranges[tile].push(range);
                at = stop;
            }
            blocks.push(items);
        }
        let mut first = 0;
        let partial_tiles: Vec<PartialTiles> = places
            .iter()
            .zip(&ranges)
            .map(|([row, column], ranges)| {
                first += ranges.len();
                PartialTiles {
                    row: *row,
                    column: *column,
                    first: first - ranges.len(),
                    count: ranges.len(),
                }
            })
            .collect();
        let item = |(tile, range): (usize, [usize; 2])| {
            let number = ranges[tile].iter().position(|other| *other == range);
            Item {
                row: places[tile][0],
                column: places[tile][1],
                begin: range[0],
                end: range[1],
                workspace_tile: partial_tiles[tile].first
                    + number.expect("each item's range is among its tile's"),
            }
        };
        Self {
            tiling,
            blocks: blocks
                .into_iter()
                .map(|items| items.into_iter().map(item).collect())
                .collect(),
            steps,
            partial_tiles,
        }
    }

    /// Whether partial tiles are written, for another kernel to sum.
    pub fn splits_k(&self) -> bool {
        !self.partial_tiles.is_empty()
    }

    /// Partial tiles.
    pub fn workspace_tiles(&self) -> usize {
        self.partial_tiles
            .last()
            .map_or(0, |last| last.first + last.count)
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
            let [row, column] = match self.splits_k() {
                true => [item.workspace_tile * self.tiling.rows, 0],
                false => [item.row, item.column],
            };
            [item.row, item.column, item.begin, item.end, row, column, 0, 0].map(|word| word as u32)
        };
        self.blocks.iter().flatten().flat_map(words).collect()
    }

    /// Tiles made of sums, four words each.
    pub fn reduction_words(&self) -> Vec<u32> {
        let words = |partial_tiles: &PartialTiles| {
            [
                partial_tiles.row,
                partial_tiles.column,
                partial_tiles.first,
                partial_tiles.count,
            ]
            .map(|word| word as u32)
        };
        self.partial_tiles.iter().flat_map(words).collect()
    }
}
