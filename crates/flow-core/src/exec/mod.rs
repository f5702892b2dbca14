//! The execution context: everything a model may do.
//!
//! A model announces its structure ([`Exec::stack`], [`Exec::region`]) and asks for operations
//! ([`Exec::attention`], [`Exec::linear`], …). [`Backends`] say who answers. So an accelerator never touches a model,
//! and a model never knows an accelerator.

mod backends;
mod call;
mod context;
mod experts;
mod hooks;
mod log;
mod model;
mod model_ops;
mod session;

pub use crate::model::RegionKind;
pub use backends::Backends;
pub use call::{CallContext, Stage, TrajectoryId};
pub use context::Exec;
pub use experts::{ExpertLayer, Routing};
pub use hooks::{
    AttentionKind, AttentionLayer, Block, Body, CallBody, CallModel, ComputeAllLayers, DependsOn, Effect,
    LayerBody, LayerDriver, NoCheckpointing, NoReuse, RegionEngine, Reusable, ReuseDriver, RowKey, RowsBody,
    RunAllBlocks, Site, Stack, StackDriver, VelocityDriver,
};
pub use log::{AttentionLog, AttentionUse};
pub use model::FlowModel;
pub use model_ops::{FeedForward, Linear};
pub use session::{InferencePass, TrainingPass};
