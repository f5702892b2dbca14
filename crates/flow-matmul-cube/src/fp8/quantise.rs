//! Rows of numbers as codes of e4m3 with an f32 scale each.

use super::{CODES, THREADS};
use crate::Element;
use crate::problem::{Refusal, no};
use crate::tensors::{Matrix, Scales, holds_bytes, laid_out};
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use flow_cube::e4m3::{encode_four, is_native, magnitude_bits, scale_of};
use flow_cube::launch::grid;
use half::{bf16, f16};

/// Reads the four numbers of word `word` of the row that begins at `from`; zeros behind the last column.
#[cube]
fn load_four<F: Float, N: Size>(
    x: &[Vector<F, N>],
    four: &mut Array<f32>,
    from: usize,
    word: usize,
    columns: usize,
    #[comptime] width: usize,
) {
    if comptime!(width == 4) {
        let values = x[from + word];
        #[unroll]
        for lane in 0..4usize {
            four[lane] = f32::cast_from(values.extract(lane));
        }
    } else {
        #[unroll]
        for lane in 0..4usize {
            let column = word * 4 + lane;
            let exists = column < columns;
            let value = f32::cast_from(x[from + select(exists, column, 0usize)].extract(0usize));
            four[lane] = select(exists, value, 0.0f32);
        }
    }
}

/// Sizes of what is quantised.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct QuantiseSizes {
    /// Rows.
    pub rows: usize,
    /// Numbers of a row.
    pub columns: usize,
    /// From a row of numbers to the next, in vectors.
    pub stride: usize,
    /// Words of a row that hold codes.
    pub words: usize,
    /// From a row of codes to the next, in words.
    pub row_words: usize,
    /// The scale of the first row.
    pub scale_start: usize,
}

/// How rows are quantised, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QuantiseKind {
    /// Threads that share a row.
    pub threads_per_row: usize,
    /// Numbers of a vector: 4 or 1.
    pub width: usize,
    /// Whether the device converts to e4m3 itself.
    pub native: bool,
}

/// `threads_per_row` threads quantise a row. A row of codes is `row_words` words long, of which the first `words` hold codes and the
/// others become zeros.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn quantise_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    codes: &mut [u32],
    scales: &mut [f32],
    sizes: &QuantiseSizes,
    #[comptime] kind: QuantiseKind,
) {
    let threads_per_row = comptime!(kind.threads_per_row);
    let width = comptime!(kind.width);
    let mut shared: Shared<[u32]> = Shared::new_slice(THREADS);
    let unit = UNIT_POS as usize;
    let thread = unit % threads_per_row;
    let row = CUBE_POS * comptime!(THREADS / threads_per_row) + unit / threads_per_row;
    let exists = row < sizes.rows;
    // Threads behind the last row read the first, so that all come to the barriers.
    let from = select(exists, row, 0usize) * sizes.stride;
    let mut four = Array::<f32>::new(4usize);

    let mut largest = 0u32;
    let mut word = thread;
    while word < sizes.words {
        load_four::<F, N>(x, &mut four, from, word, sizes.columns, width);
        #[unroll]
        for lane in 0..4usize {
            let value = four[lane];
            largest = max(largest, magnitude_bits(value));
        }
        word += threads_per_row;
    }
    shared[unit] = largest;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(threads_per_row.trailing_zeros() as usize) {
        let half = comptime!(threads_per_row >> (step + 1));
        if thread < half {
            let other = shared[unit + half];
            let mine = shared[unit];
            shared[unit] = max(mine, other);
        }
        sync_cube();
    }
    let largest_of_row = shared[unit - thread];
    let scale = scale_of(largest_of_row);
    if exists {
        if thread == 0 {
            scales[sizes.scale_start + row] = scale;
        }
        let mut word = thread;
        while word < sizes.row_words {
            let has_codes = word < sizes.words;
            load_four::<F, N>(
                x,
                &mut four,
                from,
                select(has_codes, word, 0usize),
                sizes.columns,
                width,
            );
            let code = encode_four(
                four[0usize] / scale,
                four[1usize] / scale,
                four[2usize] / scale,
                four[3usize] / scale,
                comptime!(kind.native),
            );
            codes[row * sizes.row_words + word] = select(has_codes, code, 0u32);
            word += threads_per_row;
        }
    }
}

