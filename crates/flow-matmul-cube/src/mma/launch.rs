//! From matrices on the device to a launch.

use super::Tiles;
use super::arguments::{InputsLaunch, OutputsLaunch, SizesLaunch};
use super::kernel::mma_matmul;
use super::tiles::{SIDE, THREADS};
use crate::epilogue::CompiledEpilogue;
use crate::prepared::DeviceCapabilities;
use crate::problem::{Epilogue, Layout, Matmul, Refusal, no};
use crate::schedule::{PartialTiles, STEP, Schedule, Tiling};
use crate::tensors::{Matrix, Operands};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_cube::wgmma::OperandType;

/// Whether tensor cores multiply what the call has.
///
/// # Errors
/// [`Refusal`] with the reason.
pub fn check(call: &Matmul) -> Result<OperandType, Refusal> {
    let Some(operand_type) = call.element.operand_type() else {
        return no("tensor cores would round f32 factors to TF32; they take bf16 and f16");
    };
    if call.is_scaled() && call.rank > 0 {
        return no(
            "this kernel adds both pairs of factors up together, and only the sums of codes are scaled",
        );
    }
    if !call.n.is_multiple_of(2) {
        return no(format!(
            "results are written in pairs, and {} columns are odd",
            call.n
        ));
    }
    Ok(operand_type)
}

/// Tiles and tiling of a call: weight gradients are split along k until there are two blocks for each multiprocessor.
pub(crate) fn select(
    call: &Matmul,
    operand_type: OperandType,
    capabilities: DeviceCapabilities,
) -> (Tiles, Tiling) {
    let steps = call.k.div_ceil(STEP) + call.rank.div_ceil(STEP);
    let blocks = call.m.div_ceil(SIDE) * call.n.div_ceil(SIDE);
    let simple = !call.bias && matches!(call.epilogue, Epilogue::Store | Epilogue::Accumulate);
    let split_k = match call.layout {
        Layout::Tn if simple && call.groups == 0 => {
            (2 * capabilities.multiprocessors / blocks).clamp(1, (steps / 8).max(1))
        }
        _ => 1,
    };
    let tiles = Tiles {
        layout: call.layout,
        operand_type,
        stages: Tiles::stages(capabilities.shared_bytes),
        low_rank: call.rank > 0,
        grouped: call.groups > 0,
        splits_k: split_k > 1,
        scaled: call.is_scaled(),
    };
    let tiling = Tiling {
        rows: SIDE,
        columns: SIDE,
        group: 16,
        blocks,
        split_k,
        stream_k: false,
    };
    (tiles, tiling)
}

/// Where the kernel puts partial tiles: row by row of tiles, `tiling.split_k` for each.
pub(crate) fn partial_tiles(call: &Matmul, tiling: Tiling) -> Schedule {
    let [down, across] = [call.m, call.n].map(|side| side.div_ceil(SIDE));
    let tiles = match tiling.split_k {
        1 => 0,
        _ => down * across,
    };
    Schedule {
        tiling,
        blocks: Vec::new(),
        steps: call.k.div_ceil(STEP),
        partial_tiles: (0..tiles)
            .map(|tile| PartialTiles {
                row: tile / across * SIDE,
                column: tile % across * SIDE,
                first: tile * tiling.split_k,
                count: tiling.split_k,
            })
            .collect(),
    }
}

/// Launches the kernel; `d` is the result, or the partial tiles.
#[allow(clippy::too_many_arguments)]
pub(crate) fn launch(
    client: &Client,
    call: &Matmul,
    operands: &Operands<'_>,
    d: &Matrix,
    nothing: &Handle,
    tiles: Tiles,
    tiling: &Tiling,
) {
    let epilogue = CompiledEpilogue::new(call, tiles.operand_type, tiles.splits_k);
    // SAFETY: `Operands::check` found that the buffers are as long.
    let buffer =
        |handle: &Handle, length: usize| unsafe { BufferArg::from_raw_parts(handle.clone(), length) };
    let eights = |x: &Matrix| buffer(&x.handle, x.elements().div_ceil(8));
    let [low_rank_a, low_rank_b] = operands.low_rank.unwrap_or([operands.a, operands.b]);
    let (tokens, gate, [gate_start, gate_stride]) = match (call.epilogue, operands.gate) {
        (Epilogue::GateAndAdd { tokens }, Some(gate)) => {
            let reach = gate.reach(call.m, tokens, call.n);
            (
                tokens,
                buffer(&gate.handle, reach / 2),
                [gate.start / 2, gate.stride / 2],
            )
        }
        _ => (1, buffer(nothing, 1), [0; 2]),
    };
    let per_word = 4 / epilogue.output.bytes();
    let bias = operands.bias.map_or_else(
        || buffer(nothing, 1),
        |bias| buffer(bias, call.groups.max(1) * call.n / 2),
    );
    let scales = |index: usize, rows: usize| match operands.scales[index] {
        Some(scales) if tiles.scaled => (buffer(&scales.handle, scales.start + rows), scales.start),
        _ => (buffer(nothing, 1), 0),
    };
    let (row_scales, row_scale_start) = scales(0, call.m);
    let (column_scales, column_scale_start) = scales(1, call.n);
    let (other, other_stride) = match operands.other {
        Some(other) => (
            buffer(&other.handle, other.elements().div_ceil(2)),
            other.stride / 2,
        ),
        None => (buffer(nothing, 1), 0),
    };
    let [more, layers] = match call.layout {
        Layout::Tn => [0, tiling.split_k.max(call.groups)],
        _ => [call.groups, tiling.split_k],
    };
    let blocks = (call.m.div_ceil(SIDE) + more) * call.n.div_ceil(SIDE);
    // SAFETY: every access is within the rows and columns of the matrices, or in the partial tiles.
    unsafe {
        mma_matmul::launch_unchecked(
            client,
            CubeCount::Static(blocks as u32, layers as u32, 1),
            CubeDim::new_1d(THREADS as u32),
            InputsLaunch::new(
                eights(operands.a),
                eights(operands.b),
                eights(low_rank_a),
                eights(low_rank_b),
                bias,
                gate,
                row_scales,
                column_scales,
            ),
            OutputsLaunch::new(other, buffer(&d.handle, d.elements().div_ceil(per_word))),
            operands
                .offsets
                .map_or_else(|| buffer(nothing, 1), |offsets| buffer(offsets, call.groups + 1)),
            SizesLaunch::new(
                call.m as u32,
                call.n as u32,
                call.k as u32,
                call.rank as u32,
                (operands.a.stride / 8) as u32,
                (operands.b.stride / 8) as u32,
                (low_rank_a.stride / 8) as u32,
                (low_rank_b.stride / 8) as u32,
                other_stride as u32,
                (d.stride / per_word) as u32,
                tokens as u32,
                gate_start as u32,
                gate_stride as u32,
                row_scale_start as u32,
                column_scale_start as u32,
                tiling.group as u32,
                call.groups as u32,
            ),
            tiles,
            epilogue,
            tiles.product().accumulator(),
        );
    }
}
