//! Rows that a kernel makes as FP8 e4m3: codes, and a scale for each row, from the registers that hold the row.
//!
//! They are those that `quantise_rows` of `flow-matmul-cube` makes of the rows as they are stored: a value is rounded to the rows' type
//! before it is divided by the scale, and a largest magnitude does not depend on an order. So who reads codes alone needs no rows, and
//! who reads both saves a launch that reads the rows.

use crate::buffer::{Refusal, wrong_length, wrong_size};
use crate::rows::Rows;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_cube::e4m3::{encode_four, magnitude_bits, scale_of};

/// Codes of a row are a multiple of this: rows lie without gaps, and begin where products want them.
const ROW_MULTIPLE: usize = 16;
/// Codes in a word.
const CODES: usize = 4;

/// Where the codes and the scales of rows go.
#[derive(Clone, Debug)]
pub struct RowCodes {
    /// `[rows, columns]`, a byte each.
    pub codes: Handle,
    /// `[rows]`, f32.
    pub scales: Handle,
}

impl RowCodes {
    /// Whether rows of `columns` values can be made as codes.
    pub fn fits(columns: usize) -> bool {
        columns > 0 && columns.is_multiple_of(ROW_MULTIPLE)
    }

    /// Refuses rows that cannot be made so, and room that is too small.
    pub(crate) fn check(&self, [rows, columns]: [usize; 2]) -> Result<(), Refusal> {
        if !Self::fits(columns) {
            return Err(wrong_size(
                "columns",
                columns,
                format!("multiples of {ROW_MULTIPLE}, for codes"),
            ));
        }
        for (name, handle, values, bytes) in [
            ("codes", &self.codes, rows * columns, 1),
            ("scales", &self.scales, rows, 4),
        ] {
            let found = handle.size_in_used() as usize / bytes;
            if found < values {
                return Err(wrong_length(name, found, values));
            }
        }
        Ok(())
    }

    /// Codes and scales as a kernel takes them, after [`check`](Self::check).
    pub(crate) fn arguments(&self, [rows, columns]: [usize; 2]) -> [BufferArg; 2] {
        // SAFETY: `check` found that both handles hold as much.
        unsafe {
            [
                BufferArg::from_raw_parts(self.codes.clone(), rows * columns / CODES),
                BufferArg::from_raw_parts(self.scales.clone(), rows),
            ]
        }
    }
}

/// Words of codes of a vector of `width` values; 1 where vectors are too narrow for a word.
pub(crate) fn words(width: usize) -> usize {
    (width / CODES).max(1)
}

/// The bits of the largest magnitude of the values that a thread holds.
#[cube]
fn largest_held<N: Size>(values: &Array<Vector<f32, N>>, #[comptime] rows: Rows) -> u32 {
    let mut largest = 0u32;
    #[unroll]
    for i in 0..comptime!(rows.held()) {
        let value = values[i];
        #[unroll]
        for lane in 0..comptime!(rows.width) {
            largest = max(largest, magnitude_bits(value.extract(lane)));
        }
    }
    largest
}

/// Stores row `row`, of which a thread holds `values`, as codes with a scale. Every thread of the block calls this; those of rows that do
/// not exist store nothing.
#[cube]
pub(crate) fn store_codes<N: Size, M: Size>(
    values: &Array<Vector<f32, N>>,
    codes: &mut [Vector<u32, M>],
    scales: &mut [f32],
    row: usize,
    lane: usize,
    exists: bool,
    #[comptime] native: bool,
    #[comptime] rows: Rows,
) {
    let vectors = comptime!(rows.vectors());
    let mut largest_of: Shared<[u32]> = Shared::new_slice(comptime!(rows.shared(1)));
    let largest = row_max(largest_held::<N>(values, rows), &mut largest_of, rows);
    let row_scale = scale_of(largest);
    if exists {
        #[unroll]
        for i in 0..comptime!(rows.held()) {
            let at = lane + comptime!(i * rows.threads_per_row);
            if at < vectors {
                codes[row * vectors + at] = codes_of::<N, M>(values[i], row_scale, native);
            }
        }
        if lane == 0 {
            scales[row] = row_scale;
        }
    }
}

/// The largest of the numbers that the threads of a row have. Every thread of the block calls this.
#[cube]
fn row_max(value: u32, shared: &mut Shared<[u32]>, #[comptime] rows: Rows) -> u32 {
    let mut largest = value;
    #[unroll]
    for step in 0..comptime!(rows.steps()) {
        largest = max(
            largest,
            plane_shuffle_xor(largest, comptime!(1u32 << step as u32)),
        );
    }
    if comptime!(rows.planes() > 1) {
        let place = UNIT_POS as usize % rows.plane;
        if place == 0 {
            shared[UNIT_POS as usize / rows.plane] = largest;
        }
        sync_cube();
        #[unroll(rows.planes() <= 8)]
        for plane in 0..comptime!(rows.planes()) {
            largest = max(largest, shared[plane]);
        }
        sync_cube();
    }
    largest
}

/// The codes of the quotients of values and scale, four in a word.
#[cube]
fn codes_of<N: Size, M: Size>(
    values: Vector<f32, N>,
    scale: f32,
    #[comptime] native: bool,
) -> Vector<u32, M> {
    let width = N::value();
    let mut codes = Vector::<u32, M>::new(0u32);
    #[unroll]
    for word in 0..comptime!(width / CODES) {
        let code = encode_four(
            values.extract(comptime!(4 * word)) / scale,
            values.extract(comptime!(4 * word + 1)) / scale,
            values.extract(comptime!(4 * word + 2)) / scale,
            values.extract(comptime!(4 * word + 3)) / scale,
            native,
        );
        codes.insert(word, code);
    }
    codes
}
