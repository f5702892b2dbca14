//! The low and the high frequencies of differences of latents, plane by plane.
//!
//! Few frequencies are low, so they alone are computed, by the definition of the transform: along the rows of a plane,
//! then along its columns, and back. A plane is real, so half of the frequencies along rows suffice. Sines and cosines come
//! from the host, where they are rounded from f64; sums are f32 in the order of what is summed.

use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, with_type};
use crate::feature_cache::Row;
use cubecl::prelude::*;

/// Threads of a block.
const THREADS: usize = 256;

/// Sizes of a latent: `planes` of `height` times `width` values, and the radius of the disc of low frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frequencies {
    /// Planes: channels times frames.
    pub planes: usize,
    /// Rows of a plane.
    pub height: usize,
    /// Columns of a plane.
    pub width: usize,
    /// Frequencies within this distance of 0 are low; less than half of the shorter side.
    pub radius: usize,
}

/// The two latents whose difference is taken, and where they begin in their buffers.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct LatentPair<F: Float> {
    /// Where `a` is.
    pub a: &'static [F],
    /// Where `b` is.
    pub b: &'static [F],
    /// The first value of `a`.
    pub first_a: usize,
    /// The first value of `b`.
    pub first_b: usize,
}

/// Sizes of a transform along rows.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct LineSizes {
    /// Lines on the way there, values on the way back.
    pub count: usize,
    /// Values of a line.
    pub width: usize,
    /// Frequencies of a line that are kept.
    pub kept: usize,
}

/// Sizes of a transform along columns.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ColumnSizes {
    /// Planes.
    pub planes: usize,
    /// Rows of a plane that is read.
    pub from: usize,
    /// Rows of a plane that is written.
    pub to: usize,
    /// Rows of a plane of values.
    pub height: usize,
    /// Frequencies of a row that are kept.
    pub kept: usize,
}

/// `e^{-2πi k x / width}` summed over each line of `a - b`, `k` from 0 on: `out [lines, kept, 2]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn transform_lines<F: Float>(
    pair: &LatentPair<F>,
    table: &[f32],
    out: &mut [f32],
    sizes: &LineSizes,
) {
    let at = ABSOLUTE_POS;
    if at < sizes.count * sizes.kept {
        let line = at / sizes.kept * sizes.width;
        let k = at % sizes.kept;
        let mut re = 0.0f32;
        let mut im = 0.0f32;
        for x in 0..sizes.width {
            let value = f32::cast_from(pair.a[pair.first_a + line + x])
                - f32::cast_from(pair.b[pair.first_b + line + x]);
            let angle = k * x % sizes.width;
            re = fma(value, table[2 * angle], re);
            im = fma(-value, table[2 * angle + 1], im);
        }
        out[2 * at] = re;
        out[2 * at + 1] = im;
    }
}

/// Along the columns of planes of `from` rows to planes of `to` rows: from values to the frequencies `-radius..=radius`,
/// those outside of the disc being 0, or `back`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn transform_columns(
    input: &[f32],
    table: &[f32],
    out: &mut [f32],
    sizes: &ColumnSizes,
    #[comptime] back: bool,
) {
    let at = ABSOLUTE_POS;
    if at < sizes.planes * sizes.to * sizes.kept {
        let k = at % sizes.kept;
        let m = at / sizes.kept % sizes.to;
        let plane = at / sizes.kept / sizes.to;
        let radius = sizes.kept - 1;
        let mut re = 0.0f32;
        let mut im = 0.0f32;
        for n in 0..sizes.from {
            let value = 2 * ((plane * sizes.from + n) * sizes.kept + k);
            let x = input[value];
            let y = input[value + 1];
            if comptime!(back) {
                let angle = (n + sizes.height - radius) * m % sizes.height;
                let cos = table[2 * angle];
                let sin = table[2 * angle + 1];
                re = fma(-y, sin, fma(x, cos, re));
                im = fma(y, cos, fma(x, sin, im));
            } else {
                let angle = (m + sizes.height - radius) * n % sizes.height;
                let cos = table[2 * angle];
                let sin = table[2 * angle + 1];
                re = fma(y, sin, fma(x, cos, re));
                im = fma(y, cos, fma(-x, sin, im));
            }
        }
        if comptime!(!back) {
            // The distance of `m` from the middle row, squared, without negative numbers.
            let distance = m * m + radius * radius - 2 * m * radius;
            if distance + k * k > radius * radius {
                re = 0.0f32;
                im = 0.0f32;
            }
        }
        out[2 * at] = re;
        out[2 * at + 1] = im;
    }
}

