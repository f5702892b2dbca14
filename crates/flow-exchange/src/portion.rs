//! Who adds up what.

use std::ops::Range;

/// The portion of `count` values that a rank adds up for all: as many as the others, and a multiple of `alignment`; the last ones may be
/// shorter, or empty. Which portion a value is in changes no sum.
pub fn portion(count: usize, rank: usize, ranks: usize, alignment: usize) -> Range<usize> {
    let each = count.div_ceil(ranks).next_multiple_of(alignment);
    let at = |rank: usize| (rank * each).min(count);
    at(rank)..at(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::portion;

    #[test]
    fn portions_cover_every_value_once_and_begin_aligned() {
        for count in [1, 127, 128, 129, 1000, 4096, 12_345] {
            for (ranks, alignment) in (1..9).flat_map(|ranks| [(ranks, 1), (ranks, 128)]) {
                let mut next = 0;
                for rank in 0..ranks {
                    let range = portion(count, rank, ranks, alignment);
                    assert_eq!(range.start, next, "{count} values on {ranks} ranks");
                    assert!(range.is_empty() || range.start.is_multiple_of(alignment));
                    next = range.end;
                }
                assert_eq!(next, count);
            }
        }
    }
}
