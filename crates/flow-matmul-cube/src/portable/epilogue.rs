//! The epilogue of the portable kernel: from a thread's sums to the result.

use super::arguments::{Inputs, Outputs, Sizes};
use super::block_tile::{BlockTile, Thread};
use super::kind::Kind;
use crate::problem::{Activation, Epilogue};
use cubecl::prelude::*;
use flow_cube::activation::{activate, derivative};

/// Writes the result of a sum.
#[cube]
fn write_element<F: Float, O: Float>(
    sum: f32,
    row: usize,
    column: usize,
    inputs: &Inputs<F>,
    outputs: &mut Outputs<F, O>,
    sizes: &Sizes,
    tile: &BlockTile,
    #[comptime] kind: Kind,
) {
    let (activation, slope) = comptime!(kind.epilogue.functions());
    let mut sum = sum;
    if comptime!(kind.bias) {
        sum += f32::cast_from(inputs.bias[tile.bias_first + column]);
    }
    // As the same steps one by one: see `Epilogue`.
    let rounded = f32::cast_from(F::cast_from(sum));
    let to = (tile.d_first + row) * sizes.d_stride + column;
    if comptime!(kind.epilogue == Epilogue::Accumulate) {
        outputs.d[to] = O::cast_from(f32::cast_from(outputs.d[to]) + sum);
    } else if comptime!(activation.is_some()) {
        if comptime!(kind.epilogue.writes_other()) {
            outputs.other[(tile.d_first + row) * sizes.other_stride + column] = F::cast_from(sum);
        }
        let function = comptime!(activation.unwrap_or(Activation::Silu));
        outputs.d[to] = O::cast_from(activate(rounded, function, comptime!(kind.arithmetic)));
    } else if comptime!(slope.is_some()) {
        let at = f32::cast_from(outputs.other[(tile.d_first + row) * sizes.other_stride + column]);
        let function = comptime!(slope.unwrap_or(Activation::Silu));
        outputs.d[to] = O::cast_from(rounded * derivative(at, function, comptime!(kind.arithmetic)));
    } else if comptime!(kind.gated()) {
        let residual = f32::cast_from(outputs.other[(tile.d_first + row) * sizes.other_stride + column]);
        let gate =
            f32::cast_from(inputs.gate[sizes.gate_start + row / sizes.tokens * sizes.gate_stride + column]);
        outputs.d[to] = O::cast_from(residual + gate * rounded);
    } else if comptime!(kind.epilogue == Epilogue::Add) {
        let before = f32::cast_from(outputs.other[(tile.d_first + row) * sizes.other_stride + column]);
        outputs.d[to] = O::cast_from(before + rounded);
    } else {
        outputs.d[to] = O::cast_from(sum);
    }
}

/// Writes a thread's part of a tile.
#[cube]
pub(super) fn store_tile<F: Float, O: Float>(
    sums: &Array<f32>,
    inputs: &Inputs<F>,
    outputs: &mut Outputs<F, O>,
    sizes: &Sizes,
    tile: &BlockTile,
    thread: &Thread,
    #[comptime] kind: Kind,
) {
    #[unroll]
    for r in 0..4usize {
        let row = tile.of_a.first + thread.y + comptime!(16 * r);
        #[unroll]
        for j in 0..4usize {
            let column = tile.first_column + thread.x + comptime!(16 * j);
            if row < tile.of_a.end && column < sizes.n {
                write_element::<F, O>(
                    sums[comptime!(4 * r + j)],
                    row,
                    column,
                    inputs,
                    outputs,
                    sizes,
                    tile,
                    kind,
                );
            }
        }
    }
}
