//! A convolution of every pixel twice, as four convolutions of every pixel once.
//!
//! Of three taps in a row on repeated pixels two lie on one pixel, so their weights are added up before: each of the four
//! pixels that become of one is a sum over two by two pixels, which is 4 products in the place of 9. A result differs from
//! that of the nine by rounding.

use super::forward;
use super::problem::Problem;
use flow_kernels::host::threads;
use std::ops::Range;

/// Whether `problem` is such a convolution of three by three taps, with one output for each repeated pixel.
pub(super) fn applies(problem: &Problem) -> bool {
    let [frames, rows, columns] = problem.input;
    problem.upsample
        && problem.kernel == [1, 3, 3]
        && problem.stride == [1; 3]
        && problem.before == [0, 1, 1]
        && problem.output == [frames, 2 * rows, 2 * columns]
}

/// `[rows, outputs]`, for a weight `[out, C, 3, 3]`.
pub(super) fn forward(problem: &Problem, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let mut output = vec![0.0; problem.rows() * problem.outputs];
    for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let part = Problem {
            output: problem.input,
            kernel: [1, 2, 2],
            before: [0, 1 - row, 1 - column],
            upsample: false,
            ..*problem
        };
        let packed = packed(problem, weight, [row, column]);
        let values = forward::forward(&part, x, &packed, bias);
        place(&mut output, &values, problem, [row, column]);
    }
    output
}

/// The taps of three that lie on the first and on the second of two pixels, for the upper or left (0) or the lower or right
/// (1) of the pixels that become of one.
fn taps(which: usize) -> [Range<usize>; 2] {
    match which {
        0 => [0..1, 1..3],
        _ => [0..2, 2..3],
    }
}

/// The weight of one of the four, `[out, 4 · C]`: channels of a tap side by side.
fn packed(problem: &Problem, weight: &[f32], [row, column]: [usize; 2]) -> Vec<f32> {
    let channels = problem.channels;
    threads::build_zeros(problem.outputs * 4 * channels, 4 * channels, |output, packed| {
        let weight = &weight[output * 9 * channels..][..9 * channels];
        for (tap, packed) in packed.chunks_exact_mut(channels).enumerate() {
            let (rows, columns) = (taps(row)[tap / 2].clone(), taps(column)[tap % 2].clone());
            for (to, taps) in packed.iter_mut().zip(weight.chunks_exact(9)) {
                let lines = rows.clone().map(|row| &taps[3 * row..][columns.clone()]);
                *to = lines.flatten().sum();
            }
        }
    })
}

/// Puts the pixels of one of the four at their places.
fn place(output: &mut [f32], values: &[f32], problem: &Problem, [row, column]: [usize; 2]) {
    let (outputs, columns) = (problem.outputs, problem.input[2]);
    // Two lines at a time: those that become of one.
    threads::for_each_piece(output, 4 * columns * outputs, |line, pair| {
        let to = &mut pair[row * 2 * columns * outputs..][..2 * columns * outputs];
        let from = &values[line * columns * outputs..][..columns * outputs];
        let pixels = to.chunks_exact_mut(2 * outputs).zip(from.chunks_exact(outputs));
        pixels.for_each(|(to, from)| to[column * outputs..][..outputs].copy_from_slice(from));
    });
}
