//! Rows of activations in e4m3 with a scale each, and what becomes of the sums of their products with a matrix's codes.
//!
//! The numbers of e4m3 are numbers of bf16, f16 and f32, so a product in any of these types multiplies them exactly, and its sums differ
//! from those of a product of bytes by their order alone.

use super::LowPrecision;
use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, width, with_type};
use crate::columns::THREADS;
use crate::rows::{Rows, plane_size, row_largest};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;

/// The number of e4m3 nearest to `value`, of two equally near ones the one with the even code; at most 464 in magnitude.
#[cube]
fn round_to_e4m3(value: f32) -> f32 {
    let bits = u32::reinterpret(value);
    let magnitude = bits & 0x7FFF_FFFFu32;
    // Three bits of mantissa stay.
    let normal = (magnitude + 0x7_FFFFu32 + ((magnitude >> 20u32) & 1u32)) & 0xFFF0_0000u32;
    // Below the smallest normal number, 2^-6, steps are 2^-9.
    let steps = f32::reinterpret(magnitude) * 512.0f32;
    let whole = u32::cast_from(steps);
    let rest = steps - f32::cast_from(whole);
    let above = select(rest > 0.5f32, 1u32, 0u32);
    let tie = select(rest == 0.5f32, whole & 1u32, 0u32);
    let small = f32::cast_from(whole + above + tie) * 0.001953125f32;
    let rounded = select(magnitude < 0x3C80_0000u32, u32::reinterpret(small), normal);
    f32::reinterpret(rounded | (bits & 0x8000_0000u32))
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn quantise_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    values: &mut [Vector<F, N>],
    scales: &mut [f32],
    row_count: usize,
    #[comptime] rows: Rows,
) {
    let held = comptime!(rows.held());
    let vectors = comptime!(rows.vectors());
    let mut shared: Shared<[u32]> = Shared::new_slice(comptime!(rows.shared(1)));
    let lane = UNIT_POS as usize % rows.threads_per_row;
    let asked = CUBE_POS * rows.groups + UNIT_POS as usize / rows.threads_per_row;
    let exists = asked < row_count;
    let row = select(exists, asked, 0usize);
    let mut kept = Array::<Vector<f32, N>>::new(held);
    let mut largest = Array::<u32>::new(1usize);
    largest[0] = 0u32;
    #[unroll]
    for i in 0..held {
        let at = lane + comptime!(i * rows.threads_per_row);
        // Beyond the row its first values again, which change no maximum.
        let place = select(at < vectors, at, 0usize);
        let value = Vector::<f32, N>::cast_from(x[row * vectors + place]);
        kept[i] = value;
        #[unroll]
        for j in 0..N::value() {
            // Bits of magnitudes are ordered as these are, those that are not finite above all others.
            largest[0] = max(largest[0], u32::reinterpret(value.extract(j)) & 0x7FFF_FFFFu32);
        }
    }
    let bits = row_largest(largest[0], &mut shared, rows);
    // At least 2^-116, of a row that is not finite NaN.
    let finite = max(f32::reinterpret(bits) / 448.0f32, 1.2037062e-35f32);
    let scale_bits = select(
        bits < 0x7F80_0000u32,
        u32::reinterpret(finite),
        bits | 0x7FC0_0000u32,
    );
    let scale = f32::reinterpret(scale_bits);
    if exists {
        #[unroll]
        for i in 0..held {
            let at = lane + comptime!(i * rows.threads_per_row);
            if at < vectors {
                let mut result = Vector::<f32, N>::empty();
                #[unroll]
                for j in 0..N::value() {
                    result.insert(j, round_to_e4m3(kept[i].extract(j) / scale));
                }
                values[row * vectors + at] = Vector::cast_from(result);
            }
        }
        if lane == 0 {
            scales[row] = scale;
        }
    }
}

