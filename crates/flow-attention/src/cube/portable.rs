//! Attention on any device of CubeCL's, in f32, f16 or bf16 with f32 sums.

use super::lru_cache::LruCache;
use super::{client, heads, read};
use crate::node::through;
use burn::backend::DispatchTensor;
use burn::tensor::DType;
use flow_attention_cube::Element;
use flow_attention_cube::portable::{self, Call, KeyValues, PortableMask, Statistics, check_device};
use flow_attention_cube::tensors::Heads;
use flow_core::cube::{Client, CubeTensor, LaunchesOn, empty_like, wrap};
use flow_core::ops::Stash;
use flow_core::ops::attention::{Mask, Sizes};
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, KeyValue, RawTensor, Refusal, autograd,
};
use std::fmt;
use std::sync::Arc;

/// The portable kernels: no tensor cores, any strides, heads of up to 256 channels.
#[derive(Default)]
pub struct PortableAttention {
    /// Masks compiled lately.
    masks: LruCache<CallKey, PortableMask>,
}

#[derive(Debug, PartialEq)]
struct CallKey {
    device: LaunchesOn,
    mask: Option<Arc<Mask>>,
    sizes: Sizes,
    head_dim: usize,
}

impl fmt::Debug for PortableAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

fn element(call: &AttentionCall) -> Result<Element, Refusal> {
    match call.dtype {
        DType::F32 => Ok(Element::F32),
        DType::F16 => Ok(Element::F16),
        DType::BF16 => Ok(Element::Bf16),
        other => Err(Refusal::because(format!(
            "the portable attention kernels take f32, f16 and bf16, not {other:?}"
        ))),
    }
}

impl PortableAttention {
    /// Name in logs, manifests and configs.
    pub const NAME: &'static str = "portable";

    const CAPABILITY: AttentionCapability = AttentionCapability {
        devices: &["cuda", "vulkan"],
        dtypes: &[DType::F32, DType::BF16, DType::F16],
        bias: false,
    };

    fn check(call: &AttentionCall) -> Result<(&Client, Element), Refusal> {
        Self::CAPABILITY.check_bias(call)?;
        let (client, element) = (client(call)?, element(call)?);
        check_device(client, [call.batch, call.heads, call.head_dim], element)?;
        Ok((client, element))
    }

    fn mask(&self, client: &Client, call: &AttentionCall) -> Result<Arc<PortableMask>, Refusal> {
        let (sizes, head_dim) = (call.sizes(), call.head_dim);
        let key = CallKey {
            device: LaunchesOn::of(client),
            mask: call.mask.clone(),
            sizes,
            head_dim,
        };
        self.masks.get_or_make(client, key, || {
            let mask = call.mask.as_deref().unwrap_or(&Mask::Full);
            PortableMask::new(client, mask, sizes, head_dim)
        })
    }
}

/// A call's operands on the device.
#[derive(Clone)]
struct Operands {
    tensors: Arc<[CubeTensor]>,
    q: Heads,
    kv_segments: Vec<KeyValues>,
    element: Element,
    mask: Arc<PortableMask>,
    scale: f32,
}

fn pairs(heads: &[Heads]) -> Vec<KeyValues> {
    let pairs = heads.chunks(2);
    pairs
        .map(|pair| KeyValues {
            k: pair[0].clone(),
            v: pair[1].clone(),
        })
        .collect()
}

impl Operands {
    fn call(&self) -> Call<'_> {
        Call {
            q: &self.q,
            kv_segments: &self.kv_segments,
            scale: self.scale,
            element: self.element,
            mask: &self.mask,
        }
    }

    fn forward(&self) -> [RawTensor; 2] {
        let q = &self.tensors[0];
        let [batch, heads_count, queries, _] = self.q.shape;
        let output = empty_like(q, &q.meta.shape.to_vec(), q.dtype);
        let lse = empty_like(q, &[batch, heads_count, queries], DType::F32);
        let statistics = Statistics {
            handle: lse.handle.clone(),
            rows: queries,
        };
        portable::forward(&q.client, &self.call(), &heads(&output), &statistics)
            .expect("the call was checked before");
        [wrap(output), wrap(lse)]
    }

    fn backward(
        &self,
        [output, lse]: &[RawTensor; 2],
        gradient: &RawTensor,
        wanted: &[bool],
    ) -> Vec<Option<RawTensor>> {
        let (output, lse, gradient) = (read(output), read(lse), read(gradient));
        let delta = empty_like(&lse, &lse.meta.shape.to_vec(), DType::F32);
        let statistics = |tensor: &CubeTensor| Statistics {
            handle: tensor.handle.clone(),
            rows: self.q.shape[2],
        };
        let gradients: Vec<CubeTensor> = self
            .tensors
            .iter()
            .map(|tensor| empty_like(tensor, &tensor.meta.shape.to_vec(), tensor.dtype))
            .collect();
        let views: Vec<Heads> = gradients.iter().map(heads).collect();
        portable::backward(
            &output.client,
            &self.call(),
            &heads(&output),
            &heads(&gradient),
            &statistics(&lse),
            &statistics(&delta),
            &views[0],
            &pairs(&views[1..]),
        )
        .expect("the call was checked before");
        let gradients = gradients.into_iter().zip(wanted);
        gradients
            .map(|(gradient, wanted)| wanted.then(|| wrap(gradient)))
            .collect()
    }
}

impl AttentionBackend for PortableAttention {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn capability(&self) -> AttentionCapability {
        Self::CAPABILITY
    }

    fn kernel(&self, call: &AttentionCall) -> Result<String, Refusal> {
        Self::check(call)?;
        Ok(Self::NAME.into())
    }

    // A block sees one head of one sample.
    fn is_row_independent(&self) -> bool {
        true
    }

    fn attend(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        kv_segments: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        let (client, element) = Self::check(call)?;
        let mask = self.mask(client, call)?;
        Ok(through(stash, q, kv_segments, |inputs| {
            let tensors: Arc<[CubeTensor]> = inputs.iter().map(read).collect();
            let views: Vec<Heads> = tensors.iter().map(heads).collect();
            let operands = Operands {
                q: views[0].clone(),
                kv_segments: pairs(&views[1..]),
                tensors,
                element,
                mask,
                scale: call.scale,
            };
            let again = operands.clone();
            let compute = move || operands.forward();
            let backward = move |saved: [RawTensor; 2]| -> autograd::Backward {
                Arc::new(move |incoming| again.backward(&saved, incoming.gradient(), incoming.wanted))
            };
            (compute, backward)
        }))
    }
}
