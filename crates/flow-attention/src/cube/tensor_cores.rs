//! Attention on NVIDIA's tensor cores, in bf16 or f16 with f32 sums.

use super::lru_cache::LruCache;
use super::{client, heads, read};
use crate::node::through;
use burn::backend::DispatchTensor;
use burn::tensor::DType;
use flow_attention_cube::mma::Mma;
use flow_attention_cube::prepared::{DeviceCapabilities, Kernels, Prepared};
use flow_attention_cube::problem::{Problem, check_scale};
use flow_attention_cube::sources::Sources;
use flow_attention_cube::tensors::{Heads, KvSegment, lse_rows};
use flow_attention_cube::wgmma::Wgmma;
use flow_core::cube::{Client, CubeTensor, LaunchesOn, cast, contiguous, empty_like, wrap};
use flow_core::ops::Stash;
use flow_core::ops::attention::Mask;
use flow_core::tensors::is_tracked;
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, KeyValue, RawTensor, Refusal, autograd,
};
use flow_cube::wgmma::OperandType;
use std::fmt;
use std::sync::Arc;

/// Attention of a CUDA device.
pub struct CubeAttention<K: Kernels> {
    /// Calls seen lately, with their masks on the device.
    prepared: LruCache<CallKey, Prepared<K>>,
    #[cfg(feature = "cuda")]
    precompiler: flow_precompile::Precompiler,
}

#[derive(Debug, PartialEq)]
struct CallKey {
    device: LaunchesOn,
    call: Problem,
    scale: f32,
    mask: Option<Arc<Mask>>,
    biased: bool,
}

/// On Hopper's asynchronous tensor cores (compute capability 9.0).
pub type WgmmaAttention = CubeAttention<Wgmma>;

/// On the tensor cores of compute capability 8.0 and later.
pub type MmaAttention = CubeAttention<Mma>;

impl<K: Kernels> Default for CubeAttention<K> {
    fn default() -> Self {
        Self {
            prepared: LruCache::default(),
            #[cfg(feature = "cuda")]
            precompiler: flow_precompile::Precompiler::default(),
        }
    }
}

impl<K: Kernels> fmt::Debug for CubeAttention<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(K::NAME)
    }
}

/// The tensor as kernels read it: last axis dense, the others at multiples of 16 bytes.
fn operand(tensor: &RawTensor) -> CubeTensor {
    let tensor = read(tensor);
    let aligned = match tensor.meta.strides.split_last() {
        Some((last, others)) => *last == 1 && others.iter().all(|stride| stride % 8 == 0),
        None => false,
    };
    if aligned { tensor } else { contiguous(tensor) }
}

/// The call as the kernels know it.
fn cube_call(call: &AttentionCall) -> Result<Problem, Refusal> {
    let operand_type = match call.dtype {
        DType::BF16 => OperandType::Bf16,
        DType::F16 => OperandType::F16,
        other => {
            return Err(Refusal::because(format!(
                "tensor cores attend in bf16 or f16; the operands are {other:?}"
            )));
        }
    };
    Ok(Problem {
        batch: call.batch,
        heads: call.heads,
        kv_heads: call.kv_heads,
        queries: call.queries,
        keys: call.keys,
        head_dim: call.head_dim,
        operand_type,
    })
}

impl<K: Sources> CubeAttention<K> {
    fn prepare(&self, client: &Client, problem: &AttentionCall) -> Result<Arc<Prepared<K>>, Refusal> {
        let call = cube_call(problem)?;
        let biased = problem.bias.is_some();
        if biased {
            Prepared::<K>::check_bias(&call)?;
        }
        let key = CallKey {
            device: LaunchesOn::of(client),
            call,
            scale: problem.scale,
            mask: problem.mask.clone(),
            biased,
        };
        self.prepared.get_or_make(client, key, || {
            let prepared = Prepared::new(client, call, problem.scale, problem.mask.clone())?;
            // Backward's, too: they are wanted once forward is queued, and by then they are ready. With a bias there is no backward.
            #[cfg(feature = "cuda")]
            if !biased {
                self.precompiler.compile(client, || prepared.kernels());
            }
            Ok(prepared)
        })
    }
}

