//! The operations that models and trainers ask for: one trait for each asker, and [`Kernels`], which hand them out.
//!
//! | asker | trait |
//! |---|---|
//! | a model | [`ModelOps`], [`ExpertOps`], [`AttentionBackend`] |
//! | a model whose kernels compute several operations as one | [`FusedOps`] |
//! | a sampler | [`SamplerOps`] |
//! | a loss | [`LossOps`] |
//! | an optimizer | [`OptimizerOps`] |
//! | weights that are stored or copied | [`WeightOps`] |
//! | a feature cache | [`FeatureCacheOps`] |
//!
//! An implementation owns forward and backward of each operation (through [`crate::autograd`]), so it also decides what
//! backward keeps. `flow-kernels` implements them for the CPU and for GPUs, `flow-attention` the attention. No operation has a
//! body here, so whoever implements a trait states all of it; [`LayeredKernels`] is for kernels around others.
//!
//! Legend of shapes: `B` batch, `S` tokens, `D` channels, `H` heads, `K` modulation chunks, `N` values of one latent.
//! Tensors of type [`RawTensor`](crate::RawTensor) are outside any graph, others may be tracked. Shapes are checked by the caller,
//! [`Exec`](crate::exec::Exec).

pub mod attention;
mod experts;
mod feature_cache;
mod fused;
mod kernels;
mod layered;
mod model;
mod optimizer;
mod sampler;
mod stash;
mod weight;

pub use attention::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, AttentionSpec, KeyValue, Refusal,
    RelativeBias,
};
pub use experts::{ExpertOps, GroupedWeights, Grouping, Routed};
pub use feature_cache::{DeferredSums, FeatureCacheOps, PairSums, RowSource, TensorRow};
pub use fused::{Composed, FusedOps};
pub use kernels::{KernelOps, Kernels, OnFused};
pub use layered::LayeredKernels;
pub use model::{
    Activation, FeedForwardWeights, GatedResidual, LinearWeights, ModelOps, ModulatedNorm, NormChunks,
    RotaryTables,
};
pub use optimizer::{
    AdamWFactors, AdamWParam, AdamWScalars, AdamWStep, MasterWeight, OptimizerOps, Rounding, Squares,
};
pub use sampler::{LossOps, Noise, SamplerOps, SdeOutputs, SdeStep};
pub use stash::{Compute, Stash};
pub use weight::WeightOps;
