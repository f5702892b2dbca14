//! Which rows of a convolution's result are computed at once, and which rows of its input lie within a border for them.
//!
//! A convolution reads its input normalised, enlarged and within zeros, so a copy of it. Of the largest pictures this copy would be
//! the largest tensor of all, so it is made and read some rows at a time. No value depends on it: each is the same sum of the same
//! values.

use std::ops::Range;

/// Values of such a copy that are held at a time: 144 MiB in 16 bits, enough pixels to keep a device busy.
const VALUES: usize = 72 << 20;

/// Rows of the result of some samples, and what is copied for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Strip {
    /// The samples; several only where their pictures are whole.
    pub(super) samples: Range<usize>,
    /// Rows of the result.
    pub(super) rows: Range<usize>,
    /// Rows of the input that are copied.
    pub(super) source: Range<usize>,
    /// Rows of zeros above these, and below.
    pub(super) border: usize,
    /// Rows of the copy before the first that is read.
    pub(super) skipped: usize,
}

/// What is computed, and how large.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Samples.
    pub(super) batch: usize,
    /// Rows of the result.
    pub(super) height: usize,
    /// How often each row of the input is repeated.
    pub(super) repeat: usize,
    /// Values of a row of the copy, with its border.
    pub(super) row: usize,
}

impl Sizes {
    /// All of it: at once if the copy is small, else sample by sample, in strips of about as many rows.
    pub(super) fn strips(self) -> Vec<Strip> {
        self.of_at_most(VALUES)
    }

    fn of_at_most(self, values: usize) -> Vec<Strip> {
        let Self {
            batch, height, row, ..
        } = self;
        if batch * (height + 2) * row <= values {
            return vec![self.strip(0..batch, 0..height)];
        }
        let most = (values / row.max(1)).saturating_sub(2).max(1);
        let rows = height.div_ceil(height.div_ceil(most));
        let of_sample = |sample: usize| {
            let firsts = (0..height).step_by(rows);
            firsts.map(move |first| self.strip(sample..sample + 1, first..height.min(first + rows)))
        };
        (0..batch).flat_map(of_sample).collect()
    }

    /// Rows of the result read the row above and the row below. Of a picture's first and last row these are zeros, so that a strip with
    /// either has a border: no strip begins at the first row without.
    fn strip(self, samples: Range<usize>, rows: Range<usize>) -> Strip {
        let Self { height, repeat, .. } = self;
        let border = usize::from(rows.start == 0 || rows.end == height);
        let source = rows.start.saturating_sub(1) / repeat..height.min(rows.end + 1).div_ceil(repeat);
        Strip {
            skipped: rows.start + border - 1 - source.start * repeat,
            samples,
            rows,
            source,
            border,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Sizes, Strip};

    /// Rows of the copy by the number of the row that they hold, 0 for zeros.
    fn copied(strip: &Strip, repeat: usize) -> Vec<usize> {
        let zeros = vec![0; strip.border];
        let rows = strip
            .source
            .clone()
            .flat_map(|row| std::iter::repeat_n(row + 1, repeat));
        [zeros.clone(), rows.collect(), zeros].concat()
    }

    #[test]
    fn strips_read_what_the_whole_reads_and_no_row_twice() {
        for (height, repeat) in [(1, 1), (2, 2), (13, 1), (26, 2), (64, 1), (64, 2)] {
            let whole: Vec<usize> = (0..height + 2)
                .map(|row| {
                    if row == 0 || row > height {
                        0
                    } else {
                        (row - 1) / repeat + 1
                    }
                })
                .collect();
            for values in [1, 30, 40, 70, 10_000] {
                let sizes = Sizes {
                    batch: 3,
                    height,
                    repeat,
                    row: 10,
                };
                let strips = sizes.of_at_most(values);
                let mut found = [const { Vec::new() }; 3];
                for strip in &strips {
                    let copy = copied(strip, repeat);
                    let read = strip.skipped..strip.skipped + strip.rows.len() + 2;
                    let expected = &whole[strip.rows.start..strip.rows.end + 2];
                    assert_eq!(copy[read], *expected, "{sizes:?}, {values}: {strip:?}");
                    for sample in strip.samples.clone() {
                        found[sample].extend(strip.rows.clone());
                    }
                }
                let all: Vec<usize> = (0..height).collect();
                assert!(found.iter().all(|rows| *rows == all), "{sizes:?}, {values}");
            }
        }
    }

    #[test]
    fn a_small_picture_is_computed_at_once_and_a_large_one_in_strips_of_one_size() {
        let of = |batch, side, channels| {
            let sizes = Sizes {
                batch,
                height: side,
                repeat: 1,
                row: (side + 2) * channels,
            };
            let strips = sizes.strips();
            let rows: Vec<usize> = strips.iter().map(|strip| strip.rows.len()).collect();
            (strips[0].samples.len(), rows)
        };
        assert_eq!(of(2, 256, 512), (2, vec![256]));
        assert_eq!(of(2, 512, 256), (1, vec![512; 2]));
        assert_eq!(of(1, 1024, 256), (1, vec![256; 4]));
    }
}