/// The bias of the scores of `call`, if it has one, as kernels read it: f32 without gaps.
///
/// # Errors
/// [`Refusal`] if a gradient is to go through the scores: the kernels of backward know no bias.
fn bias_of(
    call: &AttentionCall,
    q: &DispatchTensor,
    kv_segments: &[KeyValue<'_>],
) -> Result<Option<CubeTensor>, Refusal> {
    let Some(bias) = &call.bias else {
        return Ok(None);
    };
    let of_segments = kv_segments.iter().flat_map(|part| [part.k, part.v]);
    if of_segments.chain([q]).any(is_tracked) {
        return Err(Refusal::because(
            "the kernels of tensor cores give no gradient through scores with a bias",
        ));
    }
    Ok(Some(contiguous(cast(read(bias.values()), DType::F32))))
}

fn forward<K: Kernels>(
    prepared: &Prepared<K>,
    operands: &[CubeTensor],
    bias: Option<&CubeTensor>,
) -> [RawTensor; 2] {
    let q = &operands[0];
    let call = prepared.problem();
    let output = empty_like(q, &[call.batch, call.queries, call.heads, call.head_dim], q.dtype);
    let lse = empty_like(q, &[call.batch, call.heads, lse_rows(call.queries)], DType::F32);
    let views: Vec<Heads> = operands.iter().map(heads).collect();
    let kv_segments: Vec<KvSegment<'_>> = views[1..]
        .chunks(2)
        .map(|pair| KvSegment {
            k: &pair[0],
            v: &pair[1],
        })
        .collect();
    let (q, o) = (&views[0], &heads(&output));
    match bias {
        Some(bias) => prepared
            .forward_biased(q, &kv_segments, o, &lse.handle, &bias.handle)
            .expect("the call was checked before"),
        None => prepared.forward(q, &kv_segments, o, &lse.handle),
    }
    [wrap(output), wrap(lse)]
}

fn backward<K: Kernels>(
    prepared: &Prepared<K>,
    operands: &[CubeTensor],
    saved: &[RawTensor; 2],
    gradient: &RawTensor,
    wanted: &[bool],
) -> Vec<Option<RawTensor>> {
    let [output, lse] = [0, 1].map(|i| read(&saved[i]));
    let gradient = operand(gradient);
    let delta = empty_like(&lse, &[prepared.scratch()], DType::F32);
    let gradients: Vec<CubeTensor> = operands
        .iter()
        .map(|tensor| empty_like(tensor, &tensor.meta.shape.to_vec(), tensor.dtype))
        .collect();
    let views: Vec<Heads> = operands.iter().map(heads).collect();
    let outputs: Vec<Heads> = gradients.iter().map(heads).collect();
    let kv_segments: Vec<KvSegment<'_>> = views[1..]
        .chunks(2)
        .map(|pair| KvSegment {
            k: &pair[0],
            v: &pair[1],
        })
        .collect();
    let of_kv_segments: Vec<[&Heads; 2]> = outputs[1..].chunks(2).map(|pair| [&pair[0], &pair[1]]).collect();
    prepared.backward(
        [&views[0], &heads(&output), &heads(&gradient)],
        &kv_segments,
        &lse.handle,
        &delta.handle,
        &outputs[0],
        &of_kv_segments,
    );
    let gradients = gradients.into_iter().zip(wanted);
    gradients
        .map(|(gradient, wanted)| wanted.then(|| wrap(gradient)))
        .collect()
}

impl<K: Sources> AttentionBackend for CubeAttention<K> {
    fn name(&self) -> &str {
        K::NAME
    }

    fn capability(&self) -> AttentionCapability {
        AttentionCapability {
            devices: &["cuda"],
            dtypes: &[DType::BF16, DType::F16],
            bias: K::ADDS_BIAS,
        }
    }

    fn kernel(&self, call: &AttentionCall) -> Result<String, Refusal> {
        let (client, problem) = (client(call)?, cube_call(call)?);
        problem.check()?;
        if call.bias.is_some() {
            Prepared::<K>::check_bias(&problem)?;
        }
        check_scale(call.scale)?;
        K::check(client, &problem)?;
        let selection = K::select(&problem, call.mask.is_some(), DeviceCapabilities::of(client));
        Ok(selection.name(K::NAME))
    }

    // The tables do not ask for the batch, and a block sees one head of one sample.
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
        let bias = bias_of(call, q, kv_segments)?;
        let prepared = self.prepare(client(call)?, call)?;
        Ok(through(stash, q, kv_segments, |inputs| {
            let operands: Arc<[CubeTensor]> = inputs.iter().map(operand).collect();
            let again = (prepared.clone(), operands.clone());
            let compute = move || forward(&prepared, &operands, bias.as_ref());
            let backward = move |saved: [RawTensor; 2]| -> autograd::Backward {
                Arc::new(move |incoming| {
                    backward(&again.0, &again.1, &saved, incoming.gradient(), incoming.wanted)
                })
            };
            (compute, backward)
        }))
    }
}
