//! What touches Burn: devices, custom operations, counter-based random numbers, weights, the execution context and
//! the model trait.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

pub mod autograd;
pub mod device;
pub mod error;
pub mod exec;
mod latent;
pub mod low_precision;
pub mod model;
pub mod ops;
pub mod params;
pub mod split_f32;
pub mod stopped;
pub mod tensors;

pub use flow_rng as rng;

pub use device::cpu;
#[cfg(feature = "cube")]
pub use device::cube;
pub use device::graph::{Recorded, Recorder};
pub use error::CoreError;
pub use exec::{
    AttentionKind, AttentionLayer, Backends, Block, CallContext, CallModel, ComputeAllLayers, DependsOn,
    Effect, Exec, FlowModel, InferencePass, LayerBody, LayerDriver, NoCheckpointing, NoReuse, RegionEngine,
    ReuseDriver, RowKey, RunAllBlocks, Site, Stack, StackDriver, Stage, TrainingPass, TrajectoryId,
    VelocityDriver,
};
pub use low_precision::{LowPrecision, LowPrecisionCompute, LowPrecisionFormat};
pub use model::{
    AttentionShape, Condition, LatentShape, LowPrecisionRule, ModelInput, ModelSpec, RegionKind, TextWidth,
};
pub use ops::{
    Activation, AdamWFactors, AdamWParam, AdamWScalars, AdamWStep, Attended, AttentionBackend, AttentionCall,
    AttentionCapability, AttentionSpec, ExpertOps, FeatureCacheOps, KernelOps, Kernels, KeyValue,
    LayeredKernels, MasterWeight, Noise, Refusal, RelativeBias, Rounding, RowSource, Squares,
};
pub use params::{
    BlockGradients, BlockWeights, Changing, Drawn, Handle, Init, ParamKind, ParamLayout, ParamSpec,
    ParamView, Rows, Standing, WeightStorage, Weights, WeightsUpdate, WeightsVersion,
};
pub use split_f32::SplitF32;
pub use stopped::Stopped;
pub use tensors::{RawTensor, Tensors};
