//! Gradients of a convolution. Each is gathered, never scattered, so no two tasks add to the same memory.

use super::forward::forward;
use super::problem::{Problem, packed_backward};
use flow_kernels::host::matrix::{Matrix, MatrixMut, Write, multiply};
use flow_kernels::host::threads::{self, Pieces, Start};

/// Rows of the output whose products are added to a weight's gradient at a time.
const ROWS: usize = 1024;

/// The gradient of the input: a convolution of the gradient with the taps in reverse.
pub(super) fn input(problem: &Problem, weight: &[f32], gradient: &[f32]) -> Vec<f32> {
    let factor = if problem.upsample { 2 } else { 1 };
    let [frames, rows, columns] = problem.input;
    let seen = [frames, factor * rows, factor * columns];
    let back = Problem {
        batch: problem.batch,
        input: problem.output,
        channels: problem.outputs,
        output: seen,
        outputs: problem.channels,
        kernel: problem.kernel,
        stride: [1; 3],
        before: std::array::from_fn(|axis| problem.kernel[axis] - 1 - problem.before[axis]),
        spread: problem.stride,
        upsample: false,
    };
    let dx = forward(&back, gradient, &packed_backward(problem, weight), None);
    if problem.upsample {
        summed_squares(&dx, problem)
    } else {
        dx
    }
}

/// Sums of the four pixels that are copies of one.
fn summed_squares(dx: &[f32], problem: &Problem) -> Vec<f32> {
    let ([frames, rows, columns], channels) = (problem.input, problem.channels);
    let row = columns * channels;
    threads::build_zeros(problem.batch * frames * rows * row, row, |index, to| {
        for line in dx[index * 4 * row..][..4 * row].chunks_exact(2 * row) {
            for (to, pair) in to.chunks_exact_mut(channels).zip(line.chunks_exact(2 * channels)) {
                let (left, right) = pair.split_at(channels);
                for (to, (left, right)) in to.iter_mut().zip(left.iter().zip(right)) {
                    *to += left + right;
                }
            }
        }
    })
}

/// The gradient of the weight, `[out, C, taps]`. A task has one tap and adds the products of all rows in order.
pub(super) fn weight(problem: &Problem, x: &[f32], gradient: &[f32]) -> Vec<f32> {
    let (taps, channels, outputs) = (problem.taps(), problem.channels, problem.outputs);
    let (rows, piece) = (problem.rows(), channels * outputs);
    let pieces = Pieces {
        length: taps * piece,
        size: piece,
    };
    let work = rows * outputs * problem.depth() / 16;
    let by_tap = threads::build(pieces, work, Start::Zeros, |tap, product| {
        let mut values = Vec::new();
        for first in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first);
            problem.gather_tap(x, first..first + count, tap, &mut values);
            let gradient = &gradient[first * outputs..][..count * outputs];
            multiply(
                &mut MatrixMut::new(product, outputs, channels, channels),
                Matrix::new(gradient, count, outputs, outputs).transposed(),
                Matrix::new(&values, count, channels, channels),
                Write::Add,
            );
        }
    });
    threads::build_zeros(outputs * channels * taps, channels * taps, |output, dweight| {
        for (channel, dweight) in dweight.chunks_exact_mut(taps).enumerate() {
            let values = by_tap[output * channels + channel..].iter().step_by(piece);
            dweight.iter_mut().zip(values).for_each(|(to, from)| *to = *from);
        }
    })
}

/// The gradient of the bias: sums over all rows, by pieces of fixed size and then the pieces in order.
pub(super) fn bias(gradient: &[f32], outputs: usize) -> Vec<f32> {
    let per_piece = threads::rows_per_piece(outputs) * outputs;
    let pieces = Pieces {
        length: gradient.len().div_ceil(per_piece) * outputs,
        size: outputs,
    };
    let partial = threads::build(pieces, gradient.len(), Start::Zeros, |index, sums| {
        let start = index * per_piece;
        let rows = &gradient[start..gradient.len().min(start + per_piece)];
        for row in rows.chunks_exact(outputs) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
    });
    threads::sum_rows(&partial, outputs)
}
