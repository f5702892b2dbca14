//! Pictures with a border of zeros, as convolutions read them: copied, normalised and activated, or enlarged on the way.

use super::{Pictures, width};
use crate::activation::activate_each;
use crate::buffer::{Buffer, Refusal, address_type, grid, with_type};
use crate::columns::THREADS;
use cubecl::prelude::*;
use flow_cube::activation::{Activation, Arithmetic};

/// What is written of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bordered {
    /// Zeros above and below, left and right: rows and columns.
    pub border: [usize; 2],
    /// Frames of zeros before the first.
    pub frames_before: usize,
    /// How often each pixel is repeated along rows and columns: 1, or 2 for nearest-neighbour upsampling.
    pub repeat: usize,
    /// Whether `x · sigmoid(x)` follows the norm.
    pub silu: bool,
}

impl Bordered {
    /// The axes of what is written of pictures of `axes`.
    pub fn axes(&self, [batch, frames, height, columns, channels]: [usize; 5]) -> [usize; 5] {
        [
            batch,
            frames + self.frames_before,
            height * self.repeat + 2 * self.border[0],
            columns * self.repeat + 2 * self.border[1],
            channels,
        ]
    }
}

/// Sizes of what is written, in vectors of channels, and strides of what is read.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct BorderSizes {
    /// All vectors.
    pub count: usize,
    /// Vectors of a pixel.
    pub vectors: usize,
    /// Frames of a sample.
    pub frames: usize,
    /// Rows of a frame.
    pub rows: usize,
    /// Pixels of a row.
    pub columns: usize,
    /// From a sample to the next.
    pub sample_stride: usize,
    /// From a frame to the next.
    pub frame_stride: usize,
    /// From a row to the next.
    pub row_stride: usize,
    /// From a pixel to the next.
    pub pixel_stride: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn border_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    scale: &[Vector<f32, N>],
    shift: &[Vector<f32, N>],
    y: &mut [Vector<F, N>],
    sizes: &BorderSizes,
    #[comptime] bordered: Bordered,
    #[comptime] normed: bool,
    #[comptime] arithmetic: Arithmetic,
) {
    let at = ABSOLUTE_POS;
    if at < sizes.count {
        let channel = at % sizes.vectors;
        let pixel = at / sizes.vectors;
        let column = pixel % sizes.columns;
        let row = pixel / sizes.columns % sizes.rows;
        let frame = pixel / sizes.columns / sizes.rows % sizes.frames;
        let sample = pixel / sizes.columns / sizes.rows / sizes.frames;
        let [above, left] = comptime!(bordered.border);
        let inside = row >= above
            && row < sizes.rows - above
            && column >= left
            && column < sizes.columns - left
            && frame >= comptime!(bordered.frames_before);
        let mut value = Vector::<f32, N>::new(0.0f32);
        if inside {
            let from = sample * sizes.sample_stride
                + (frame - comptime!(bordered.frames_before)) * sizes.frame_stride
                + (row - above) / comptime!(bordered.repeat) * sizes.row_stride
                + (column - left) / comptime!(bordered.repeat) * sizes.pixel_stride
                + channel;
            value = Vector::cast_from(x[from]);
            if comptime!(normed) {
                let of = sample * sizes.vectors + channel;
                value = value * scale[of] + shift[of];
            }
            if comptime!(bordered.silu) {
                value = activate_each::<N>(value, Activation::Silu, arithmetic);
            }
        }
        y[at] = Vector::cast_from(value);
    }
}

/// Writes `x`, times a scale and plus a shift for each sample and channel (`[B, C]`, f32) where `factors` are given, with its
/// border to `y`, which is without gaps.
///
/// # Errors
/// [`Refusal`] if a tensor does not fit.
pub fn border(
    client: &Client,
    x: &Pictures,
    factors: Option<[&Buffer; 2]>,
    y: &Buffer,
    bordered: Bordered,
) -> Result<(), Refusal> {
    let element = x.buffer.element;
    let width = width(x.axes[4], element);
    x.check("x", width)?;
    let axes = bordered.axes(x.axes);
    y.expect_of("y", axes.iter().product(), element)?;
    let [batch, frames, rows, columns, channels] = axes;
    for (name, factor) in ["scale", "shift"].into_iter().zip(factors.into_iter().flatten()) {
        factor.expect_of(name, batch * channels, crate::Element::F32)?;
    }
    let unused = Buffer::empty(client, width, crate::Element::F32);
    let [scale, shift] = factors.unwrap_or([&unused; 2]);
    let count = y.length / width;
    let [sample_stride, frame_stride, row_stride, pixel_stride] = x.vectors(width);
    // SAFETY: lengths and reach were checked.
    with_type!(element, F => unsafe {
        border_kernel::launch_unchecked::<F>(
            client,
            grid(client, count.div_ceil(THREADS)),
            CubeDim::new_1d(THREADS as u32),
            address_type(&[&x.buffer, y]),
            width,
            x.buffer.argument(),
            scale.argument(),
            shift.argument(),
            y.argument(),
            BorderSizesLaunch::new(
                count,
                channels / width,
                frames,
                rows,
                columns,
                sample_stride,
                frame_stride,
                row_stride,
                pixel_stride,
            ),
            bordered,
            factors.is_some(),
            Arithmetic::of(client, element),
        );
    });
    Ok(())
}
