//! What touches Burn: devices, custom operations, counter-based random numbers, weights, the execution context and
//! the model trait.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

pub mod attention;
mod concurrency;
pub mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
pub mod device;
#[cfg(feature = "cuda")]
mod driver_memory;
pub mod error;
pub mod exec;
pub mod experts;
pub mod halves;
pub mod kernels;
pub mod model;
pub mod names;
pub mod op;
pub mod params;
pub mod recording;
pub mod stopped;
pub mod tensors;

pub use flow_rng as rng;

pub use attention::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, AttentionSpec, Declined, KeyValue,
    RelativeBias,
};
pub use error::CoreError;
pub use exec::{
    AttentionKind, AttentionLayer, Block, CallContext, CallModel, ComputeLayers, DependsOn, Effect, Exec,
    KeepAll, Lane, LayerBody, LayerDriver, Plan, Recompute, RegionEngine, RegionKind, ReuseDriver, Rollout,
    RowKey, RunAll, Site, Stack, StackDriver, Stage, Training, VelocityDriver,
};
pub use experts::ExpertKernels;
pub use halves::Halves;
pub use kernels::{
    Activation, AdamWStep, Beside, Kernels, LaneKernels, LaneRow, Noise, Rounding, StepFactors, StepValues,
    Updated,
};
pub use model::{AttentionShape, Condition, FlowModel, LatentShape, ModelInput, ModelSpec, TextWidth};
pub use names::UnknownName;
pub use params::{
    Changing, Handle, Init, ParamKind, ParamLayout, ParamSpec, ParamView, Rows, Standing, WeightStorage,
    Weights, WeightsUpdate, WeightsVersion,
};
pub use recording::{NotRecorded, Recorded, Recorder};
pub use stopped::Stopped;
pub use tensors::{Plain, Tensors};
