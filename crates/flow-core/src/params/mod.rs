//! Weights as data: a layout of named, typed handles, the values, and views of them.
//!
//! A model is a description that holds [`Handle`]s; it owns no tensor. So one model serves many weight sets (the
//! trained one, an average, a reference) by pointing at another [`Weights`], a block can run again on fresh leaves,
//! and the optimizer walks one flat list in a fixed order.

mod block_gradients;
mod block_weights;
mod drawn;
mod init;
mod layout;
mod update;
mod version;
mod view;
mod weights;

pub use block_gradients::BlockGradients;
pub use block_weights::BlockWeights;
pub use drawn::Drawn;
pub use init::Init;
pub use layout::{Adapter, Handle, LayoutBuilder, ParamKind, ParamLayout, ParamSpec, Rows};
pub use update::{Changing, WeightStorage, WeightsUpdate};
pub use version::WeightsVersion;
pub use view::{ParamView, Standing};
pub use weights::Weights;