/// Writes the numbers of e4m3, without their scales, of `x`, rows of `columns` values, to `values`, of the type of `x`, and the scale of
/// each row to `scales`, f32: the row's largest magnitude divided by 448, at least 2^-116. Each number is that nearest to the quotient of
/// the value and the scale, of two equally near ones the even one. The scale of a row with a value that is not finite is NaN.
///
/// # Errors
/// [`Refused`] if a tensor does not fit; nothing was launched then.
pub fn quantise(
    client: &Client,
    x: &Buffer,
    columns: usize,
    values: &Buffer,
    scales: &Buffer,
) -> Result<(), Refused> {
    at_least_one("columns", columns)?;
    let row_count = x.length / columns;
    x.expect("x", row_count * columns)?;
    values.expect_of("values", x.length, x.element)?;
    scales.expect_of("scales", row_count, Element::F32)?;
    if x.length == 0 {
        return Ok(());
    }
    let width = width(columns, x.element);
    let rows = Rows::several(columns, width, plane_size(client));
    // SAFETY: all lengths were checked.
    with_type!(x.element, F => unsafe {
        quantise_kernel::launch_unchecked::<F>(
            client,
            grid(client, row_count.div_ceil(rows.groups)),
            CubeDim::new_1d(rows.threads() as u32),
            address_type(&[x]),
            width,
            x.argument(),
            values.argument(),
            scales.argument(),
            row_count,
            rows,
        );
    });
    Ok(())
}

/// A thread scales the sums of a vector, all of one row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn scale_kernel<F: Float, G: Float, N: Size>(
    sums: &[Vector<f32, N>],
    activation_scales: &[f32],
    words: &[u32],
    added: &[Vector<f32, N>],
    bias: &[Vector<F, N>],
    result: &mut [Vector<G, N>],
    vectors: usize,
    row_vectors: usize,
    first_scale: usize,
    #[comptime] is_added: bool,
    #[comptime] has_bias: bool,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let row = at / row_vectors;
        let column = at % row_vectors;
        let mut scales = Vector::<f32, N>::empty();
        #[unroll]
        for lane in 0..N::value() {
            let word = words[first_scale + column * N::value() + lane];
            scales.insert(lane, f32::reinterpret(word));
        }
        let mut value = sums[at] * scales * Vector::new(activation_scales[row]);
        if comptime!(has_bias) {
            value += Vector::<f32, N>::cast_from(bias[column]);
        }
        if comptime!(is_added) {
            value += added[at];
        }
        result[at] = Vector::cast_from(value);
    }
}

/// Sums of products of codes, and what is added to them once they are scaled.
#[derive(Clone, Copy, Debug)]
pub struct ScaledSums<'a> {
    /// Sums `[tokens, rows]` of products of the codes of activations with those of the matrix, f32.
    pub sums: &'a Buffer,
    /// Scales `[tokens]` of the activations, f32.
    pub activation_scales: &'a Buffer,
    /// `[tokens, rows]`, f32, of a low-rank adapter.
    pub added: Option<&'a Buffer>,
    /// `[rows]`, of any type.
    pub bias: Option<&'a Buffer>,
}

impl LowPrecision {
    /// Writes `sums · scale of the matrix's row · scale of the activations' row + bias + added` to `result [tokens, rows]`, of any type,
    /// rounded once. The scales are those of `words`.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit, or the matrix has several scales in a row; nothing was launched then.
    pub fn scale_sums(
        &self,
        client: &Client,
        words: &Handle,
        call: ScaledSums<'_>,
        result: &Buffer,
    ) -> Result<(), Refused> {
        let expected_words = self.expect_words(words)?;
        if self.format.scales(self.columns) != 1 {
            return Err(Refused::Size {
                name: "scales of a row",
                found: self.format.scales(self.columns),
                allowed: "1".into(),
            });
        }
        let tokens = result.length / self.rows;
        result.expect("result", tokens * self.rows)?;
        call.sums.expect_of("sums", result.length, Element::F32)?;
        call.activation_scales
            .expect_of("activation_scales", tokens, Element::F32)?;
        if let Some(added) = call.added {
            added.expect_of("added", result.length, Element::F32)?;
        }
        if let Some(bias) = call.bias {
            bias.expect("bias", self.rows)?;
        }
        if result.length == 0 {
            return Ok(());
        }
        let width = width(self.rows, Element::F32);
        let unused = Buffer::empty(client, width, Element::F32);
        let bias = call.bias.unwrap_or(&unused);
        let vectors = result.length / width;
        // SAFETY: all lengths were checked.
        with_type!(bias.element, F => with_type!(result.element, G => unsafe {
            scale_kernel::launch_unchecked::<F, G>(
                client,
                grid(client, vectors.div_ceil(THREADS)),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[result]),
                width,
                call.sums.argument(),
                call.activation_scales.argument(),
                BufferArg::from_raw_parts(words.clone(), expected_words),
                call.added.unwrap_or(&unused).argument(),
                bias.argument(),
                result.argument(),
                vectors,
                self.rows / width,
                self.rows * self.row_words(),
                call.added.is_some(),
                call.bias.is_some(),
            );
        }));
        Ok(())
    }
}
