//! From a call to launches.

use super::arguments::{
    ListLayoutLaunch, PortableInputsLaunch, PortableKeysInputsLaunch, PortableKeysProblemLaunch,
    PortableProblemLaunch, PortableQueriesInputsLaunch, PortableStatisticsLaunch,
};
use super::backward_keys::portable_backward_keys;
use super::backward_queries::portable_backward_queries;
use super::forward::portable_forward;
use super::mask::List;
use super::problem::{Call, KeyValues, Statistics};
use super::refusals;
use super::tiles::{CHUNK, ROWS, THREADS};
use crate::Element;
use crate::tensors::Heads;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::zspace::{Shape, Strides};
use flow_registry::Refusal;
use half::{bf16, f16};

fn tensor(heads: &Heads) -> TensorArg {
    let (strides, shape) = (
        heads.strides.into_iter().collect::<Strides>(),
        heads.shape.into_iter().collect::<Shape>(),
    );
    // SAFETY: `Call::check` found that the strides stay within the buffer.
    unsafe { TensorArg::from_raw_parts(heads.handle.clone(), strides, shape) }
}

fn words(list: &List) -> BufferArg {
    // SAFETY: it is as long as it was made.
    unsafe { BufferArg::from_raw_parts(list.words.clone(), list.length) }
}

fn layout(list: &List) -> ListLayoutLaunch {
    ListLayoutLaunch::new(list.batch_stride, list.entries_at, list.patterns_at)
}

/// The operands of forward.
fn inputs<F: Float>(call: &Call) -> PortableInputsLaunch<F> {
    let (first, second) = (call.segment(0), call.segment(1));
    PortableInputsLaunch::<F>::new(
        tensor(call.q),
        tensor(&first.k),
        tensor(&first.v),
        tensor(&second.k),
        tensor(&second.v),
    )
}

/// Sizes and scale of the kernels whose rows are queries.
fn problem(call: &Call, lse: &Statistics) -> PortableProblemLaunch {
    PortableProblemLaunch::new(
        call.q.shape[2],
        lse.rows,
        call.keys(0),
        call.keys(1),
        call.group(),
        layout(&call.mask.queries),
        CHUNK,
        call.scale,
    )
}

impl Call<'_> {
    fn statistics(&self, statistics: &Statistics) -> BufferArg {
        let [batch, heads, queries, _] = self.q.shape;
        let length = (batch * heads - 1) * statistics.rows + queries;
        // SAFETY: `Call::check` found that the buffer holds as many.
        unsafe { BufferArg::from_raw_parts(statistics.handle.clone(), length) }
    }

    fn blocks(&self, rows: usize, heads: usize) -> CubeCount {
        CubeCount::Static(rows.div_ceil(ROWS) as u32, heads as u32, self.q.shape[0] as u32)
    }

    fn group(&self) -> usize {
        self.q.shape[1] / self.kv_heads()
    }
}

/// Computes `o = softmax(q kᵀ scale) v`, and `lse`, the natural logarithm of the sum of the exponentials of each row's
/// scaled scores: what [`backward`] needs. Where no key is allowed `o` is 0 and `lse` plus infinity.
///
/// # Errors
/// Why the kernel does not take the call; nothing was launched then.
pub fn forward(client: &Client, call: &Call, o: &Heads, lse: &Statistics) -> Result<(), Refusal> {
    let address = call.check(client, &[("o", o)], &[], &[("lse", lse)])?;
    match call.element {
        Element::F32 => launch_forward::<f32>(client, call, o, lse, address),
        Element::F16 => launch_forward::<f16>(client, call, o, lse, address),
        Element::Bf16 => launch_forward::<bf16>(client, call, o, lse, address),
    }
    Ok(())
}