/// A matrix of codes with a scale for each row.
#[derive(Clone, Debug)]
pub struct Quantised {
    /// The codes: a byte each, rows at multiples of 16 bytes, zeros between them.
    pub codes: Matrix,
    /// The scales of the rows.
    pub scales: Scales,
}

impl Quantised {
    /// Room for `rows` rows of `columns` codes.
    pub fn empty(client: &Client, [rows, columns]: [usize; 2]) -> Self {
        let stride = columns.next_multiple_of(16);
        Self {
            codes: Matrix {
                handle: client.empty(rows * stride),
                rows,
                columns,
                stride,
            },
            scales: Scales {
                handle: client.empty(4 * rows),
                start: 0,
            },
        }
    }

    /// The rows of `x`, numbers of type `element`: see [`quantise_rows`].
    ///
    /// # Errors
    /// [`Refusal`] if `x` is not within its buffer or has nothing; nothing was launched then.
    pub fn new(client: &Client, x: &Matrix, element: Element) -> Result<Self, Refusal> {
        let out = Self::empty(client, [x.rows, x.columns]);
        quantise_rows(client, x, element, &out.codes, &out.scales)?;
        Ok(out)
    }
}

/// Writes the codes of the rows of `x [rows, columns]`, numbers of type `element`, to `codes`, whose rows begin at multiples of 4 bytes
/// and whose gaps become zeros, and the rows' scales to `scales`.
///
/// A scale is the row's largest magnitude / 448, rounded to a bf16, at least 2^-116: so a row of zeros has codes of zero. A code is that
/// nearest to the quotient of number and scale, of two equally near ones the even one, at most 448. NaN gets the code of NaN and has no
/// part in the scale; an infinity gets the largest code and the row the largest scale, so that products with it are infinite or NaN.
///
/// # Errors
/// [`Refusal`] if a matrix has nothing, another shape, or is not within its buffer; nothing was launched then.
pub fn quantise_rows(
    client: &Client,
    x: &Matrix,
    element: Element,
    codes: &Matrix,
    scales: &Scales,
) -> Result<(), Refusal> {
    let shape = [x.rows, x.columns];
    if x.rows == 0 || x.columns == 0 {
        return no("a matrix without rows or columns has nothing to quantise");
    }
    laid_out("x", x, shape, element.bytes(), 1)?;
    holds_bytes("x", &x.handle, x.elements() * element.bytes(), 1)?;
    laid_out("codes", codes, shape, 1, CODES)?;
    holds_bytes("codes", &codes.handle, codes.rows * codes.stride, CODES as u64)?;
    holds_bytes("scales", &scales.handle, 4 * (scales.start + x.rows), 4)?;
    match element {
        Element::F32 => launch::<f32>(client, x, element, codes, scales),
        Element::F16 => launch::<f16>(client, x, element, codes, scales),
        Element::Bf16 => launch::<bf16>(client, x, element, codes, scales),
    }
    Ok(())
}

/// Threads that share a row: four words each, where there are as many.
pub(crate) fn threads_per_row(words: usize) -> usize {
    words.div_ceil(4).next_power_of_two().clamp(32, THREADS)
}

fn launch<F: Float>(client: &Client, x: &Matrix, element: Element, codes: &Matrix, scales: &Scales) {
    let offset = x.handle.offset_start.unwrap_or(0) as usize;
    let in_fours = [x.columns, x.stride, offset / element.bytes()]
        .iter()
        .all(|count| count.is_multiple_of(4));
    let width = if in_fours { 4 } else { 1 };
    let words = x.columns.div_ceil(CODES);
    let threads = threads_per_row(words);
    // SAFETY: `quantise_rows` found that all matrices are within their buffers; every access is within their rows.
    unsafe {
        quantise_kernel::launch_unchecked::<F>(
            client,
            grid(client, x.rows.div_ceil(THREADS / threads)),
            CubeDim::new_1d(THREADS as u32),
            AddressType::from_len(x.elements().max(codes.elements())),
            width,
            BufferArg::from_raw_parts(x.handle.clone(), x.elements() / width),
            BufferArg::from_raw_parts(codes.handle.clone(), codes.rows * codes.stride / CODES),
            BufferArg::from_raw_parts(scales.handle.clone(), scales.start + x.rows),
            QuantiseSizesLaunch::new(
                x.rows,
                x.columns,
                x.stride / width,
                words,
                codes.stride / CODES,
                scales.start,
            ),
            QuantiseKind {
                threads_per_row: threads,
                width,
                native: is_native(client),
            },
        );
    }
}
