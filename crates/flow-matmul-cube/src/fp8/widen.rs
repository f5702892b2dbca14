//! Codes of e4m3 as numbers: what products take where no tensor cores multiply codes, and where B alone is codes.

use super::{CODES, THREADS};
use crate::Element;
use crate::tensors::{Matrix, Scales};
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use flow_cube::e4m3::decode;
use flow_cube::launch::grid;
use half::{bf16, f16};

/// Sizes of what is widened.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct WidenSizes {
    /// Words of all rows that hold codes.
    pub words: usize,
    /// Words of a row that hold codes.
    pub row_words: usize,
    /// From a row of codes to the next, in words.
    pub code_stride: usize,
    /// From a row of values to the next, in vectors of four.
    pub value_stride: usize,
    /// The scale of the first row.
    pub scale_start: usize,
}

/// A thread widens the four codes of a word. `scaled`: values are times the scale of their row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn widen_kernel<F: Float, N: Size>(
    codes: &[u32],
    scales: &[f32],
    values: &mut [Vector<F, N>],
    sizes: &WidenSizes,
    #[comptime] scaled: bool,
) {
    let at = ABSOLUTE_POS;
    if at < sizes.words {
        let row = at / sizes.row_words;
        let place = at % sizes.row_words;
        let word = codes[row * sizes.code_stride + place];
        let mut scale = 1.0f32;
        if comptime!(scaled) {
            scale = scales[sizes.scale_start + row];
        }
        let mut value = Vector::<f32, N>::empty();
        #[unroll]
        for lane in 0..4usize {
            let code = (word >> comptime!((8 * lane) as u32)) & 0xFFu32;
            value.insert(lane, decode(code) * scale);
        }
        values[row * sizes.value_stride + place] = Vector::cast_from(value);
    }
}

/// The values of `codes` as numbers of type `element`, rounded to nearest; with `scales` times those of their rows. Rows begin at
/// multiples of 16 bytes. Operands were checked: see [`Operands::check`](crate::tensors::Operands::check).
pub(crate) fn widen(client: &Client, codes: &Matrix, scales: Option<&Scales>, element: Element) -> Matrix {
    let stride = codes.columns.next_multiple_of(8);
    let values = Matrix {
        handle: client.empty(codes.rows * stride * element.bytes()),
        rows: codes.rows,
        columns: codes.columns,
        stride,
    };
    match element {
        Element::F32 => launch::<f32>(client, codes, scales, &values),
        Element::F16 => launch::<f16>(client, codes, scales, &values),
        Element::Bf16 => launch::<bf16>(client, codes, scales, &values),
    }
    values
}

fn launch<F: Float>(client: &Client, codes: &Matrix, scales: Option<&Scales>, values: &Matrix) {
    let row_words = codes.columns.div_ceil(CODES);
    let words = codes.rows * row_words;
    let length = values.rows * values.stride;
    let (scale_handle, scale_start, scale_length) = match scales {
        Some(scales) => (&scales.handle, scales.start, scales.start + codes.rows),
        // It is not read.
        None => (&codes.handle, 0, 1),
    };
    // SAFETY: every access is within the rows of the matrices; `Operands::check` found that codes and scales are within their buffers.
    unsafe {
        widen_kernel::launch_unchecked::<F>(
            client,
            grid(client, words.div_ceil(THREADS)),
            CubeDim::new_1d(THREADS as u32),
            AddressType::from_len(length),
            CODES,
            BufferArg::from_raw_parts(codes.handle.clone(), codes.elements().div_ceil(CODES)),
            BufferArg::from_raw_parts(scale_handle.clone(), scale_length),
            BufferArg::from_raw_parts(values.handle.clone(), length / CODES),
            WidenSizesLaunch::new(
                words,
                row_words,
                codes.stride / CODES,
                values.stride / CODES,
                scale_start,
            ),
            scales.is_some(),
        );
    }
}
