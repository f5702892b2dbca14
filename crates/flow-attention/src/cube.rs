//! Attention on NVIDIA's tensor cores for Burn's tensors: the kernels of `flow-attention-cube` as a differentiable
//! operation.

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::DType;
use flow_attention_cube::call::{Call, Declined};
use flow_attention_cube::mma::Mma;
use flow_attention_cube::run::{Kernels, Prepared};
use flow_attention_cube::tensors::{Heads, Part, lse_rows};
use flow_attention_cube::wgmma::Wgmma;
use flow_attention_mask::Mask;
use flow_core::cube::{CubeTensor, contiguous, empty_like, read, wrap};
use flow_core::exec::{Compute, Stash};
use flow_core::{AttentionBackend, AttentionShape, Plain, op};
use flow_cube::wgmma::Factor;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

/// What a call asks for besides its operands.
#[derive(Clone, Debug, Default)]
pub struct AttentionSpec {
    /// Factor on the scores; without one, `1/sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// Which query sees which key; without one, each sees all.
    pub mask: Option<Arc<Mask>>,
}

/// Output, and the logarithm of the sum of exponentials of each query.
#[derive(Clone, Debug)]
pub struct Attended {
    /// `[B, S, H, D]`.
    pub output: DispatchTensor,
    /// `[B, H, R]` in f32, with `R` the queries rounded up to 128; infinite beyond them and where a query sees no key.
    pub lse: Plain,
}

/// Attention of a CUDA device, in bf16 or f16 with f32 sums.
pub struct CubeAttention<K: Kernels> {
    /// Calls seen before, with their masks on the device.
    prepared: Mutex<Vec<Known<K>>>,
}

struct Known<K: Kernels> {
    call: Call,
    scale: f32,
    mask: Option<Arc<Mask>>,
    prepared: Arc<Prepared<K>>,
}

/// On Hopper's asynchronous tensor cores (compute capability 9.0).
pub type WgmmaAttention = CubeAttention<Wgmma>;

/// On the tensor cores of compute capability 8.0 and later.
pub type MmaAttention = CubeAttention<Mma>;

impl<K: Kernels> Default for CubeAttention<K> {
    fn default() -> Self {
        Self {
            prepared: Mutex::new(Vec::new()),
        }
    }
}

impl<K: Kernels> fmt::Debug for CubeAttention<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(K::NAME)
    }
}

fn declined(why: impl Into<String>) -> Declined {
    Declined { why: why.into() }
}

