//! Columns of a matrix of numbers as rows of codes of e4m3 with an f32 scale each: what [`Quantised::new`] makes of the transpose, bit by
//! bit, without it.
//!
//! Two passes, each of blocks that take 32 columns of 256 rows, so that neighbours read numbers that lie side by side: the first finds
//! the largest magnitudes, the second takes the largest of these, and turns its codes in shared memory, from where they are written in
//! whole lines.

use super::quantise::Quantised;
use super::{CODES, THREADS};
use crate::Element;
use crate::problem::{Refusal, no};
use crate::tensors::{Matrix, holds_bytes, laid_out};
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use flow_cube::e4m3::{encode_four, is_native, magnitude_bits, scale_of};
use half::{bf16, f16};

/// Columns of a block, and threads that share a column's rows.
const COLUMNS: usize = 32;
const SHARES: usize = THREADS / COLUMNS;
/// Words of codes that a block makes of a column, of four rows each.
const WORDS: usize = 64;
const ROWS: usize = WORDS * CODES;
/// From a column's words in shared memory to the next one's: threads that write a word of 32 columns do so in 32 banks.
const SHARED_WORDS: usize = WORDS + 1;

/// Sizes of a matrix whose columns are quantised.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ColumnSizes {
    /// Rows of numbers.
    pub rows: usize,
    /// Numbers of a row.
    pub columns: usize,
    /// From a row of numbers to the next.
    pub stride: usize,
    /// Blocks that share a column.
    pub parts: usize,
    /// From a column's codes to the next one's, in words.
    pub row_words: usize,
}

/// Writes the largest magnitudes of `CUBE_POS_Y`'s rows, as bits, to `largest[parts, columns]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn column_magnitudes<F: Float>(x: &[F], largest: &mut [u32], sizes: &ColumnSizes) {
    let mut shared: Shared<[u32]> = Shared::new_slice(THREADS);
    let lane = UNIT_POS as usize % COLUMNS;
    let share = UNIT_POS as usize / COLUMNS;
    let column = CUBE_POS_X as usize * COLUMNS + lane;
    let part = CUBE_POS_Y as usize;
    let exists = column < sizes.columns;
    // Threads behind the last column read the first, so that all come to the barrier.
    let from = select(exists, column, 0usize);
    let end = min((part + 1) * ROWS, sizes.rows);
    let mut found = 0u32;
    let mut row = part * ROWS + share;
    while row < end {
        let value = f32::cast_from(x[row * sizes.stride + from]);
        found = max(found, magnitude_bits(value));
        row += SHARES;
    }
    shared[UNIT_POS as usize] = found;
    sync_cube();
    if share == 0 && exists {
        #[unroll]
        for other in 1..comptime!(SHARES) {
            let of_other = shared[comptime!(other * COLUMNS) + lane];
            found = max(found, of_other);
        }
        largest[part * sizes.columns + column] = found;
    }
}

