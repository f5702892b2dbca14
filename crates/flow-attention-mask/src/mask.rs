//! The masks, and what they mean: which query may attend to which key.

use crate::error::MaskError;
use crate::kinds::{BlockSparse, Documents, Extent, Grid, KeyPadding, Packed};

/// Sizes of an attention call, as far as masks are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Batch.
    pub batch: usize,
    /// Query tokens, S_q.
    pub queries: usize,
    /// Key tokens of each segment; the second may be 0. A mask numbers them through: S_k is their sum.
    pub kv_segments: [usize; 2],
}

impl Sizes {
    /// Sizes with all keys in one segment.
    pub fn new(batch: usize, queries: usize, keys: usize) -> Self {
        Self {
            batch,
            queries,
            kv_segments: [keys, 0],
        }
    }

    /// Key tokens, S_k.
    pub fn keys(&self) -> usize {
        self.kv_segments[0] + self.kv_segments[1]
    }
}

/// Which query may attend to which key.
///
/// The *diagonal* of query `i` is key `i + S_k - S_q`: the last query sees the last key (bottom-right alignment).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mask {
    /// Every query to every key.
    Full,
    /// To the keys up to the diagonal.
    Causal,
    /// To the keys from `before` ahead of the diagonal to `after` behind it, both included.
    Window {
        /// Keys before the diagonal.
        before: usize,
        /// Keys after the diagonal.
        after: usize,
    },
    /// To the first keys of each batch entry.
    KeyPadding(KeyPadding),
    /// Within sequences that are packed one after the other.
    Packed(Packed),
    /// Within tokens that bear the same number.
    Documents(Documents),
    /// Where a table of blocks says so.
    BlockSparse(BlockSparse),
    /// To the tokens of a video that are near in time and space.
    Video {
        /// Frames, height and width in tokens; numbered frame by frame, row by row.
        grid: Grid,
        /// How far a query sees along each axis; cut at the borders.
        radius: Extent,
    },
    /// Where all of them allow it. Allows everything if there are none.
    And(Vec<Mask>),
}

impl Mask {
    /// `keys[b]` keys for batch entry `b`.
    ///
    /// # Errors
    /// If there is no batch entry.
    pub fn key_padding(keys: Vec<usize>) -> Result<Self, MaskError> {
        Ok(Self::KeyPadding(KeyPadding::new(keys)?))
    }

    /// Packed sequences by cumulative lengths: sequence `s` has queries `queries[s]..queries[s + 1]` and keys
    /// `keys[s]..keys[s + 1]`. Tokens after the last are padding and attend to nothing. The diagonal of the other masks
    /// stays that of the whole call, which is each sequence's own where both lists are the same.
    ///
    /// # Errors
    /// If a list does not begin with 0, decreases, or they are not equally long.
    pub fn packed(queries: Vec<usize>, keys: Vec<usize>) -> Result<Self, MaskError> {
        Ok(Self::Packed(Packed::new(queries, keys)?))
    }

    /// A number for each query and key: one list for the whole batch, or one for each batch entry.
    ///
    /// # Errors
    /// If there is no list, or not as many for keys as for queries.
    pub fn documents(queries: Vec<Vec<u32>>, keys: Vec<Vec<u32>>) -> Result<Self, MaskError> {
        Ok(Self::Documents(Documents::new(queries, keys)?))
    }

    /// Blocks of `query_block` x `key_block` tokens; `allowed` is row-major, `ceil(S_q / query_block)` rows of
    /// `ceil(S_k / key_block)`.
    ///
    /// # Errors
    /// If a block or the table is empty.
    pub fn block_sparse(query_block: usize, key_block: usize, allowed: Vec<bool>) -> Result<Self, MaskError> {
        Ok(Self::BlockSparse(BlockSparse::new(
            query_block,
            key_block,
            allowed,
        )?))
    }

    /// A window of `radius` around each token of a video.
    ///
    /// # Errors
    /// If an axis of the grid is empty.
    pub fn video(grid: Extent, radius: Extent) -> Result<Self, MaskError> {
        Ok(Self::Video {
            grid: Grid::new(grid)?,
            radius,
        })
    }

    /// Whether entries of a batch may have different masks.
    pub fn depends_on_batch(&self) -> bool {
        match self {
            Self::KeyPadding(padding) => padding.depends_on_batch(),
            Self::Documents(documents) => documents.depends_on_batch(),
            Self::And(masks) => masks.iter().any(Self::depends_on_batch),
            _ => false,
        }
    }

    /// The mask for a call of these sizes.
    ///
    /// # Errors
    /// If a size is 0 or the mask was made for other sizes; the message says which.
    pub fn bind(&self, sizes: Sizes) -> Result<Bound<'_>, MaskError> {
        let axes = [
            ("batch", sizes.batch),
            ("queries", sizes.queries),
            ("keys", sizes.keys()),
        ];
        for (axis, found) in axes {
            if found == 0 || found >= 1 << 31 {
                return Err(MaskError::Size { axis, found });
            }
        }
        self.check(&sizes)?;
        Ok(Bound { mask: self, sizes })
    }

    fn check(&self, sizes: &Sizes) -> Result<(), MaskError> {
        match self {
            Self::Full | Self::Causal | Self::Window { .. } => Ok(()),
            Self::KeyPadding(padding) => padding.check(sizes),
            Self::Packed(packed) => packed.check(sizes),
            Self::Documents(documents) => documents.check(sizes),
            Self::BlockSparse(blocks) => blocks.check(sizes),
            Self::Video { grid, .. } => grid.check(sizes),
            Self::And(masks) => masks.iter().try_for_each(|mask| mask.check(sizes)),
        }
    }

    /// By definition, element by element: what everything else is tested against.
    pub(crate) fn allows(&self, sizes: &Sizes, batch: usize, query: usize, key: usize) -> bool {
        let diagonal = query as i64 + sizes.keys() as i64 - sizes.queries as i64;
        match self {
            Self::Full => true,
            Self::Causal => key as i64 <= diagonal,
            Self::Window { before, after } => {
                let distance = key as i64 - diagonal;
                distance >= -reach(*before) && distance <= reach(*after)
            }
            Self::KeyPadding(padding) => key < padding.keys(batch),
            Self::Packed(packed) => packed.allows(query, key),
            Self::Documents(documents) => documents.allows(batch, query, key),
            Self::BlockSparse(blocks) => blocks.allows(sizes, query, key),
            Self::Video { grid, radius } => grid.near(query, key, radius),
            Self::And(masks) => masks.iter().all(|mask| mask.allows(sizes, batch, query, key)),
        }
    }
}

/// A window's side, as far as any position is: callers write `usize::MAX` for "everything".
pub(crate) fn reach(distance: usize) -> i64 {
    i64::try_from(distance).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

/// A mask together with the sizes of the call it is for, checked.
#[derive(Clone, Copy, Debug)]
pub struct Bound<'a> {
    pub(crate) mask: &'a Mask,
    pub(crate) sizes: Sizes,
}

impl Bound<'_> {
    /// Whether `query` may attend to `key` in batch entry `batch`; false outside of the call's sizes.
    pub fn allows(&self, batch: usize, query: usize, key: usize) -> bool {
        batch < self.sizes.batch
            && query < self.sizes.queries
            && key < self.sizes.keys()
            && self.mask.allows(&self.sizes, batch, query, key)
    }

    /// Sizes of the call.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }
}
