//! Softmax over rows of scores, for attention whose heads are too wide for one kernel.
//!
//! A block has a row, whatever its length. A thread's maximum and sum are of every 256th vector; those of the threads are joined in
//! one order, so a row's bits depend on its length and the device alone.

use crate::Element;
use crate::buffer::{Buffer, Refusal, at_least_one, grid, width, with_type};
use crate::columns::THREADS;
use crate::rows::{Rows, plane_size, row_sums, total};
use cubecl::prelude::*;

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn softmax_rows<F: Float, N: Size>(
    scores: &[Vector<f32, N>],
    shares: &mut [Vector<F, N>],
    count: usize,
    vectors: usize,
    factor: f32,
    #[comptime] rows: Rows,
) {
    let mut shared: Shared<[f32]> = Shared::new_slice(comptime!(rows.shared(1)));
    let mut largest_of: Shared<[f32]> = Shared::new_slice(comptime!(rows.threads_per_row));
    let thread = UNIT_POS as usize;
    let exists = CUBE_POS < count;
    let first = select(exists, CUBE_POS, 0usize) * vectors;
    let turns = vectors.div_ceil(rows.threads_per_row);
    let mut largest = f32::min_value();
    for turn in 0..turns {
        let at = turn * rows.threads_per_row + thread;
        if at < vectors {
            let values = scores[first + at];
            #[unroll]
            for i in 0..N::value() {
                largest = max(largest, values.extract(i));
            }
        }
    }
    largest_of[thread] = largest;
    sync_cube();
    for other in 0..rows.threads_per_row {
        largest = max(largest, largest_of[other]);
    }
    let mut sum = Array::<f32>::new(1usize);
    sum[0] = 0.0f32;
    for turn in 0..turns {
        let at = turn * rows.threads_per_row + thread;
        if at < vectors {
            let values = (scores[first + at] - Vector::new(largest)) * Vector::new(factor);
            sum[0] += total(values.exp());
        }
    }
    row_sums(&mut sum, &mut shared, 1usize, rows);
    let reciprocal = 1.0f32 / sum[0];
    for turn in 0..turns {
        let at = turn * rows.threads_per_row + thread;
        if at < vectors && exists {
            let values = (scores[first + at] - Vector::new(largest)) * Vector::new(factor);
            shares[first + at] = Vector::cast_from(values.exp() * Vector::new(reciprocal));
        }
    }
}

/// `shares = softmax(factor · scores)` over rows of `columns`; `scores` in f32, `factor` positive.
///
/// # Errors
/// [`Refusal`] if a tensor does not fit.
pub fn softmax(
    client: &Client,
    scores: &Buffer,
    shares: &Buffer,
    columns: usize,
    factor: f32,
) -> Result<(), Refusal> {
    at_least_one("columns", columns)?;
    scores.expect_of("scores", scores.length / columns * columns, Element::F32)?;
    shares.expect("shares", scores.length)?;
    if scores.length == 0 {
        return Ok(());
    }
    let width = width(columns, Element::F32);
    let rows = Rows {
        columns,
        width,
        threads_per_row: THREADS,
        groups: 1,
        plane: plane_size(client),
    };
    // SAFETY: all lengths were checked.
    with_type!(shares.element, F => unsafe {
        softmax_rows::launch_unchecked::<F>(
            client,
            grid(client, scores.length / columns),
            CubeDim::new_1d(THREADS as u32),
            crate::buffer::address_type(&[scores]),
            width,
            scores.argument(),
            shares.argument(),
            scores.length / columns,
            columns / width,
            factor,
            rows,
        );
    });
    Ok(())
}
