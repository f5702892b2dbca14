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
mod model_ops;
mod parts;
mod session;

pub use crate::model::RegionKind;
pub use call::{CallContext, RowKey, Stage, TrajectoryId};
pub use context::{
    Backends, Body, CallBody, Exec, FlowModel, LayerBody, LayerDriver, RegionEngine, ReuseDriver, RowsBody,
    Stack, StackDriver, VelocityDriver,
};
pub use experts::{ExpertLayer, Routing};
pub use hooks::{Block, CallModel, ComputeAllLayers, NoCheckpointing, NoReuse, RunAllBlocks};
pub use log::{AttentionLog, AttentionUse};
pub use model_ops::{FeedForward, Linear};
pub use parts::{AttentionKind, AttentionLayer, DependsOn, Effect, Reusable, Site};
pub use session::{InferencePass, TrainingPass};