fn launch_forward<F: Float>(client: &Client, call: &Call, o: &Heads, lse: &Statistics, address: AddressType) {
    let [_, heads, queries, _] = call.q.shape;
    let list = &call.mask.queries;
    // SAFETY: every access is within shapes or within the lists of the mask.
    unsafe {
        portable_forward::launch_unchecked::<F>(
            client,
            call.blocks(queries, heads),
            CubeDim::new_1d(THREADS as u32),
            address,
            inputs::<F>(call),
            tensor(o),
            call.statistics(lse),
            words(list),
            problem(call, lse),
            call.tiles(),
        );
    }
}

/// Computes the gradients `dq`, and `dk` and `dv` of each segment, from the result and `lse` of [`forward`] and the
/// gradient `d_o` of the result. `delta` is room for as many numbers as `lse` and holds the sum of `o · d_o` of each row
/// afterwards.
///
/// # Errors
/// Why the kernels do not take the call; nothing was launched then.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    client: &Client,
    call: &Call,
    o: &Heads,
    d_o: &Heads,
    lse: &Statistics,
    delta: &Statistics,
    dq: &Heads,
    gradients: &[KeyValues],
) -> Result<(), Refusal> {
    if gradients.len() != call.kv_segments.len() {
        return Err(refusals::segments(gradients.len()));
    }
    if delta.rows != lse.rows {
        return Err(refusals::beyond("delta", lse.rows, delta.rows));
    }
    let names = ["dk or dv", "dk or dv of segment 1"];
    let like_segments: Vec<_> = names.into_iter().zip(gradients).collect();
    let like_queries = [("o", o), ("d_o", d_o), ("dq", dq)];
    let address = call.check(
        client,
        &like_queries,
        &like_segments,
        &[("lse", lse), ("delta", delta)],
    )?;
    match call.element {
        Element::F32 => launch_backward::<f32>(client, call, [o, d_o, dq], [lse, delta], gradients, address),
        Element::F16 => launch_backward::<f16>(client, call, [o, d_o, dq], [lse, delta], gradients, address),
        Element::Bf16 => {
            launch_backward::<bf16>(client, call, [o, d_o, dq], [lse, delta], gradients, address)
        }
    }
    Ok(())
}

fn launch_backward<F: Float>(
    client: &Client,
    call: &Call,
    [o, d_o, dq]: [&Heads; 3],
    [lse, delta]: [&Statistics; 2],
    gradients: &[KeyValues],
    address: AddressType,
) {
    let [_, heads, queries, _] = call.q.shape;
    let list = &call.mask.queries;
    // SAFETY: as in `launch_forward`.
    unsafe {
        portable_backward_queries::launch_unchecked::<F>(
            client,
            call.blocks(queries, heads),
            CubeDim::new_1d(THREADS as u32),
            address,
            PortableQueriesInputsLaunch::<F>::new(inputs::<F>(call), tensor(o), tensor(d_o)),
            tensor(dq),
            call.statistics(lse),
            call.statistics(delta),
            words(list),
            problem(call, lse),
            call.tiles(),
        );
    }
    for (index, (segment, gradient)) in call.kv_segments.iter().zip(gradients).enumerate() {
        let Some(list) = &call.mask.keys[index] else {
            continue;
        };
        // SAFETY: as in `launch_forward`.
        unsafe {
            portable_backward_keys::launch_unchecked::<F>(
                client,
                call.blocks(call.keys(index), call.kv_heads()),
                CubeDim::new_1d(THREADS as u32),
                address,
                PortableKeysInputsLaunch::<F>::new(
                    tensor(call.q),
                    tensor(&segment.k),
                    tensor(&segment.v),
                    tensor(d_o),
                ),
                tensor(&gradient.k),
                tensor(&gradient.v),
                PortableStatisticsLaunch::new(call.statistics(lse), call.statistics(delta)),
                words(list),
                PortableKeysProblemLaunch::new(
                    queries,
                    lse.rows,
                    call.keys(index),
                    call.group(),
                    layout(list),
                    CHUNK,
                    call.scale,
                ),
                call.tiles(),
            );
        }
    }
}
