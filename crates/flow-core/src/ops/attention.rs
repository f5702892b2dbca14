//! Attention: what a call asks for, and the interface of the backends that answer.
//!
//! One semantics for all of them: `softmax(scale · q kᵀ + bias + mask) v` per head, where keys and values come in one part
//! or two, as if the second followed on the first, and head `h` of the queries reads head `h · H_kv / H` of keys and values.
//! A query that sees no key gets 0.
//!
//! Legend of shapes: `B` samples, `S` query tokens, `T` key tokens, `H` heads, `H_kv` heads of keys and values, `D`
//! channels of a head.

mod bias;
pub(crate) mod composed;

pub use bias::RelativeBias;

use super::Stash;
use crate::device::ComputeDevice;
use crate::tensors::{RawTensor, shape};
use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::DType;
pub use flow_attention_mask::{Mask, Sizes};
pub use flow_registry::Refusal;
use std::fmt::{self, Debug};
use std::sync::Arc;

/// What a call asks for besides its operands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttentionSpec {
    /// Factor on the scores; without one, `1/sqrt(D)`.
    pub scale: Option<f32>,
    /// Which query sees which key; without one, each sees all. Keys of a second part are numbered after the first's.
    pub mask: Option<Arc<Mask>>,
    /// What is added to the scaled scores; without one, nothing.
    pub bias: Option<Arc<RelativeBias>>,
}

/// Keys and values `[B, T, H_kv, D]` of one part.
#[derive(Clone, Copy, Debug)]
pub struct KeyValue<'a> {
    /// Keys.
    pub k: &'a DispatchTensor,
    /// Values.
    pub v: &'a DispatchTensor,
}

/// Where the operands of a call are, with what a backend must know of the device.
#[derive(Clone)]
#[non_exhaustive]
pub enum Place {
    /// In the host's memory.
    Host,
    /// On a device of CubeCL's.
    #[cfg(feature = "cube")]
    Cube(crate::device::cube::Client),
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "Host",
            #[cfg(feature = "cube")]
            Self::Cube(_) => "Cube",
        })
    }
}

impl Place {
    /// Where tensors of `device` are.
    pub fn on(device: &ComputeDevice) -> Self {
        if device.is_processor() {
            return Self::Host;
        }
        Self::of(&device.zeros(&[1]))
    }

    fn of(tensor: &DispatchTensor) -> Self {
        #[cfg(feature = "cube")]
        if let Some(tensor) = crate::device::cube::read(&crate::tensors::plain(tensor)) {
            return Self::Cube(tensor.client.clone());
        }
        let _ = tensor;
        Self::Host
    }
}

/// The problem a call poses: sizes, types, place, scale, mask and bias. Which kernel serves it follows from this alone.
#[derive(Clone, Debug)]
pub struct AttentionCall {
    /// Where the operands are.
    pub place: Place,
    /// Type of all operands, and of the output.
    pub dtype: DType,
    /// `B`.
    pub batch: usize,
    /// `S`.
    pub queries: usize,
    /// `T` of the first part and of the second, 0 if there is none.
    pub keys: [usize; 2],
    /// `H`.
    pub heads: usize,
    /// `H_kv`, a divisor of `H`.
    pub kv_heads: usize,
    /// `D`.
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Which query sees which key; `None` if each sees all.
    pub mask: Option<Arc<Mask>>,
    /// What is added to the scaled scores.
    pub bias: Option<Arc<RelativeBias>>,
}

