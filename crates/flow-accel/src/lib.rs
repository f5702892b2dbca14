#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod accelerator;
mod paradigm;
mod plans;
mod registry;
mod slot;

pub use accelerator::{AccelerationError, Accelerator, Refusal};
pub use paradigm::Paradigm;
pub use plans::{Applied, Plans};
pub use registry::{AcceleratorKind, AcceleratorRegistry, AlreadyRegistered, Params};
pub use slot::{AcceleratorStage, Slot};
