//! The elementwise part of attention, forward and backward, with queries along the lanes: sums and maxima over keys need
//! no exchange between lanes.

use super::tiles::QUERIES;
use flow_kernels::host::math::{exp, ln, vectorised};
use flow_kernels::host::narrow::LANES;

/// Keys that are summed up before the sum joins the total.
const KEYS: usize = 64;

/// Calls `$function::<N>` with the number of padded queries as `N`.
macro_rules! with_queries {
    ($count:expr, $function:ident($($argument:expr),*)) => {
        vectorised(
            #[inline(always)]
            || match $count {
                16 => $function::<16>($($argument),*),
                32 => $function::<32>($($argument),*),
                48 => $function::<48>($($argument),*),
                _ => $function::<64>($($argument),*),
            },
        )
    };
}

/// Turns scores `[keys, width]` into exponentials below each query's maximum; gives each query's log-sum-exp and the
/// reciprocal of its sum: plus infinity and 0 for a query that sees no key.
pub(super) fn softmax(
    width: usize,
    scores: &mut [f32],
    lse: &mut [f32; QUERIES],
    reciprocals: &mut [f32; QUERIES],
) {
    with_queries!(width, softmax_of(scores, lse, reciprocals));
}

/// Turns scores `[keys, width]` into probabilities.
pub(super) fn probabilities(width: usize, scores: &mut [f32], lse: &[f32; QUERIES]) {
    with_queries!(width, probabilities_of(scores, lse));
}

/// Turns gradients of the probabilities `[keys, width]` into gradients of the scores:
/// `p · (dp - sum over keys of p · dp)`.
pub(super) fn score_gradients(width: usize, dscores: &mut [f32], probabilities: &[f32]) {
    with_queries!(width, score_gradients_of(dscores, probabilities));
}

#[inline(always)]
fn softmax_of<const N: usize>(
    scores: &mut [f32],
    lse: &mut [f32; QUERIES],
    reciprocals: &mut [f32; QUERIES],
) {
    let (rows, _) = scores.as_chunks_mut::<N>();
    let mut top = [f32::NEG_INFINITY; N];
    for (block, top) in top.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        *top = largest(rows, block * LANES);
    }
    // A query that sees no key: its exponentials must be those of minus infinity, not of its difference with itself.
    for top in &mut top {
        *top = if *top == f32::NEG_INFINITY { 0.0 } else { *top };
    }
    // Two levels, so that the rounding error grows slowly with the number of keys.
    let mut total = [0.0; N];
    for block in rows.chunks_mut(KEYS) {
        let mut sum = [0.0; N];
        for row in block {
            for lane in 0..N {
                row[lane] = exp(row[lane] - top[lane]);
                sum[lane] += row[lane];
            }
        }
        for lane in 0..N {
            total[lane] += sum[lane];
        }
    }
    for lane in 0..N {
        let none = total[lane] == 0.0;
        reciprocals[lane] = if none { 0.0 } else { 1.0 / total[lane] };
        lse[lane] = if none {
            f32::INFINITY
        } else {
            top[lane] + ln(total[lane])
        };
    }
}

/// The largest of every column of `LANES` columns from `start` on.
#[inline(always)]
fn largest<const N: usize>(rows: &[[f32; N]], start: usize) -> [f32; LANES] {
    let mut top = [f32::NEG_INFINITY; LANES];
    for row in rows {
        let row: &[f32; LANES] = row[start..]
            .first_chunk()
            .expect("a row is whole blocks of lanes");
        for (top, score) in top.iter_mut().zip(row) {
            *top = if *score > *top { *score } else { *top };
        }
    }
    top
}

#[inline(always)]
fn probabilities_of<const N: usize>(scores: &mut [f32], lse: &[f32; QUERIES]) {
    for row in scores.as_chunks_mut::<N>().0 {
        for lane in 0..N {
            row[lane] = exp(row[lane] - lse[lane]);
        }
    }
}

#[inline(always)]
fn score_gradients_of<const N: usize>(dscores: &mut [f32], probabilities: &[f32]) {
    let (dscores, _) = dscores.as_chunks_mut::<N>();
    let (probabilities, _) = probabilities.as_chunks::<N>();
    let mut delta = [0.0; N];
    for (ds, p) in dscores.chunks(KEYS).zip(probabilities.chunks(KEYS)) {
        let mut sum = [0.0; N];
        for (ds, p) in ds.iter().zip(p) {
            for lane in 0..N {
                sum[lane] += ds[lane] * p[lane];
            }
        }
        for lane in 0..N {
            delta[lane] += sum[lane];
        }
    }
    for (ds, p) in dscores.iter_mut().zip(probabilities) {
        for lane in 0..N {
            ds[lane] = p[lane] * (ds[lane] - delta[lane]);
        }
    }
}
