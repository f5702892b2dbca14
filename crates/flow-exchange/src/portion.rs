//! Who adds up what.

use std::ops::Range;

/// The portion of `count` values that a rank adds up for all: as many as the others, and a multiple of `alignment`; the last ones may be
/// shorter, or empty. Which portion a value is in changes no sum.
pub fn portion(count: usize, rank: usize, ranks: usize, alignment: usize) -> Range<usize> {
    let each = count.div_ceil(ranks).next_multiple_of(alignment);
    let at = |rank: usize| (rank * each).min(count);
    at(rank)..at(rank + 1)
}

/// Where the values of each of `ranks` lie in a row of `all` values, which has `counts[0]` of rank 0 first, then `counts[1]` of rank 1, and
/// so on.
///
/// # Panics
/// If `counts` has not one number for each rank, or these are not `all` together.
pub fn parts_of_ranks(counts: &[usize], ranks: usize, all: usize) -> Vec<Range<usize>> {
    assert_eq!(counts.len(), ranks, "one number of values for each rank");
    let mut next = 0;
    let part = |count: &usize| {
        let begin = next;
        next += count;
        begin..next
    };
    let parts = counts.iter().map(part).collect();
    assert_eq!(next, all, "a row of the values of all ranks");
    parts
}

#[cfg(test)]
mod tests {
    use super::{parts_of_ranks, portion};

    #[test]
    fn parts_follow_one_another_and_may_be_empty() {
        assert_eq!(parts_of_ranks(&[2, 0, 3], 3, 5), [0..2, 2..2, 2..5]);
        assert_eq!(parts_of_ranks(&[0, 0], 2, 0), [0..0, 0..0]);
    }

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
