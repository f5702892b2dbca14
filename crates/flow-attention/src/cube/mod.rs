//! Attention on devices of CubeCL's for Burn's tensors: the kernels of `flow-attention-cube` as differentiable operations.
//!
//! [`CubeAttention`] is attention on NVIDIA's tensor cores in 16 bits; [`PortableAttention`] runs on any device and in any
//! float type.

mod lru_cache;
mod portable;
mod tensor_cores;

pub use portable::PortableAttention;
pub use tensor_cores::{CubeAttention, MmaAttention, WgmmaAttention};

use flow_attention_cube::tensors::Heads;
use flow_core::cube::{Client, CubeTensor};
use flow_core::ops::attention::Place;
use flow_core::{AttentionCall, RawTensor, Refusal};

/// The device of `call`.
fn client(call: &AttentionCall) -> Result<&Client, Refusal> {
    match &call.place {
        Place::Cube(client) => Ok(client),
        _ => Err(Refusal::because(
            "this backend computes on a GPU; the operands are in the host's memory. The backends `cpu` and `reference` compute \
             there",
        )),
    }
}

/// The device's tensor.
fn read(tensor: &RawTensor) -> CubeTensor {
    let tensor = flow_core::cube::read(tensor);
    tensor.expect("the call's operands are on its device").clone()
}

/// `[B, S, H, D]` in memory, seen as `[B, H, S, D]`.
fn heads(tensor: &CubeTensor) -> Heads {
    let (shape, strides) = (&tensor.meta.shape, &tensor.meta.strides);
    Heads {
        handle: tensor.handle.clone(),
        shape: [shape[0], shape[2], shape[1], shape[3]],
        strides: [strides[0], strides[2], strides[1], strides[3]],
    }
}
