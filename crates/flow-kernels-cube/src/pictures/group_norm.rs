//! Mean and variance over groups of channels of a sample (Wu and He 2018, arXiv:1803.08494), as factors for each channel.
//!
//! Sums are of differences to the sample's first pixel: squares of large values with a small spread would cancel. Pieces of rows
//! are summed beside one another and added up in their order, so the result depends on nothing but the sizes.

use super::{Pictures, width};
use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, with_type};
use crate::columns::{Columns, THREADS, fold, place};
use crate::rows::{Rows, plane_size, row_sums};
use cubecl::prelude::*;

/// Threads that add up the pieces of a group.
const ADDERS: usize = 128;
/// Pieces of a sample that are summed beside one another, at most.
const PIECES: usize = 256;

/// Sizes of sums over pieces of a sample's pixels; strides are in vectors of channels.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct GroupSumSizes {
    /// Samples.
    pub batch: usize,
    /// Frames of a sample.
    pub frames: usize,
    /// Rows of a frame.
    pub rows: usize,
    /// Pixels of a row.
    pub pixels: usize,
    /// From a sample to the next.
    pub sample_stride: usize,
    /// From a frame to the next.
    pub frame_stride: usize,
    /// From a row to the next.
    pub row_stride: usize,
    /// From a pixel to the next.
    pub pixel_stride: usize,
    /// Pixels of a piece.
    pub piece: usize,
}

/// Sums of `x - first pixel` and of its squares over pieces of a sample's rows: `partials [B, pieces, 2, C]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn group_sums<F: Float, N: Size>(
    x: &[Vector<F, N>],
    partials: &mut [Vector<f32, N>],
    sizes: &GroupSumSizes,
    #[comptime] columns: Columns,
) {
    let mut shared: Shared<[Vector<f32, N>]> = Shared::new_slice(THREADS);
    let blocks = comptime!(columns.blocks());
    let all = sizes.frames * sizes.rows * sizes.pixels;
    let pieces = all.div_ceil(sizes.piece);
    let number = CUBE_POS / blocks;
    let sample = number / pieces;
    let first = number % pieces * sizes.piece;
    let (column, share) = place(CUBE_POS % blocks, columns);
    let end = min(first + sizes.piece, all);
    let exists = column < columns.vectors && sample < sizes.batch;
    let mut sums = Vector::<f32, N>::new(0.0f32);
    let mut squares = Vector::<f32, N>::new(0.0f32);
    if exists {
        let of_sample = sample * sizes.sample_stride + column;
        let pivot = Vector::<f32, N>::cast_from(x[of_sample]);
        for step in 0..sizes.piece / columns.down {
            let number = first + step * columns.down + share;
            if number < end {
                let at = of_sample
                    + number / sizes.pixels / sizes.rows * sizes.frame_stride
                    + number / sizes.pixels % sizes.rows * sizes.row_stride
                    + number % sizes.pixels * sizes.pixel_stride;
                let difference = Vector::<f32, N>::cast_from(x[at]) - pivot;
                sums += difference;
                squares += difference * difference;
            }
        }
    }
    let sums = fold::<N>(sums, &mut shared, columns);
    let squares = fold::<N>(squares, &mut shared, columns);
    if share == 0 && exists {
        partials[2 * number * columns.vectors + column] = sums;
        partials[(2 * number + 1) * columns.vectors + column] = squares;
    }
}

/// Sizes of a norm over groups of channels, and what is added to the variance.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct GroupSizes {
    /// Groups of all samples.
    pub all_groups: usize,
    /// Pieces of a sample's pixels.
    pub pieces: usize,
    /// Channels.
    pub channels: usize,
    /// Channels of a group.
    pub in_group: usize,
    /// Pixels of a sample.
    pub pixels: usize,
    /// From a sample to the next.
    pub sample_stride: usize,
    /// Added to the variance.
    pub epsilon: f32,
}

