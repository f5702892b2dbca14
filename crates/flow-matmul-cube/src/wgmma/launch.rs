//! From matrices on the device to a launch.

use super::Tiles;
use super::arguments::{FactorsLaunch, InputsLaunch, ResultsLaunch, SizesLaunch};
use super::kernel::matmul;
use crate::Element;
use crate::epilogue::CompiledEpilogue;
use crate::problem::{Epilogue, Matmul};
use crate::schedule::STEP;
use crate::tensors::{Matrix, Operands};
use cubecl::prelude::*;
use cubecl::zspace::{shape, strides};
use cubecl_runtime::server::Handle;

/// For copies of `rows` rows of `columns` elements, 128 bytes.
fn map(x: &Matrix, rows: usize, columns: usize, of: Element) -> TensorMapArg<Tiled> {
    // SAFETY: `Operands::check` found that the matrix is within its buffer.
    let tensor = unsafe {
        TensorArg::from_raw_parts(x.handle.clone(), strides![x.stride, 1], shape![x.rows, x.columns])
    };
    TensorMapArg::new(
        TiledArgs {
            tile_size: shape![rows, columns],
        },
        tensor,
        of.native(),
    )
    .with_swizzle(TensorMapSwizzle::B128)
    .with_prefetch(TensorMapPrefetch::B256)
}

/// A matrix of codes as one of elements of 16 bits, two codes each.
fn halved(x: &Matrix) -> Matrix {
    Matrix {
        handle: x.handle.clone(),
        rows: x.rows,
        columns: x.columns / 2,
        stride: x.stride / 2,
    }
}

/// A schedule on the device.
#[derive(Clone, Debug)]
pub(crate) struct Items {
    pub(crate) starts: (Handle, usize),
    pub(crate) records: (Handle, usize),
    pub(crate) blocks: usize,
}

/// Launches the kernel; `d` is the result, or the partial tiles.
pub(crate) fn launch(
    client: &Client,
    call: &Matmul,
    operands: &Operands<'_>,
    d: &Matrix,
    items: &Items,
    tiles: Tiles,
    epilogue: CompiledEpilogue,
) {
    let [first_a, first_b] = [operands.a, operands.b].map(|x| match tiles.is_e4m3() {
        true => halved(x),
        false => x.clone(),
    });
    let [low_rank_a, low_rank_b] = operands.low_rank.unwrap_or([&first_a, &first_b]);
    let factor_map = |x: &Matrix, rows: usize, transposed: bool| {
        let rows = if transposed { STEP } else { rows };
        map(x, rows, 64, call.element)
    };
    let a = |x| factor_map(x, tiles.rows(), tiles.a_transposed());
    let b = |x| factor_map(x, tiles.columns, tiles.b_transposed());
    let result = |x| map(x, 64, epilogue.subtile_columns(), epilogue.output);
    // What is not there takes the place of something: neither is touched.
    let other = match epilogue.kind {
        Epilogue::Store | Epilogue::Accumulate => d,
        _ => operands.other.unwrap_or(d),
    };
    let (tokens, gate, [gate_start, gate_stride], gate_length) = match (call.epilogue, operands.gate) {
        (Epilogue::GateAndAdd { tokens }, Some(gate)) => {
            let reach = gate.reach(call.m, tokens, call.n);
            (tokens, &gate.handle, [gate.start / 2, gate.stride / 2], reach / 2)
        }
        _ => (1, &items.starts.0, [0; 2], 1),
    };
    let (bias, bias_length) = match operands.bias {
        Some(bias) => (bias, call.n / 2),
        None => (&items.starts.0, 1),
    };
    let scales = operands.scales.map(|scales| match scales {
        Some(scales) => (&scales.handle, scales.start),
        None => (&items.starts.0, 0),
    });
    let scale_lengths = match tiles.is_e4m3() {
        true => [scales[0].1 + call.m, scales[1].1 + call.n],
        false => [1; 2],
    };
    let [frame_stride, row_stride] = match call.kernel_rows {
        Some(rows) => [rows.frame_stride, rows.row_stride],
        None => [0; 2],
    };
    // SAFETY: lengths are those that `Operands::check` found in the buffers, items stay within the matrices' tiles, and
    // copies leave out what a matrix does not have.
    unsafe {
        matmul::launch_unchecked(
            client,
            CubeCount::Static(items.blocks as u32, 1, 1),
            CubeDim::new_1d(tiles.threads()),
            FactorsLaunch::new(a(&first_a), b(&first_b), a(low_rank_a), b(low_rank_b)),
            ResultsLaunch::new(result(d), result(other), result(other)),
            InputsLaunch::new(
                BufferArg::from_raw_parts(bias.clone(), bias_length),
                BufferArg::from_raw_parts(gate.clone(), gate_length),
                BufferArg::from_raw_parts(scales[0].0.clone(), scale_lengths[0]),
                BufferArg::from_raw_parts(scales[1].0.clone(), scale_lengths[1]),
                BufferArg::from_raw_parts(items.starts.0.clone(), items.starts.1),
                BufferArg::from_raw_parts(items.records.0.clone(), items.records.1),
            ),
            SizesLaunch::new(
                call.m as u32,
                call.n as u32,
                call.first_steps() as u32,
                frame_stride as u32,
                row_stride as u32,
                tokens as u32,
                gate_start as u32,
                gate_stride as u32,
                scales[0].1 as u32,
                scales[1].1 as u32,
            ),
            tiles,
            epilogue,
            [call.element.native(), epilogue.output.native()],
            tiles.vector(),
        );
    }
}
