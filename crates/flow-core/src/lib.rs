//! What touches Burn: devices, custom operations, counter-based random numbers, weights, the execution context and
//! the model trait.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod concurrency;
pub mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
pub mod device;
#[cfg(feature = "cuda")]
mod driver_memory;
pub mod error;
pub mod exec;
pub mod halves;
pub mod model;
pub mod names;
pub mod op;
pub mod ops;
pub mod params;
pub mod recording;
pub mod stopped;
pub mod tensors;

pub use flow_rng as rng;

pub use error::CoreError;
pub use exec::{
    AttentionKind, AttentionLayer, Block, CallContext, CallModel, ComputeLayers, DependsOn, Effect, Exec,
    KeepAll, Lane, LayerBody, LayerDriver, Plan, Recompute, RegionEngine, RegionKind, ReuseDriver, Rollout,
    RowKey, RunAll, Site, Stack, StackDriver, Stage, Training, VelocityDriver,
};
pub use halves::Halves;
pub use model::{AttentionShape, Condition, FlowModel, LatentShape, ModelInput, ModelSpec, TextWidth};
pub use names::UnknownName;
pub use ops::{
    Activation, AdamWStep, Attended, AttentionBackend, AttentionCall, AttentionCapability, AttentionSpec,
    Beside, Declined, ExpertOps, FeatureCacheOps, KernelOps, Kernels, KeyValue, LayeredKernels, Noise,
    RelativeBias, Rounding, RowSource, StepFactors, StepValues, Updated,
};
pub use params::{
    Changing, Handle, Init, ParamKind, ParamLayout, ParamSpec, ParamView, Rows, Standing, WeightStorage,
    Weights, WeightsUpdate, WeightsVersion,
};
pub use recording::{NotRecorded, Recorded, Recorder};
pub use stopped::Stopped;
pub use tensors::{Plain, Tensors};
