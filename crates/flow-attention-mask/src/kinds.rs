//! The data of masks that have some, checked when made.

use crate::error::MaskError;
use crate::mask::Sizes;

/// How many keys each batch entry has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyPadding {
    keys: Vec<usize>,
}

impl KeyPadding {
    pub(crate) fn new(keys: Vec<usize>) -> Result<Self, MaskError> {
        if keys.is_empty() {
            return Err(MaskError::Empty {
                mask: "key padding",
                what: "batch entries",
            });
        }
        Ok(Self { keys })
    }

    /// Keys of batch entry `batch`.
    pub fn keys(&self, batch: usize) -> usize {
        self.keys[batch]
    }

    pub(crate) fn depends_on_batch(&self) -> bool {
        self.keys.iter().any(|keys| *keys != self.keys[0])
    }

    pub(crate) fn check(&self, sizes: &Sizes) -> Result<(), MaskError> {
        same_length("key padding", "batch entries", self.keys.len(), sizes.batch)?;
        for (index, &found) in self.keys.iter().enumerate() {
            if found > sizes.keys() {
                let (mask, what, of) = ("key padding", "length", "keys");
                return Err(MaskError::Beyond {
                    mask,
                    what,
                    index,
                    found,
                    limit: sizes.keys(),
                    of,
                });
            }
        }
        Ok(())
    }
}

/// Sequences packed one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Packed {
    queries: Vec<usize>,
    keys: Vec<usize>,
}

impl Packed {
    pub(crate) fn new(queries: Vec<usize>, keys: Vec<usize>) -> Result<Self, MaskError> {
        for (of, list) in [("queries", &queries), ("keys", &keys)] {
            let (mask, what) = ("packed", "sequences");
            if list.len() < 2 {
                return Err(MaskError::Empty { mask, what });
            }
            if list[0] != 0 {
                return Err(MaskError::Cumulative {
                    of,
                    index: 0,
                    found: list[0],
                    before: 0,
                });
            }
            if let Some(at) = list.windows(2).position(|pair| pair[1] < pair[0]) {
                return Err(MaskError::Cumulative {
                    of,
                    index: at + 1,
                    found: list[at + 1],
                    before: list[at],
                });
            }
        }
        if queries.len() != keys.len() {
            let (queries, keys) = (queries.len() - 1, keys.len() - 1);
            return Err(MaskError::Unequal {
                mask: "packed",
                what: "sequences",
                queries,
                keys,
            });
        }
        Ok(Self { queries, keys })
    }

    pub(crate) fn check(&self, sizes: &Sizes) -> Result<(), MaskError> {
        for (list, limit, of) in [
            (&self.queries, sizes.queries, "queries"),
            (&self.keys, sizes.keys(), "keys"),
        ] {
            let (index, found) = (list.len() - 1, list[list.len() - 1]);
            if found > limit {
                let (mask, what) = ("packed", "cumulative length");
                return Err(MaskError::Beyond {
                    mask,
                    what,
                    index,
                    found,
                    limit,
                    of,
                });
            }
        }
        Ok(())
    }

    pub(crate) fn allows(&self, query: usize, key: usize) -> bool {
        let holds = |list: &[usize], s: usize, token| list[s] <= token && token < list[s + 1];
        (0..self.queries.len() - 1).any(|s| holds(&self.queries, s, query) && holds(&self.keys, s, key))
    }

    /// Keys of the sequence that `query` is in; of a query after the last, none, after all of them.
    pub(crate) fn interval(&self, query: usize) -> (usize, usize) {
        let after = self.queries.partition_point(|&end| end <= query);
        match after < self.queries.len() {
            true => (self.keys[after - 1], self.keys[after]),
            false => (usize::MAX, usize::MAX),
        }
    }
}

/// A number for each token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Documents {
    queries: Vec<Vec<u32>>,
    keys: Vec<Vec<u32>>,
}

impl Documents {
    pub(crate) fn new(queries: Vec<Vec<u32>>, keys: Vec<Vec<u32>>) -> Result<Self, MaskError> {
        let (mask, what) = ("document", "lists of numbers");
        if queries.is_empty() || keys.is_empty() {
            return Err(MaskError::Empty { mask, what });
        }
        if queries.len() != keys.len() {
            return Err(MaskError::Unequal {
                mask,
                what,
                queries: queries.len(),
                keys: keys.len(),
            });
        }
        Ok(Self { queries, keys })
    }

    pub(crate) fn depends_on_batch(&self) -> bool {
        self.queries.len() > 1
    }

