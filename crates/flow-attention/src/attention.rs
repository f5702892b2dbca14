//! Attention as one function of Burn's tensors.

use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{Slice, Tensor};
use flow_core::ops::Compute;
use flow_core::{AttentionBackend, AttentionCall, AttentionSpec, KeyValue, Refusal};

/// What [`attention`] gives.
#[derive(Clone, Debug)]
pub struct Attention {
    /// `[B, S, H, D]`; differentiable.
    pub output: Tensor<4>,
    /// The logarithm of each query's sum of exponentials, `[B, H, S]` in f32; plus infinity where a query sees no key. No
    /// gradient goes through it.
    pub lse: Tensor<3>,
}

/// `softmax(scale · q kᵀ + bias + mask) v` of queries `q [B, S, H, D]` over one or two `parts` of keys and values `[B, T, H_kv,
/// D]`, where `H_kv` divides `H`; forward, and backward where operands are tracked.
///
/// # Errors
/// [`Refusal`], before anything is launched, if the operands do not fit each other or `backend` does not serve them.
pub fn attention<const PARTS: usize>(
    backend: &dyn AttentionBackend,
    q: Tensor<4>,
    parts: [(Tensor<4>, Tensor<4>); PARTS],
    spec: &AttentionSpec,
) -> Result<Attention, Refusal> {
    let q = q.into_dispatch();
    let parts = parts.map(|(k, v)| (k.into_dispatch(), v.into_dispatch()));
    let parts: Vec<KeyValue<'_>> = parts.iter().map(|(k, v)| KeyValue { k, v }).collect();
    let call = AttentionCall::new(&q, &parts, spec)?;
    backend.capability().check_bias(&call)?;
    let attended = backend.attend(&Compute, &q, &parts, &call)?;
    let rows = [call.batch, call.heads, call.queries].map(|end| Slice::from(0..end));
    Ok(Attention {
        output: Tensor::from_dispatch(attended.output),
        lse: Tensor::from_dispatch(Dispatch::float_slice(attended.lse, &rows)),
    })
}