/// Writes the codes of `CUBE_POS_Y`'s rows, `[columns, row_words]` words in all, of which those behind the last row become zeros, and the
/// columns' scales.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn quantise_columns<F: Float>(
    x: &[F],
    largest: &[u32],
    codes: &mut [u32],
    scales: &mut [f32],
    sizes: &ColumnSizes,
    #[comptime] native: bool,
) {
    let mut shared: Shared<[u32]> = Shared::new_slice(THREADS);
    let mut turned: Shared<[u32]> = Shared::new_slice(comptime!(COLUMNS * SHARED_WORDS));
    let unit = UNIT_POS as usize;
    let lane = unit % COLUMNS;
    let share = unit / COLUMNS;
    let first_column = CUBE_POS_X as usize * COLUMNS;
    let column = first_column + lane;
    let exists = column < sizes.columns;
    let from = select(exists, column, 0usize);

    let mut found = 0u32;
    let mut part = share;
    while part < sizes.parts {
        let of_part = largest[part * sizes.columns + from];
        found = max(found, of_part);
        part += SHARES;
    }
    shared[unit] = found;
    sync_cube();
    let mut largest_of_column = 0u32;
    #[unroll]
    for other in 0..comptime!(SHARES) {
        let of_other = shared[comptime!(other * COLUMNS) + lane];
        largest_of_column = max(largest_of_column, of_other);
    }
    let scale = scale_of(largest_of_column);
    if CUBE_POS_Y == 0 && share == 0 && exists {
        scales[column] = scale;
    }

    let first_word = CUBE_POS_Y as usize * WORDS;
    let mut four = Array::<f32>::new(4usize);
    let mut word = share;
    while word < WORDS {
        #[unroll]
        for place in 0..4usize {
            let row = (first_word + word) * 4 + place;
            let inside = row < sizes.rows;
            let value = f32::cast_from(x[select(inside, row, 0usize) * sizes.stride + from]);
            four[place] = select(inside, value, 0.0f32);
        }
        let code = encode_four(
            four[0usize] / scale,
            four[1usize] / scale,
            four[2usize] / scale,
            four[3usize] / scale,
            native,
        );
        turned[lane * SHARED_WORDS + word] = code;
        word += SHARES;
    }
    sync_cube();
    let mut at = unit;
    while at < comptime!(COLUMNS * WORDS) {
        let to_column = at / WORDS;
        let to_word = at % WORDS;
        let row = first_column + to_column;
        let word_of_row = first_word + to_word;
        if row < sizes.columns && word_of_row < sizes.row_words {
            codes[row * sizes.row_words + word_of_row] = turned[to_column * SHARED_WORDS + to_word];
        }
        at += THREADS;
    }
}

impl Quantised {
    /// The columns of `x`, numbers of type `element`, as rows: what [`new`](Self::new) makes of the transpose of `x`.
    ///
    /// # Errors
    /// [`Refusal`] if `x` is not within its buffer or has nothing; nothing was launched then.
    pub fn of_columns(client: &Client, x: &Matrix, element: Element) -> Result<Self, Refusal> {
        if x.rows == 0 || x.columns == 0 {
            return no("a matrix without rows or columns has nothing to quantise");
        }
        laid_out("x", x, [x.rows, x.columns], element.bytes(), 1)?;
        holds_bytes("x", &x.handle, x.elements() * element.bytes(), 1)?;
        let out = Self::empty(client, [x.columns, x.rows]);
        match element {
            Element::F32 => launch::<f32>(client, x, &out),
            Element::F16 => launch::<f16>(client, x, &out),
            Element::Bf16 => launch::<bf16>(client, x, &out),
        }
        Ok(out)
    }
}

fn launch<F: Float>(client: &Client, x: &Matrix, out: &Quantised) {
    let row_words = out.codes.stride / CODES;
    // Rows of codes are filled up to 16, which divides the rows of a block.
    let parts = x.rows.div_ceil(ROWS);
    let magnitudes = parts * x.columns;
    let largest = client.empty(4 * magnitudes);
    let blocks = || CubeCount::Static(x.columns.div_ceil(COLUMNS) as u32, parts as u32, 1);
    let address = || AddressType::from_len(x.elements().max(out.codes.elements()));
    let sizes = || ColumnSizesLaunch::new(x.rows, x.columns, x.stride, parts, row_words);
    // SAFETY: `of_columns` found that `x` is within its buffer, and made room for all else; every access is within columns and rows.
    unsafe {
        column_magnitudes::launch_unchecked::<F>(
            client,
            blocks(),
            CubeDim::new_1d(THREADS as u32),
            address(),
            BufferArg::from_raw_parts(x.handle.clone(), x.elements()),
            BufferArg::from_raw_parts(largest.clone(), magnitudes),
            sizes(),
        );
        quantise_columns::launch_unchecked::<F>(
            client,
            blocks(),
            CubeDim::new_1d(THREADS as u32),
            address(),
            BufferArg::from_raw_parts(x.handle.clone(), x.elements()),
            BufferArg::from_raw_parts(largest, magnitudes),
            BufferArg::from_raw_parts(out.codes.handle.clone(), out.codes.rows * row_words),
            BufferArg::from_raw_parts(out.scales.handle.clone(), out.codes.rows),
            sizes(),
            is_native(client),
        );
    }
}
