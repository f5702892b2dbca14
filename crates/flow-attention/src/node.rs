//! Attention as a node of Burn's graph: what all backends have in common.

use burn::backend::DispatchTensor;
use flow_core::ops::Stash;
use flow_core::{Attended, KeyValue, RawTensor, autograd};
use std::sync::OnceLock;

/// Runs attention as one differentiable operation. `make` gets queries, then keys and values of each part, without their
/// graph, and gives a computation of output and log-sum-exp, which pass through `stash`, and what makes a backward of the
/// two.
pub(crate) fn through<C, B>(
    stash: &dyn Stash,
    q: &DispatchTensor,
    parts: &[KeyValue<'_>],
    make: impl FnOnce(&[RawTensor]) -> (C, B),
) -> Attended
where
    C: Fn() -> [RawTensor; 2],
    B: FnOnce([RawTensor; 2]) -> autograd::Backward,
{
    let of_parts = parts.iter().flat_map(|part| [part.k, part.v]);
    let inputs: Vec<&DispatchTensor> = std::iter::once(q).chain(of_parts).collect();
    let kept_lse = OnceLock::new();
    let output = autograd::apply("attention", &inputs, |inputs, _| {
        let (compute, backward) = make(inputs);
        let kept = stash.through("attention", &mut || compute().into());
        let kept: [RawTensor; 2] = kept
            .try_into()
            .expect("attention keeps its output and the log-sum-exp");
        let output = kept[0].clone();
        kept_lse.set(kept[1].clone()).expect("forward runs once");
        (output, backward(kept))
    });
    Attended {
        output,
        lse: kept_lse.into_inner().expect("forward ran"),
    }
}
