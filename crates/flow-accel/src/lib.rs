//! The accelerator trait, its registry and its slots.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod acceleration;
mod accelerator;
mod arrangement;
mod error;
mod meter;
mod paradigm;
mod params;
mod registry;
mod safety;
mod slot;

pub use acceleration::{Acceleration, Activity, ActivityCounts, Applied, Arrangement, RolloutScope};
pub use accelerator::{Accelerator, Target};
pub use error::AccelerationError;
pub use flow_registry::{NameTaken, Refusal};
pub use meter::{Engagement, Engagements, Meter, Part, Shares, Shortfall};
pub use paradigm::Paradigm;
pub use params::Params;
pub use registry::{AcceleratorKind, AcceleratorRegistry};
pub use safety::{Safety, StepScope};
pub use slot::{AcceleratorStage, Slot};
