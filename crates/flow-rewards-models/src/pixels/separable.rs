//! Resizing in two passes, rows first, then columns, of several rows at once.
//!
//! Every value is added up in the order of its taps by one thread, so that bits do not depend on how many threads there are.

use super::taps::{Filter, taps};
use super::{COLOURS, Plan};
use rayon::prelude::*;
use std::ops::Range;

/// Rows that a thread takes at a time.
const ROWS: usize = 32;

/// How values are weighed and added up.
pub trait Arithmetic {
    /// Values of images.
    type Value: Copy + Default + Send + Sync;
    /// Weights of values, and their sums.
    type Sum: Copy + Default + Send + Sync;
    /// What a sum begins at.
    const START: Self::Sum;

    /// A tap's weight.
    fn weight(weight: f64) -> Self::Sum;
    /// `sum` and `value` as often as `weight` says.
    fn add(sum: Self::Sum, value: Self::Value, weight: Self::Sum) -> Self::Sum;
    /// The value that a sum is rounded to.
    fn round(sum: Self::Sum) -> Self::Value;
}

/// The neighbours of one value.
struct Neighbours<W> {
    /// The first of them.
    first: usize,
    weights: Vec<W>,
}

/// Planes of an image, one for each colour, resized and cropped: `[3, side, side]`. `read` writes the row of so many of the colour of
/// that number, `(colour, row)`.
pub fn resize<A: Arithmetic>(
    plan: &Plan,
    filter: Filter,
    read: impl Fn((usize, usize), &mut [A::Value]) + Sync,
) -> Vec<A::Value> {
    let across = neighbours::<A>(plan.columns, &plan.kept_columns, filter);
    let down = neighbours::<A>(plan.rows, &plan.kept_rows, filter);
    // The rows that the second pass reads.
    let first = down.iter().map(|of| of.first).min().unwrap_or(0);
    let end = down.iter().map(|of| of.first + of.weights.len()).max();
    let (height, side) = (end.unwrap_or(first) - first, across.len());
    let zero = A::Value::default();

    let mut narrow = vec![zero; COLOURS * height * side];
    let pieces = narrow.par_chunks_mut(ROWS * side).enumerate();
    pieces.for_each(|(piece, narrow)| {
        let mut row = vec![zero; plan.columns.0];
        for (at, narrow) in narrow.chunks_exact_mut(side).enumerate() {
            let at = piece * ROWS + at;
            read((at / height, first + at % height), &mut row);
            for (value, of) in narrow.iter_mut().zip(&across) {
                let seen = row[of.first..].iter().zip(&of.weights);
                *value = A::round(seen.fold(A::START, |sum, (value, weight)| A::add(sum, *value, *weight)));
            }
        }
    });

    let mut resized = vec![zero; COLOURS * down.len() * side];
    let pieces = resized.par_chunks_mut(ROWS * side).enumerate();
    pieces.for_each(|(piece, resized)| {
        let mut sums = vec![A::START; side];
        for (at, resized) in resized.chunks_exact_mut(side).enumerate() {
            let at = piece * ROWS + at;
            let (colour, of) = (at / down.len(), &down[at % down.len()]);
            sums.fill(A::START);
            let seen = narrow[(colour * height + of.first - first) * side..].chunks_exact(side);
            for (row, weight) in seen.zip(&of.weights) {
                let values = sums.iter_mut().zip(row);
                values.for_each(|(sum, value)| *sum = A::add(*sum, *value, *weight));
            }
            let values = resized.iter_mut().zip(&sums);
            values.for_each(|(value, sum)| *value = A::round(*sum));
        }
    });
    resized
}

fn neighbours<A: Arithmetic>(
    sizes: (usize, usize),
    kept: &Range<usize>,
    filter: Filter,
) -> Vec<Neighbours<A::Sum>> {
    let taps = taps(sizes, kept, filter).into_iter();
    taps.map(|taps| Neighbours {
        first: taps.first,
        weights: taps.weights.into_iter().map(A::weight).collect(),
    })
    .collect()
}