/// The tensor as kernels read it: last axis dense, the others at multiples of 16 bytes.
fn operand(tensor: &Plain) -> Result<CubeTensor, Declined> {
    let tensor = read(tensor).ok_or_else(|| declined("the tensor is not on a CUDA device"))?;
    let (last, others) = tensor
        .meta
        .strides
        .split_last()
        .ok_or_else(|| declined("a tensor without axes"))?;
    if *last == 1 && others.iter().all(|stride| stride % 8 == 0) {
        Ok(tensor.clone())
    } else {
        Ok(contiguous(tensor.clone()))
    }
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

fn factor(dtype: DType) -> Result<Factor, Declined> {
    match dtype {
        DType::BF16 => Ok(Factor::Bf16),
        DType::F16 => Ok(Factor::F16),
        other => Err(declined(format!(
            "tensor cores attend in bf16 or f16; the operands are {other:?}. Cast them, or choose another backend"
        ))),
    }
}

impl<K: Kernels> CubeAttention<K> {
    /// `softmax(scale · q kᵀ) v` of `q [B, S, H, D]` over one or two parts of keys and values `[B, S_part, H_kv, D]`, where
    /// `H_kv` divides `H`. Operands may be tracked; their gradients are those of these kernels, too.
    ///
    /// # Errors
    /// [`Declined`] if the kernels do not serve the call.
    pub fn attend(
        &self,
        q: &DispatchTensor,
        parts: &[[&DispatchTensor; 2]],
        spec: &AttentionSpec,
    ) -> Result<Attended, Declined> {
        self.attend_through(&Compute, q, parts, spec)
    }

    fn attend_through(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        parts: &[[&DispatchTensor; 2]],
        spec: &AttentionSpec,
    ) -> Result<Attended, Declined> {
        if parts.is_empty() || parts.len() > 2 {
            return Err(declined(format!(
                "keys come in one part or two, not in {}",
                parts.len()
            )));
        }
        let inputs: Vec<&DispatchTensor> = std::iter::once(q)
            .chain(parts.iter().flatten().copied())
            .collect();
        let first = flow_core::tensors::plain(q);
        let client = read(&first)
            .ok_or_else(|| declined("the queries are not on a CUDA device"))?
            .client
            .clone();
        let call = call_of(&inputs)?;
        let scale = spec.scale.unwrap_or(1.0 / (call.head_dim as f32).sqrt());
        let prepared = self.prepare(&client, call, scale, spec.mask.as_ref())?;
        let operands = inputs
            .iter()
            .map(|tensor| operand(&flow_core::tensors::plain(tensor)))
            .collect::<Result<Vec<_>, _>>()?;
        let kept_lse = OnceLock::new();
        let output = op::apply("attention", &inputs, |_, _| {
            let kept = stash.through("attention", &mut || forward(&prepared, &operands));
            let [output, lse]: [Plain; 2] = kept
                .try_into()
                .expect("attention keeps its output and the log-sum-exp");
            kept_lse.set(lse.clone()).expect("forward runs once");
            let saved = [output.clone(), lse];
            let backward: op::Backward = Arc::new(move |incoming| {
                let gradients = backward(&prepared, &operands, &saved, incoming.gradient());
                gradients
                    .into_iter()
                    .zip(incoming.wanted)
                    .map(|(g, wanted)| wanted.then_some(g))
                    .collect()
            });
            (output, backward)
        });
        let lse = kept_lse.into_inner().expect("forward ran");
        Ok(Attended { output, lse })
    }

    fn prepare(
        &self,
        client: &flow_core::cube::Client,
        call: Call,
        scale: f32,
        mask: Option<&Arc<Mask>>,
    ) -> Result<Arc<Prepared<K>>, Declined> {
        // A panic while the lock was held left the list whole: entries are pushed at once.
        let mut known = self
            .prepared
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let same =
            |entry: &&Known<K>| entry.call == call && entry.scale == scale && entry.mask.as_ref() == mask;
        if let Some(entry) = known.iter().find(same) {
            return Ok(entry.prepared.clone());
        }
        let prepared = Arc::new(Prepared::new(client, call, scale, mask.cloned())?);
        known.push(Known {
            call,
            scale,
            mask: mask.cloned(),
            prepared: prepared.clone(),
        });
        Ok(prepared)
    }
}

/// The problem that operands `q, k, v` and maybe `k, v` again pose.
fn call_of(inputs: &[&DispatchTensor]) -> Result<Call, Declined> {
    let shapes: Vec<Vec<usize>> = inputs.iter().map(|tensor| tensor.shape().to_vec()).collect();
    if let Some(shape) = shapes.iter().find(|shape| shape.len() != 4) {
        return Err(declined(format!("operands are [B, S, H, D], not {shape:?}")));
    }
    let q = &shapes[0];
    let fits = |k: &Vec<usize>| k[0] == q[0] && k[2] == shapes[1][2] && k[3] == q[3];
    let pairs = shapes[1..]
        .chunks(2)
        .all(|pair| pair[0] == pair[1] && fits(&pair[0]));
    if !pairs {
        return Err(declined(format!(
            "keys and values do not fit the queries: {shapes:?}"
        )));
    }
    let dtype = inputs[0].dtype();
    if inputs.iter().any(|tensor| tensor.dtype() != dtype) {
        return Err(declined("queries, keys and values are of different types"));
    }
    Ok(Call {
        batch: q[0],
        heads: q[2],
        kv_heads: shapes[1][2],
        queries: q[1],
        keys: [shapes[1][1], shapes.get(3).map_or(0, |shape| shape[1])],
        head_dim: q[3],
        factor: factor(dtype)?,
    })
}

fn forward<K: Kernels>(prepared: &Prepared<K>, operands: &[CubeTensor]) -> Vec<Plain> {
    let q = &operands[0];
    let call = prepared.call();
    let output = empty_like(q, &[call.batch, call.queries, call.heads, call.head_dim], q.dtype);
    let lse = empty_like(q, &[call.batch, call.heads, lse_rows(call.queries)], DType::F32);
    let views: Vec<Heads> = operands.iter().map(heads).collect();
    let parts: Vec<Part<'_>> = views[1..]
        .chunks(2)
        .map(|pair| Part {
            k: &pair[0],
            v: &pair[1],
        })
        .collect();
    prepared.forward(&views[0], &parts, &heads(&output), &lse.handle);
    vec![wrap(output), wrap(lse)]
}

fn backward<K: Kernels>(
    prepared: &Prepared<K>,
    operands: &[CubeTensor],
    saved: &[Plain; 2],
    gradient: &Plain,
) -> Vec<Plain> {
    let kept = "what attention kept is on the device it computed on";
    let [output, lse] = [0, 1].map(|i| read(&saved[i]).expect(kept));
    let gradient = operand(gradient).expect("the gradient is on the output's device");
    let delta = empty_like(lse, &lse.meta.shape.to_vec(), DType::F32);
    let gradients: Vec<CubeTensor> = operands
        .iter()
        .map(|tensor| empty_like(tensor, &tensor.meta.shape.to_vec(), tensor.dtype))
        .collect();
    let views: Vec<Heads> = operands.iter().map(heads).collect();
    let outputs: Vec<Heads> = gradients.iter().map(heads).collect();
    let parts: Vec<Part<'_>> = views[1..]
        .chunks(2)
        .map(|pair| Part {
            k: &pair[0],
            v: &pair[1],
        })
        .collect();
    let of_parts: Vec<[&Heads; 2]> = outputs[1..].chunks(2).map(|pair| [&pair[0], &pair[1]]).collect();
    prepared.backward(
        [&views[0], &heads(output), &heads(&gradient)],
        &parts,
        &lse.handle,
        &delta.handle,
        &outputs[0],
        &of_parts,
    );
    gradients.into_iter().map(wrap).collect()
}

impl<K: Kernels> AttentionBackend for CubeAttention<K> {
    fn name(&self) -> &str {
        K::NAME
    }

    fn supports(&self, shape: &AttentionShape) -> Result<(), String> {
        let call = Call {
            batch: shape.batch,
            heads: shape.heads,
            kv_heads: shape.heads,
            queries: shape.queries,
            keys: [shape.keys, 0],
            head_dim: shape.head_dim,
            factor: Factor::Bf16,
        };
        call.check().map_err(|declined| declined.why)
    }

    /// # Panics
    /// If the operands are not 16-bit tensors of a CUDA device: backends are chosen by device and precision, so this is a
    /// bug.
    fn attention(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        k: &DispatchTensor,
        v: &DispatchTensor,
        shape: &AttentionShape,
    ) -> DispatchTensor {
        let spec = AttentionSpec {
            scale: Some(shape.scale),
            mask: None,
        };
        match self.attend_through(stash, q, &[[k, v]], &spec) {
            Ok(attended) => attended.output,
            Err(declined) => panic!(
                "attention `{}` was given a call it does not serve: {declined}",
                K::NAME
            ),
        }
    }
}