/// Back along the rows: `low`, and `high = a - b - low`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn restore_lines<F: Float>(
    pair: &LatentPair<F>,
    input: &[f32],
    table: &[f32],
    low: &mut [F],
    high: &mut [F],
    sizes: &LineSizes,
    scale: f32,
) {
    let at = ABSOLUTE_POS;
    if at < sizes.count {
        let line = at / sizes.width;
        let x = at % sizes.width;
        let mut sum = 0.0f32;
        for k in 1..sizes.kept {
            let value = 2 * (line * sizes.kept + k);
            let angle = k * x % sizes.width;
            sum = fma(input[value], table[2 * angle], sum);
            sum = fma(-input[value + 1], table[2 * angle + 1], sum);
        }
        // A frequency and its negative give conjugates, so twice the real part.
        let result = fma(2.0f32, sum, input[2 * line * sizes.kept]) * scale;
        let difference =
            f32::cast_from(pair.a[pair.first_a + at]) - f32::cast_from(pair.b[pair.first_b + at]);
        low[at] = F::cast_from(result);
        high[at] = F::cast_from(difference - result);
    }
}

/// `cos` and `sin` of `2π n / size`, one after the other.
fn table(client: &Client, size: usize) -> Buffer {
    let angle = |n: usize| std::f64::consts::TAU * n as f64 / size as f64;
    let values: Vec<f64> = (0..size).flat_map(|n| [angle(n).cos(), angle(n).sin()]).collect();
    Buffer::upload(client, &values, Element::F32)
}

impl Frequencies {
    fn values(&self) -> usize {
        self.planes * self.height * self.width
    }

    /// Writes the low and the high frequencies of `a - b`, latents of the same type, which `low` and `high` have too. They
    /// sum to it, but for the rounding of what is stored.
    ///
    /// # Errors
    /// [`Refused`] if a row is not there, a type differs or the disc is too large.
    pub fn split(
        &self,
        client: &Client,
        [a, b]: [Row<'_>; 2],
        [low, high]: [&Buffer; 2],
    ) -> Result<(), Refused> {
        let (values, element) = (self.values(), a.buffer.element);
        at_least_one("values", values)?;
        a.expect("a", values, 1, element)?;
        b.expect("b", values, 1, element)?;
        low.expect_of("low", values, element)?;
        high.expect_of("high", values, element)?;
        let shorter = self.height.min(self.width);
        if 2 * self.radius >= shorter {
            return Err(Refused::Size {
                name: "radius",
                found: self.radius,
                allowed: format!("less than half of {shorter}, the shorter side"),
            });
        }
        let (kept, diameter) = (self.radius + 1, 2 * self.radius + 1);
        let lines = self.planes * self.height;
        let [of_rows, of_columns] = [self.width, self.height].map(|size| table(client, size));
        let room = |length: usize| Buffer::empty(client, 2 * length * kept, Element::F32);
        let (lined, turned, returned) = (room(lines), room(self.planes * diameter), room(lines));
        let blocks = |count: usize| grid(client, count.div_ceil(THREADS));
        let threads = CubeDim::new_1d(THREADS as u32);
        let (first_a, first_b) = (a.row * values, b.row * values);
        // SAFETY: what is given was checked, and the rest was made by the same sizes.
        with_type!(element, F => unsafe {
            transform_lines::launch_unchecked::<F>(
                client,
                blocks(lines * kept),
                threads,
                address_type(&[a.buffer, b.buffer, &lined]),
                LatentPairLaunch::new(a.buffer.argument(), b.buffer.argument(), first_a, first_b),
                of_rows.argument(),
                lined.argument(),
                LineSizesLaunch::new(lines, self.width, kept),
            );
        });
        for back in [false, true] {
            let (input, output) = if back {
                (&turned, &returned)
            } else {
                (&lined, &turned)
            };
            let (from, to) = if back {
                (diameter, self.height)
            } else {
                (self.height, diameter)
            };
            // SAFETY: likewise.
            unsafe {
                transform_columns::launch_unchecked(
                    client,
                    blocks(self.planes * to * kept),
                    threads,
                    address_type(&[&lined]),
                    input.argument(),
                    of_columns.argument(),
                    output.argument(),
                    ColumnSizesLaunch::new(self.planes, from, to, self.height, kept),
                    back,
                );
            }
        }
        // SAFETY: likewise.
        with_type!(element, F => unsafe {
            restore_lines::launch_unchecked::<F>(
                client,
                blocks(values),
                threads,
                address_type(&[a.buffer, b.buffer, &returned]),
                LatentPairLaunch::new(a.buffer.argument(), b.buffer.argument(), first_a, first_b),
                returned.argument(),
                of_rows.argument(),
                low.argument(),
                high.argument(),
                LineSizesLaunch::new(values, self.width, kept),
                1.0 / (self.height * self.width) as f32,
            );
        });
        Ok(())
    }
}
