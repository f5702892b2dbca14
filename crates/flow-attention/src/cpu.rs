//! Exact attention on the host, one task per sample and head.
//!
//! Forward keeps, per query, the logarithm of the sum of exponentials; backward computes the probabilities again from
//! it, so no `S×S` tensor outlives a tile (Dao 2023, arXiv:2307.08691, section 3.1). A task sees one sample's head (in
//! backward the heads that share keys) only, so its bits do not depend on the batch or on the number of threads.

mod backward;
mod forward;
mod heads;
mod softmax;
mod tiles;
mod visible;

use crate::node::through;
use backward::{Saved, backward};
use burn::backend::DispatchTensor;
use burn::tensor::DType;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::Stash;
use flow_core::ops::attention::Place;
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, KeyValue, RawTensor, Refusal, autograd,
};
use forward::{Operands, forward};
use std::sync::Arc;
use visible::Visible;

/// f32 attention on the host, forward and backward.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuAttention;

impl AttentionBackend for CpuAttention {
    fn name(&self) -> &str {
        "cpu"
    }

    fn capability(&self) -> AttentionCapability {
        AttentionCapability {
            bias: true,
            ..AttentionCapability::HOST
        }
    }

    fn kernel(&self, call: &AttentionCall) -> Result<String, Refusal> {
        on_the_host(call)?;
        Ok(self.name().into())
    }

    // A task sees one head of one sample.
    fn is_row_independent(&self) -> bool {
        true
    }

    fn attend(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        parts: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        on_the_host(call)?;
        let visible = Arc::new(Visible::new(call));
        Ok(through(stash, q, parts, |inputs| {
            let inputs: Arc<[CpuTensor]> = inputs.iter().map(CpuTensor::read).collect();
            let bias = call.bias.as_ref().map(|bias| CpuTensor::read(bias.values()));
            let again = (inputs.clone(), bias.clone(), visible.clone(), call.clone());
            let compute = move || {
                let (o, lse) = forward(call, &operands(&inputs, bias.as_ref()), &visible);
                [
                    from_vec(o, &call.query_shape()),
                    from_vec(lse, &[call.batch, call.heads, call.queries]),
                ]
            };
            let backward = move |[_, lse]: [RawTensor; 2]| -> autograd::Backward {
                let lse = CpuTensor::read(&lse);
                Arc::new(move |incoming| {
                    let (inputs, bias, visible, call) = &again;
                    let gradient = CpuTensor::read(incoming.gradient());
                    let saved = Saved {
                        operands: operands(inputs, bias.as_ref()),
                        lse: lse.values(),
                        visible,
                    };
                    backward(call, &saved, gradient.values(), incoming.wanted)
                })
            };
            (compute, backward)
        }))
    }
}

fn operands<'a>(inputs: &'a [CpuTensor], bias: Option<&'a CpuTensor>) -> Operands<'a> {
    Operands {
        q: inputs[0].values(),
        bias: bias.map(CpuTensor::values),
        parts: inputs[1..]
            .chunks(2)
            .map(|pair| [pair[0].values(), pair[1].values()])
            .collect(),
    }
}

/// Whether a kernel on the host can serve `call`.
pub(crate) fn on_the_host(call: &AttentionCall) -> Result<(), Refusal> {
    if !matches!(call.place, Place::Host) {
        return Err(Refusal::because(
            "this backend computes on the processor; the operands are on another device",
        ));
    }
    if call.dtype != DType::F32 {
        return Err(Refusal::because(format!(
            "this backend computes in f32; the operands are {:?}",
            call.dtype
        )));
    }
    Ok(())
}
