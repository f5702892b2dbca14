//! Rows of tokens of one length.

/// How long rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// All of this many tokens: longer texts are cut, shorter ones padded.
    Exactly(usize),
    /// As long as the longest text, which is cut beyond this many tokens.
    LongestUpTo(usize),
}

/// What was cut off a text that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many tokens the model does not see.
    pub tokens: usize,
    /// Where in the text, in bytes, the part begins that is not seen; if the front was cut, where it ends.
    pub at: usize,
}

/// Tokens of several texts, row by row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Tokens of a row.
    pub length: usize,
    /// Ids, `[rows, length]`, padding included.
    pub ids: Vec<u32>,
    /// Whether a token is one of the text or its begin and end, `[rows, length]`; false for padding.
    pub mask: Vec<bool>,
    /// What each text lost, if it was too long.
    pub cut: Vec<Option<Cut>>,
}

impl Batch {
    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.cut.len()
    }

    /// The ids of a row, padding included.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_ids(&self, row: usize) -> &[u32] {
        &self.ids[row * self.length..(row + 1) * self.length]
    }

    /// The mask of a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_mask(&self, row: usize) -> &[bool] {
        &self.mask[row * self.length..(row + 1) * self.length]
    }

    /// How many tokens of a row are no padding.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn tokens(&self, row: usize) -> usize {
        self.row_mask(row).iter().filter(|token| **token).count()
    }
}
