//! From matrices on the device to a launch.

use super::arguments::{InputsLaunch, OutputsLaunch, SizesLaunch};
use super::kernel::portable_matmul;
use super::kind::{CHUNK, Kind, SIDE, THREADS};
use crate::Element;
use crate::problem::{Epilogue, Layout, Matmul, Refusal, no};
use crate::tensors::{Matrix, Operands};
use cubecl::ir::AddressType;
use cubecl::ir::features::TypeUsage;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_cube::activation::Arithmetic;
use half::{bf16, f16};

/// Whether the device can run the kernel.
///
/// # Errors
/// [`Refusal`] with what it lacks.
pub fn check(client: &Client, call: &Matmul) -> Result<(), Refusal> {
    let properties = client.properties();
    let limit = properties.hardware.max_cube_count;
    let blocks = blocks(call);
    let limit = [limit.0, limit.1, limit.2];
    if blocks
        .iter()
        .zip(limit)
        .any(|(blocks, limit)| *blocks > limit as usize)
    {
        return no(format!(
            "a result of {} x {} has {blocks:?} blocks, and the device at most {limit:?}",
            call.m, call.n
        ));
    }
    for of in [call.element, call.output] {
        let usage = properties.type_usage(of.native());
        if !usage.contains(TypeUsage::Buffer) || !usage.contains(TypeUsage::Conversion) {
            return no(format!(
                "this device does not store and convert {}; use f32, which every device has",
                of.name()
            ));
        }
    }
    Ok(())
}

/// Blocks for the rows, for the columns, and for the groups of a weight gradient.
fn blocks(call: &Matmul) -> [usize; 3] {
    let [down, across] = [call.m, call.n].map(|side| side.div_ceil(SIDE));
    match call.layout {
        Layout::Tn => [down, across, call.groups.max(1)],
        // A group's last tile may be in part another's rows: that many more at most.
        _ => [down + call.groups, across, 1],
    }
}

/// Launches the kernel; `nothing` takes the places of operands that the call has not.
pub(crate) fn launch(client: &Client, call: &Matmul, operands: &Operands<'_>, nothing: &Handle) {
    match (call.element, call.output) {
        (Element::F32, _) => launch_as::<f32, f32>(client, call, operands, nothing),
        (Element::F16, Element::F32) => launch_as::<f16, f32>(client, call, operands, nothing),
        (Element::F16, _) => launch_as::<f16, f16>(client, call, operands, nothing),
        (Element::Bf16, Element::F32) => launch_as::<bf16, f32>(client, call, operands, nothing),
        (Element::Bf16, _) => launch_as::<bf16, bf16>(client, call, operands, nothing),
    }
}

fn launch_as<F: Float, O: Float>(client: &Client, call: &Matmul, operands: &Operands<'_>, nothing: &Handle) {
    // SAFETY: `Operands::check` found that the buffers are as long.
    let buffer =
        |handle: &Handle, length: usize| unsafe { BufferArg::from_raw_parts(handle.clone(), length) };
    let absent = || buffer(nothing, 1);
    let matrix = |x: &Matrix| buffer(&x.handle, x.elements());
    let [t, u] = operands.low_rank.map_or([None; 2], |pair| pair.map(Some));
    let (tokens, gate, [gate_start, gate_stride]) = match (call.epilogue, operands.gate) {
        (Epilogue::GateAndAdd { tokens }, Some(gate)) => {
            let reach = gate.reach(call.m, tokens, call.n);
            (tokens, buffer(&gate.handle, reach), [gate.start, gate.stride])
        }
        _ => (1, absent(), [0; 2]),
    };
    let scales = |index: usize, rows: usize| match operands.scales[index] {
        Some(scales) if call.is_scaled() => (buffer(&scales.handle, scales.start + rows), scales.start),
        _ => (absent(), 0),
    };
    let (row_scales, row_scale_start) = scales(0, call.m);
    let (column_scales, column_scale_start) = scales(1, call.n);
    let stride = |x: Option<&Matrix>| x.map_or(0, |x| x.stride);
    let read = [
        Some(operands.a),
        Some(operands.b),
        Some(operands.d),
        operands.other,
        t,
        u,
    ];
    let longest = read.into_iter().flatten().map(Matrix::elements).max();
    let address = AddressType::from_len(longest.unwrap_or(1));
    let kind = Kind {
        layout: call.layout,
        low_rank: call.rank > 0,
        bias: call.bias,
        epilogue: call.epilogue.kind(),
        arithmetic: Arithmetic::of(client, call.element),
        grouped: call.groups > 0,
        scaled: call.is_scaled(),
    };
    let [down, across, groups] = blocks(call).map(|count| count as u32);
    // SAFETY: every access is within the rows and columns of the matrices.
    unsafe {
        portable_matmul::launch_unchecked::<F, O>(
            client,
            CubeCount::Static(down, across, groups),
            CubeDim::new_1d(THREADS as u32),
            address,
            InputsLaunch::new(
                matrix(operands.a),
                matrix(operands.b),
                t.map_or_else(absent, matrix),
                u.map_or_else(absent, matrix),
                operands
                    .bias
                    .map_or_else(absent, |bias| buffer(bias, call.groups.max(1) * call.n)),
                gate,
                row_scales,
                column_scales,
            ),
            OutputsLaunch::new(operands.other.map_or_else(absent, matrix), matrix(operands.d)),
            operands
                .offsets
                .map_or_else(absent, |offsets| buffer(offsets, call.groups + 1)),
            SizesLaunch::new(
                call.m,
                call.n,
                call.k,
                call.rank,
                operands.a.stride,
                operands.b.stride,
                stride(t),
                stride(u),
                gate_start,
                gate_stride,
                row_scale_start,
                column_scale_start,
                stride(operands.other),
                operands.d.stride,
                tokens,
                call.groups,
                CHUNK,
            ),
            kind,
        );
    }
}
