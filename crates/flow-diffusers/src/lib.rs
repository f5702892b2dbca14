//! Folders of diffusers, and the safetensors files in them.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod component;
mod error;
mod family;
mod files;
mod hub;
mod looks;
mod names;
mod pipeline;
pub mod safetensors;
mod scheduler;
mod search;
mod tensors;
mod text;
mod write;

pub use component::{Component, Kind};
pub use error::{FolderError, Problems};
pub use family::{Family, Part};
pub use files::WeightFiles;
pub use hub::{Repository, cache_folder, locate};
pub use looks::Looks;
pub use pipeline::PipelineFolder;
pub use scheduler::{DynamicShift, FlowMatchEuler, Scheduler, ShiftKind, UniPc};
pub use search::first_position;
pub use tensors::{TensorInfo, Tensors};
pub use text::{read_json, read_text};
pub use write::{write_json, write_model};
