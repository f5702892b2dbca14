//! The products, strip by strip.

use super::problem::Problem;
use flow_kernels::host::matrix::{Matrix, MatrixMut, Write, multiply_rows};
use flow_kernels::host::threads::worth_threads;
use rayon::prelude::*;

/// Values that the copy of a strip holds, roughly: 8 MiB.
const STRIP_VALUES: usize = 1 << 21;
/// Bounds of the rows of a strip: with fewer, packing the weight costs too much beside the product; with more, the results do not
/// stay in a cache from one line of taps to the next.
const STRIP_ROWS: (usize, usize) = (64, 2048);

/// `[rows, outputs]`, for a weight packed as `[outputs, taps · channels]`.
pub(super) fn forward(problem: &Problem, x: &[f32], packed: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let (rows, outputs, depth) = (problem.rows(), problem.outputs, problem.depth());
    let (fewest, most) = STRIP_ROWS;
    // One strip for each thread if there are few rows. A row's bits do not depend on it.
    let shared = rows.div_ceil(rayon::current_num_threads()).next_multiple_of(16);
    let line = (problem.kernel[2] * problem.channels).max(1);
    let strip = (STRIP_VALUES / line).min(shared).clamp(fewest, most);
    let mut output = vec![0.0; rows * outputs];
    let task = |scratch: &mut Vec<f32>, (index, output): (usize, &mut [f32])| {
        compute_strip(problem, x, packed, bias, index * strip, output, scratch);
    };
    if rows > strip && worth_threads(rows * outputs * depth / 16) {
        output
            .par_chunks_mut(strip * outputs)
            .enumerate()
            .for_each_init(Vec::new, task);
    } else {
        let mut scratch = Vec::new();
        let strips = output.chunks_mut((strip * outputs).max(1)).enumerate();
        strips.for_each(|strip| task(&mut scratch, strip));
    }
    output
}

/// The rows from `first` on, as many as `output` holds: frame by frame, line by line of the taps. Lines that lie on frames of
/// zeros are left out.
fn compute_strip(
    problem: &Problem,
    x: &[f32],
    packed: &[f32],
    bias: Option<&[f32]>,
    first: usize,
    output: &mut [f32],
    columns: &mut Vec<f32>,
) {
    let (outputs, frame_pixels) = (problem.outputs, problem.frame());
    if let Some(bias) = bias {
        output
            .chunks_exact_mut(outputs)
            .for_each(|row| row.copy_from_slice(bias));
    }
    let line = problem.kernel[2] * problem.channels;
    let (mut row, end) = (first, first + output.len() / outputs);
    while row < end {
        let (frame, pixel) = (row / frame_pixels, row % frame_pixels);
        let count = (frame_pixels - pixel).min(end - row);
        let output = &mut output[(row - first) * outputs..][..count * outputs];
        for index in 0..problem.kernel[0] * problem.kernel[1] {
            let tap = (index / problem.kernel[1], index % problem.kernel[1]);
            if problem.gather(x, (frame, pixel..pixel + count), tap, columns) {
                // What is added to is the bias, or the zeros that the output was made of.
                multiply_rows(
                    &mut MatrixMut::new(output, count, outputs, outputs),
                    Matrix::new(columns, count, line, line),
                    Matrix::new(&packed[index * line..], outputs, line, problem.depth()).transposed(),
                    Write::Add,
                );
            }
        }
        row += count;
    }
}