    pub(crate) fn check(&self, sizes: &Sizes) -> Result<(), MaskError> {
        let mask = "document";
        if self.depends_on_batch() {
            same_length(mask, "lists of numbers", self.queries.len(), sizes.batch)?;
        }
        for list in &self.queries {
            same_length(mask, "numbers of queries", list.len(), sizes.queries)?;
        }
        for list in &self.keys {
            same_length(mask, "numbers of keys", list.len(), sizes.keys())?;
        }
        Ok(())
    }

    /// Numbers of the queries of a batch entry.
    pub(crate) fn of_queries(&self, batch: usize) -> &[u32] {
        &self.queries[if self.depends_on_batch() { batch } else { 0 }]
    }

    /// Numbers of the keys of a batch entry.
    pub(crate) fn of_keys(&self, batch: usize) -> &[u32] {
        &self.keys[if self.depends_on_batch() { batch } else { 0 }]
    }

    pub(crate) fn allows(&self, batch: usize, query: usize, key: usize) -> bool {
        self.of_queries(batch)[query] == self.of_keys(batch)[key]
    }
}

/// A table of allowed blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockSparse {
    /// Queries of a block.
    pub(crate) query_block: usize,
    /// Keys of a block.
    pub(crate) key_block: usize,
    allowed: Vec<bool>,
}

impl BlockSparse {
    pub(crate) fn new(query_block: usize, key_block: usize, allowed: Vec<bool>) -> Result<Self, MaskError> {
        let mask = "block-sparse";
        for (what, count) in [
            ("queries in a block", query_block),
            ("keys in a block", key_block),
            ("entries in its table", allowed.len()),
        ] {
            if count == 0 {
                return Err(MaskError::Empty { mask, what });
            }
        }
        Ok(Self {
            query_block,
            key_block,
            allowed,
        })
    }

    pub(crate) fn check(&self, sizes: &Sizes) -> Result<(), MaskError> {
        let blocks = sizes.queries.div_ceil(self.query_block) * sizes.keys().div_ceil(self.key_block);
        same_length("block-sparse", "entries in its table", self.allowed.len(), blocks)
    }

    /// Whether the block in row `row` and column `column` is allowed.
    pub(crate) fn block(&self, sizes: &Sizes, row: usize, column: usize) -> bool {
        self.allowed[row * sizes.keys().div_ceil(self.key_block) + column]
    }

    pub(crate) fn allows(&self, sizes: &Sizes, query: usize, key: usize) -> bool {
        self.block(sizes, query / self.query_block, key / self.key_block)
    }
}

/// Three numbers: of frames, along the height and along the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Along time.
    pub frames: usize,
    /// Along the height.
    pub height: usize,
    /// Along the width.
    pub width: usize,
}

/// Tokens of a video: frame by frame, in each row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid(Extent);

impl Grid {
    pub(crate) fn new(extent: Extent) -> Result<Self, MaskError> {
        let Extent {
            frames,
            height,
            width,
        } = extent;
        for (what, count) in [("frames", frames), ("rows", height), ("columns", width)] {
            if count == 0 {
                return Err(MaskError::Empty {
                    mask: "video window",
                    what,
                });
            }
        }
        Ok(Self(extent))
    }

    /// Frames, height and width.
    pub fn extent(&self) -> Extent {
        self.0
    }

    pub(crate) fn check(&self, sizes: &Sizes) -> Result<(), MaskError> {
        let Extent {
            frames,
            height,
            width,
        } = self.0;
        let tokens = frames.saturating_mul(height).saturating_mul(width);
        for (axis, found) in [("queries", sizes.queries), ("keys", sizes.keys())] {
            if found != tokens {
                return Err(MaskError::Grid {
                    frames,
                    height,
                    width,
                    tokens,
                    axis,
                    found,
                });
            }
        }
        Ok(())
    }

    /// Frame, row and column of a token.
    pub(crate) fn place(&self, token: usize) -> [usize; 3] {
        let Extent { height, width, .. } = self.0;
        [token / (height * width), token / width % height, token % width]
    }

    pub(crate) fn near(&self, a: usize, b: usize, radius: &Extent) -> bool {
        let (a, b) = (self.place(a), self.place(b));
        a[0].abs_diff(b[0]) <= radius.frames
            && a[1].abs_diff(b[1]) <= radius.height
            && a[2].abs_diff(b[2]) <= radius.width
    }
}

fn same_length(
    mask: &'static str,
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), MaskError> {
    match found == expected {
        true => Ok(()),
        false => Err(MaskError::Length {
            mask,
            what,
            found,
            expected,
        }),
    }
}