impl AttentionCall {
    /// The problem that queries `[B, S, H, D]` and one or two parts of keys and values pose.
    ///
    /// # Errors
    /// [`Refusal`] if the operands do not fit each other, or the mask does not fit them.
    pub fn new(q: &DispatchTensor, parts: &[KeyValue<'_>], spec: &AttentionSpec) -> Result<Self, Refusal> {
        if parts.is_empty() || parts.len() > 2 {
            return Err(Refusal::because(format!(
                "keys and values come in one part or two, not in {}",
                parts.len()
            )));
        }
        let sizes = |tensor: &DispatchTensor| -> Result<[usize; 4], Refusal> {
            let shape = tensor.shape().to_vec();
            <[usize; 4]>::try_from(shape).map_err(|shape| {
                Refusal::because(format!("operands of attention are [B, S, H, D], not {shape:?}"))
            })
        };
        let dtype = q.dtype();
        let [batch, queries, heads, head_dim] = sizes(q)?;
        let kv_heads = sizes(parts[0].k)?[2];
        let mut keys = [0; 2];
        for (part, keys) in parts.iter().zip(&mut keys) {
            let (k, v) = (sizes(part.k)?, sizes(part.v)?);
            if k != v || k != [batch, k[1], kv_heads, head_dim] {
                return Err(Refusal::because(format!(
                    "keys of {k:?} and values of {v:?} do not go with queries of {:?} and {kv_heads} heads of keys",
                    [batch, queries, heads, head_dim]
                )));
            }
            if part.k.dtype() != dtype || part.v.dtype() != dtype {
                return Err(Refusal::because(format!(
                    "queries are {dtype:?}, keys {:?} and values {:?}; cast them to one type",
                    part.k.dtype(),
                    part.v.dtype()
                )));
            }
            *keys = k[1];
        }
        let call = Self {
            place: Place::of(q),
            dtype,
            batch,
            queries,
            keys,
            heads,
            kv_heads,
            head_dim,
            scale: spec.scale.unwrap_or(1.0 / (head_dim as f32).sqrt()),
            mask: spec.mask.clone().filter(|mask| **mask != Mask::Full),
            bias: spec.bias.clone(),
        };
        call.check()?;
        Ok(call)
    }

    fn check(&self) -> Result<(), Refusal> {
        if self.head_dim == 0 {
            return Err(Refusal::because("a head needs at least one channel"));
        }
        if self.key_count() == 0 {
            return Err(Refusal::because("attention over no keys has no value"));
        }
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Refusal::because(format!(
                "{} heads of queries are no multiple of {} heads of keys",
                self.heads, self.kv_heads
            )));
        }
        if let Some(mask) = self.mask.as_ref().filter(|_| self.batch > 0 && self.queries > 0) {
            let bound = mask.bind(self.sizes());
            bound.map_err(|error| Refusal::because(error.to_string()))?;
        }
        match self.bias.as_ref().filter(|_| self.queries > 0) {
            Some(bias) => self.check_bias(bias.values()),
            None => Ok(()),
        }
    }

    /// Whether the values of a bias fit.
    fn check_bias(&self, values: &RawTensor) -> Result<(), Refusal> {
        let (found, wanted) = (
            shape(values),
            [self.heads, (self.queries + self.key_count()).saturating_sub(1)],
        );
        if found != wanted {
            return Err(Refusal::because(format!(
                "the bias of the scores is {found:?}; {} heads, {} queries and {} keys need {wanted:?}",
                self.heads,
                self.queries,
                self.key_count()
            )));
        }
        let dtype = values.dtype();
        if dtype != DType::F32 && dtype != self.dtype {
            return Err(Refusal::because(format!(
                "the bias of the scores is {dtype:?} and the operands are {:?}; it must be f32 or like them",
                self.dtype
            )));
        }
        let on_the_host = |place: &Place| matches!(place, Place::Host);
        if on_the_host(&Place::of(values)) != on_the_host(&self.place) {
            return Err(Refusal::because(
                "the bias of the scores is on another device than the operands",
            ));
        }
        Ok(())
    }

    /// Keys of both parts.
    pub fn key_count(&self) -> usize {
        self.keys[0] + self.keys[1]
    }

    /// Sizes as masks see them.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            batch: self.batch,
            queries: self.queries,
            kv_segments: self.keys,
        }
    }

    /// `[B, S, H, D]`: the shape of queries and of the output.
    pub fn query_shape(&self) -> [usize; 4] {
        [self.batch, self.queries, self.heads, self.head_dim]
    }

    /// `[B, T, H_kv, D]` of part `part`.
    pub fn key_shape(&self, part: usize) -> [usize; 4] {
        [self.batch, self.keys[part], self.kv_heads, self.head_dim]
    }
}

/// What a backend can serve at all, known before any call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionCapability {
    /// Kinds of device, as [`ComputeDevice::open`](crate::device::ComputeDevice::open) calls them.
    pub devices: &'static [&'static str],
    /// Types of operands.
    pub dtypes: &'static [DType],
    /// Whether it adds a [`RelativeBias`] to scores. One that does not is never asked for a call with a bias.
    pub bias: bool,
}

impl AttentionCapability {
    /// f32 in the host's memory, and no bias of scores.
    pub const HOST: Self = Self {
        devices: &["cpu"],
        dtypes: &[DType::F32],
        bias: false,
    };

    /// Whether a backend of this capability may be asked for `call` as far as a bias of its scores goes: one that knows of
    /// none would leave it out.
    ///
    /// # Errors
    /// [`Refusal`] if `call` has a bias and the backend adds none.
    pub fn check_bias(&self, call: &AttentionCall) -> Result<(), Refusal> {
        if call.bias.is_some() && !self.bias {
            return Err(Refusal::because(
                "it adds no bias to scores, and the call has one (relative positions of a T5 encoder)",
            ));
        }
        Ok(())
    }
}

/// What attention gives.
#[derive(Clone, Debug)]
pub struct Attended {
    /// `[B, S, H, D]` in the operands' type.
    pub output: DispatchTensor,
    /// The logarithm of each query's sum of exponentials, `[B, H, R]` in f32 with `R` at least `S`; plus infinity in rows
    /// beyond `S` and where a query sees no key. What backward starts from; no gradient goes through it.
    pub lse: RawTensor,
}

/// One implementation of attention, forward and backward, the same in rollout and in training.
pub trait AttentionBackend: Debug + Send + Sync {
    /// Name in logs, manifests and configs.
    fn name(&self) -> &str;

    /// What it can serve at all. [`kernel`](Self::kernel) may decline calls within it, and declines all outside it.
    fn capability(&self) -> AttentionCapability;

    /// The kernel that serves `call`, for logs and manifests. The answer depends on `call` alone.
    ///
    /// # Errors
    /// [`Refusal`] with the reason if none does.
    fn kernel(&self, call: &AttentionCall) -> Result<String, Refusal>;

    /// Whether the bits of a row of the batch in the forward depend neither on the other rows nor on their number, so that
    /// a row that was computed elsewhere, or for another row with the same operands, may be taken instead. If unsure, no.
    fn is_row_independent(&self) -> bool;

    /// Computes attention. Operands may be tracked. The results that backward needs (output and log-sum-exp) pass
    /// through `stash` under the name `attention`, so that a checkpoint policy can keep them.
    ///
    /// # Errors
    /// [`Refusal`], before anything is launched, exactly if [`kernel`](Self::kernel) declines `call`, which is that of the
    /// operands.
    fn attend(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        parts: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal>;
}
