//! Buckets of relative positions (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

/// The bucket of a key that lies `distance` tokens after a query (before it, if negative): transformers 5.24.0,
/// `T5Attention._relative_position_bucket`, bidirectional. Half of the `buckets` are for keys after; of each half, the first half
/// holds one distance each, and the rest grow with the logarithm, in f32, up to `max_distance`.
pub(super) fn bucket(distance: i64, buckets: usize, max_distance: usize) -> usize {
    let half = buckets / 2;
    let exact = half / 2;
    let first = if distance > 0 { half } else { 0 };
    let away = distance.unsigned_abs() as usize;
    if away < exact {
        return first + away;
    }
    let span = libm::log(max_distance as f64 / exact as f64) as f32;
    let share = libm::logf(away as f32 / exact as f32) / span;
    let beyond = (share * (half - exact) as f32) as usize;
    first + (exact + beyond).min(half - 1)
}

/// Buckets of all distances that `tokens` tokens have, from that of the last query and the first key on.
pub(super) fn buckets_of(tokens: usize, buckets: usize, max_distance: usize) -> Vec<i64> {
    let last = tokens as i64 - 1;
    (-last..=last)
        .map(|distance| bucket(distance, buckets, max_distance) as i64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_change_where_transformers_changes_them() {
        // Distances at which the bucket of a key after the query is another than before, of 32 buckets up to 128
        // (transformers 5.24.0).
        let starts = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91];
        let of = |distance| bucket(distance, 32, 128);
        assert_eq!(of(0), 0);
        for (index, start) in starts.into_iter().enumerate() {
            assert_eq!(of(start), 16 + index + 1, "{start}");
            assert_eq!(of(-start), index + 1, "-{start}");
            let before = if index == 0 { 0 } else { 16 + index };
            assert_eq!(of(start - 1), before, "before {start}");
        }
        assert_eq!([of(1_000_000), of(-1_000_000)], [31, 15]);
    }

    #[test]
    fn a_key_after_a_query_is_behind_the_middle() {
        assert_eq!(buckets_of(3, 32, 128), [2, 1, 0, 17, 18]);
        assert_eq!(buckets_of(1, 32, 128), [0]);
    }
}