/// `scale` and `shift` `[B, C]`, by which a value becomes its norm, from `partials [B, pieces, 2, C]`. A block for each group of a
/// sample.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn group_factors<F: Float, W: Float>(
    x: &[F],
    partials: &[f32],
    weight: &[W],
    bias: &[W],
    scale: &mut [f32],
    shift: &mut [f32],
    sizes: &GroupSizes,
    #[comptime] adders: Rows,
) {
    let mut shared: Shared<[f32]> = Shared::new_slice(comptime!(adders.shared(1)));
    let thread = UNIT_POS as usize;
    let groups = sizes.channels / sizes.in_group;
    let exists = CUBE_POS < sizes.all_groups;
    let block = select(exists, CUBE_POS, 0usize);
    let sample = block / groups;
    let first = block % groups * sizes.in_group;
    let terms = sizes.pieces * sizes.in_group;
    let turns = terms.div_ceil(adders.threads_per_row);
    let mut sum = Array::<f32>::new(1usize);
    sum[0] = 0.0f32;
    for turn in 0..turns {
        let term = turn * adders.threads_per_row + thread;
        if term < terms {
            let channel = first + term % sizes.in_group;
            sum[0] +=
                partials[(sample * sizes.pieces + term / sizes.in_group) * 2 * sizes.channels + channel];
        }
    }
    // What every pixel of a channel has of its first one, once.
    if thread < sizes.in_group {
        sum[0] +=
            f32::cast_from(x[sample * sizes.sample_stride + first + thread]) * f32::cast_from(sizes.pixels);
    }
    row_sums(&mut sum, &mut shared, 1usize, adders);
    let count = f32::cast_from(sizes.pixels * sizes.in_group);
    let mean = sum[0] / count;
    sum[0] = 0.0f32;
    for turn in 0..turns {
        let term = turn * adders.threads_per_row + thread;
        if term < terms {
            let channel = first + term % sizes.in_group;
            let at = (sample * sizes.pieces + term / sizes.in_group) * 2 * sizes.channels + channel;
            let away = mean - f32::cast_from(x[sample * sizes.sample_stride + channel]);
            sum[0] += partials[at + sizes.channels] - 2.0f32 * away * partials[at];
        }
    }
    if thread < sizes.in_group {
        let away = mean - f32::cast_from(x[sample * sizes.sample_stride + first + thread]);
        sum[0] += away * away * f32::cast_from(sizes.pixels);
    }
    row_sums(&mut sum, &mut shared, 1usize, adders);
    let reciprocal = 1.0f32 / (max(sum[0], 0.0f32) / count + sizes.epsilon).sqrt();
    if thread < sizes.in_group && exists {
        let channel = first + thread;
        let factor = reciprocal * f32::cast_from(weight[channel]);
        scale[sample * sizes.channels + channel] = factor;
        shift[sample * sizes.channels + channel] = f32::cast_from(bias[channel]) - mean * factor;
    }
}

/// Sizes of a norm over groups of channels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    /// Groups, a divisor of the channels.
    pub groups: usize,
    /// Added to the variance.
    pub epsilon: f32,
}

impl GroupNorm {
    /// Computes `scale` and `shift`, `[B, C]` in f32, such that `x · scale + shift` is `(x - mean) / sqrt(variance + epsilon) ·
    /// weight + bias`, with mean and variance over the pixels of a sample and the channels of a group.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn factors(
        &self,
        client: &Client,
        x: &Pictures,
        [weight, bias]: [&Buffer; 2],
        [scale, shift]: [&Buffer; 2],
    ) -> Result<(), Refused> {
        let [batch, frames, rows, pixels, channels] = x.axes;
        at_least_one("groups", self.groups)?;
        let in_group = channels / self.groups;
        if channels != in_group * self.groups || in_group > ADDERS {
            return Err(Refused::Size {
                name: "groups",
                found: self.groups,
                allowed: format!(
                    "divisors of the {channels} channels that leave at most {ADDERS} of them to a group"
                ),
            });
        }
        let element = x.buffer.element;
        let width = width(channels, element);
        x.check("x", width)?;
        weight.expect("weight", channels)?;
        bias.expect_of("bias", channels, weight.element)?;
        scale.expect_of("scale", batch * channels, Element::F32)?;
        shift.expect_of("shift", batch * channels, Element::F32)?;
        let columns = Columns::new(channels, width);
        let all = frames * rows * pixels;
        let piece = all.div_ceil(PIECES).next_multiple_of(columns.down);
        let pieces = all.div_ceil(piece);
        let partials = Buffer::empty(client, batch * pieces * 2 * channels, Element::F32);
        let [sample_stride, frame_stride, row_stride, pixel_stride] = x.vectors(width);
        // SAFETY: lengths and reach were checked.
        with_type!(element, F => unsafe {
            group_sums::launch_unchecked::<F>(
                client,
                grid(client, batch * pieces * columns.blocks()),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[&x.buffer, &partials]),
                width,
                x.buffer.argument(),
                partials.argument(),
                GroupSumSizesLaunch::new(
                    batch,
                    frames,
                    rows,
                    pixels,
                    sample_stride,
                    frame_stride,
                    row_stride,
                    pixel_stride,
                    piece,
                ),
                columns,
            );
        });
        let adders = Rows {
            columns: ADDERS,
            width: 1,
            threads_per_row: ADDERS,
            groups: 1,
            plane: plane_size(client),
        };
        // SAFETY: as above.
        with_type!(element, F => with_type!(weight.element, W => unsafe {
            group_factors::launch_unchecked::<F, W>(
                client,
                grid(client, batch * self.groups),
                CubeDim::new_1d(ADDERS as u32),
                address_type(&[&x.buffer, &partials]),
                x.buffer.argument(),
                partials.argument(),
                weight.argument(),
                bias.argument(),
                scale.argument(),
                shift.argument(),
                GroupSizesLaunch::new(
                    batch * self.groups,
                    pieces,
                    channels,
                    in_group,
                    all,
                    x.strides[0],
                    self.epsilon,
                ),
                adders,
            );
        }));
        Ok(())
    }
}
