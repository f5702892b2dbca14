//! Which input value lies under which tap, and weights in the order of the taps.

use flow_kernels::host::threads;
use std::ops::Range;

/// The sizes of a convolution of `[batch, input.., channels]` to `[batch, output.., outputs]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem {
    pub batch: usize,
    /// Frames, rows, columns.
    pub input: [usize; 3],
    pub channels: usize,
    /// Frames, rows, columns.
    pub output: [usize; 3],
    pub outputs: usize,
    pub kernel: [usize; 3],
    pub stride: [usize; 3],
    /// Zeros before the input; what lies behind it is zero, too.
    pub before: [usize; 3],
    /// Input values are this far apart, with zeros between them: how the gradient of a stride goes back.
    pub spread: [usize; 3],
    /// Whether every pixel is first repeated twice along rows and columns.
    pub upsample: bool,
}

impl Problem {
    /// `[B, T', H', W', out]`.
    pub fn output_shape(&self) -> [usize; 5] {
        let [frames, rows, columns] = self.output;
        [self.batch, frames, rows, columns, self.outputs]
    }

    /// Pixels of one frame of the output.
    pub fn frame(&self) -> usize {
        self.output[1] * self.output[2]
    }

    /// Rows of the output as a matrix.
    pub fn rows(&self) -> usize {
        self.batch * self.output[0] * self.frame()
    }

    /// Number of taps.
    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Values under the taps of one output: length of a row of the copy, if no tap is left out.
    pub fn depth(&self) -> usize {
        self.taps() * self.channels
    }

    /// Where along an axis of the input `tap` of output `at` lies; `None` on a zero.
    fn source(&self, axis: usize, at: usize, tap: usize) -> Option<usize> {
        let place = (at * self.stride[axis] + tap).checked_sub(self.before[axis])?;
        if !place.is_multiple_of(self.spread[axis]) {
            return None;
        }
        let repeated = if self.upsample && axis > 0 { 2 } else { 1 };
        let source = place / self.spread[axis] / repeated;
        (source < self.input[axis]).then_some(source)
    }

    /// Copies what lies under one line of taps, number `tap_row` of frame `tap_frame` of the kernel, of `pixels` of output frame
    /// number `frame` (over the whole batch), to rows of `columns`. False, and nothing is copied, if that frame is all zeros.
    pub fn gather(
        &self,
        x: &[f32],
        (frame, pixels): (usize, Range<usize>),
        (tap_frame, tap_row): (usize, usize),
        columns: &mut Vec<f32>,
    ) -> bool {
        let (sample, frame) = (frame / self.output[0], frame % self.output[0]);
        let Some(frame) = self.source(0, frame, tap_frame) else {
            return false;
        };
        columns.clear();
        for pixel in pixels {
            let row = self.source(1, pixel / self.output[2], tap_row);
            for tap_column in 0..self.kernel[2] {
                let column = self.source(2, pixel % self.output[2], tap_column);
                match row.zip(column) {
                    Some((row, column)) => {
                        columns.extend_from_slice(self.pixel(x, sample, frame, row, column));
                    }
                    None => columns.resize(columns.len() + self.channels, 0.0),
                }
            }
        }
        true
    }

    /// What lies under one tap of the rows `rows` of the output, `[rows, channels]`.
    pub fn gather_tap(&self, x: &[f32], rows: Range<usize>, tap: usize, values: &mut Vec<f32>) {
        values.clear();
        let [_, tap_rows, tap_columns] = self.kernel;
        let taps = [
            tap / (tap_rows * tap_columns),
            tap / tap_columns % tap_rows,
            tap % tap_columns,
        ];
        let [frames, height, width] = self.output;
        for index in rows {
            let at = [
                index / (height * width) % frames,
                index / width % height,
                index % width,
            ];
            let source: [_; 3] = std::array::from_fn(|axis| self.source(axis, at[axis], taps[axis]));
            match source {
                [Some(frame), Some(row), Some(column)] => {
                    let sample = index / (frames * height * width);
                    values.extend_from_slice(self.pixel(x, sample, frame, row, column));
                }
                _ => values.resize(values.len() + self.channels, 0.0),
            }
        }
    }

    fn pixel<'x>(&self, x: &'x [f32], sample: usize, frame: usize, row: usize, column: usize) -> &'x [f32] {
        let [frames, height, width] = self.input;
        let pixel = ((sample * frames + frame) * height + row) * width + column;
        &x[pixel * self.channels..][..self.channels]
    }
}

/// A weight `[out, C, taps]` as `[out, taps · C]`: channels of a tap side by side, as the copies are.
pub(super) fn packed_forward(problem: &Problem, weight: &[f32]) -> Vec<f32> {
    let (taps, channels, depth) = (problem.taps(), problem.channels, problem.depth());
    threads::build_zeros(problem.outputs * depth, depth, |output, packed| {
        let weight = &weight[output * depth..][..depth];
        for (tap, packed) in packed.chunks_exact_mut(channels).enumerate() {
            let values = weight[tap..].iter().step_by(taps);
            packed.iter_mut().zip(values).for_each(|(to, from)| *to = *from);
        }
    })
}

/// The same weight for the way back: `[C, taps · out]` with the taps in reverse.
pub(super) fn packed_backward(problem: &Problem, weight: &[f32]) -> Vec<f32> {
    let (taps, outputs, depth) = (problem.taps(), problem.outputs, problem.depth());
    let length = taps * outputs;
    threads::build_zeros(problem.channels * length, length, |channel, packed| {
        for (tap, packed) in packed.chunks_exact_mut(outputs).enumerate() {
            let values = weight[channel * taps + (taps - 1 - tap)..].iter().step_by(depth);
            packed.iter_mut().zip(values).for_each(|(to, from)| *to = *from);
        }
    })
}
