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

/// `e^{-2πi k x / width}` summed over each line of `a - b`, `k` from 0 on: `out [lines, kept, 2]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn transform_lines<F: Float>(
    a: &[F],
    b: &[F],
    table: &[f32],
    out: &mut [f32],
    first_a: usize,
    first_b: usize,
    lines: usize,
    width: usize,
    kept: usize,
) {
    let at = ABSOLUTE_POS;
    if at < lines * kept {
        let line = at / kept * width;
        let k = at % kept;
        let mut re = 0.0f32;
        let mut im = 0.0f32;
        for x in 0..width {
            let value = f32::cast_from(a[first_a + line + x]) - f32::cast_from(b[first_b + line + x]);
            let angle = k * x % width;
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
    planes: usize,
    from: usize,
    to: usize,
    height: usize,
    kept: usize,
    #[comptime] back: bool,
) {
    let at = ABSOLUTE_POS;
    if at < planes * to * kept {
        let k = at % kept;
        let m = at / kept % to;
        let plane = at / kept / to;
        let radius = kept - 1;
        let mut re = 0.0f32;
        let mut im = 0.0f32;
        for n in 0..from {
            let value = 2 * ((plane * from + n) * kept + k);
            let x = input[value];
            let y = input[value + 1];
            if comptime!(back) {
                let angle = (n + height - radius) * m % height;
                let cos = table[2 * angle];
                let sin = table[2 * angle + 1];
                re = fma(-y, sin, fma(x, cos, re));
                im = fma(y, cos, fma(x, sin, im));
            } else {
                let angle = (m + height - radius) * n % height;
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
    a: &[F],
    b: &[F],
    input: &[f32],
    table: &[f32],
    low: &mut [F],
    high: &mut [F],
    first_a: usize,
    first_b: usize,
    values: usize,
    width: usize,
    kept: usize,
    scale: f32,
) {
    let at = ABSOLUTE_POS;
    if at < values {
        let line = at / width;
        let x = at % width;
        let mut sum = 0.0f32;
        for k in 1..kept {
            let value = 2 * (line * kept + k);
            let angle = k * x % width;
            sum = fma(input[value], table[2 * angle], sum);
            sum = fma(-input[value + 1], table[2 * angle + 1], sum);
        }
        // A frequency and its negative give conjugates, so twice the real part.
        let result = fma(2.0f32, sum, input[2 * line * kept]) * scale;
        let difference = f32::cast_from(a[first_a + at]) - f32::cast_from(b[first_b + at]);
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
                a.buffer.argument(),
                b.buffer.argument(),
                of_rows.argument(),
                lined.argument(),
                first_a,
                first_b,
                lines,
                self.width,
                kept,
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
                    self.planes,
                    from,
                    to,
                    self.height,
                    kept,
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
                a.buffer.argument(),
                b.buffer.argument(),
                returned.argument(),
                of_rows.argument(),
                low.argument(),
                high.argument(),
                first_a,
                first_b,
                values,
                self.width,
                kept,
                1.0 / (self.height * self.width) as f32,
            );
        });
        Ok(())
    }
}
