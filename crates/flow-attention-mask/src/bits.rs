//! A small matrix of bits: which keys each query of a tile may attend to.

use std::ops::Range;

/// Rows are queries, columns are keys; both counted from the tile's first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits {
    words: usize,
    rows: Vec<u64>,
}

/// Bits `range` of a row whose word `word` is asked for.
fn part(range: &Range<usize>, word: usize) -> u64 {
    let low = range.start.saturating_sub(64 * word).min(64);
    let high = range.end.saturating_sub(64 * word).min(64);
    match high > low {
        true => (u64::MAX >> (64 - (high - low))) << low,
        false => 0,
    }
}

impl Bits {
    /// Makes it `rows` x `columns`, all set.
    pub fn reset(&mut self, rows: usize, columns: usize) {
        self.words = columns.div_ceil(64);
        self.rows.clear();
        for _ in 0..rows {
            self.rows
                .extend((0..self.words).map(|word| part(&(0..columns), word)));
        }
    }

    /// Clears `range` in `row`.
    pub fn clear(&mut self, row: usize, range: Range<usize>) {
        for word in 0..self.words {
            self.rows[row * self.words + word] &= !part(&range, word);
        }
    }

    /// Clears everything in `row` outside of the union of `ranges`.
    pub fn keep(&mut self, row: usize, ranges: impl Iterator<Item = Range<usize>> + Clone) {
        for word in 0..self.words {
            let union = ranges.clone().fold(0, |union, range| union | part(&range, word));
            self.rows[row * self.words + word] &= union;
        }
    }

    /// Whether the bit is set; false outside of the matrix.
    pub fn get(&self, row: usize, column: usize) -> bool {
        let at = row * self.words + column / 64;
        column / 64 < self.words && at < self.rows.len() && self.rows[at] >> (column % 64) & 1 == 1
    }

    /// Set bits.
    pub fn count(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.count_ones())).sum()
    }

    /// The bits, for comparison with those of another matrix of the same size.
    pub fn key(&self) -> &[u64] {
        &self.rows
    }
}
