//! Weights in and out, as safetensors.
//!
//! Names and shapes are those of the layout, which for architectures that exist in diffusers are diffusers' own. In
//! memory weights are f32; files may hold f32, bf16 or f16.

mod description;
mod load;
mod report;
mod save;
mod source;

pub use description::{
    Description, Difference, METADATA_KEY as MODEL_CONFIG_KEY, config_json, describe, describe_folder,
};
pub use flow_diffusers::safetensors::{Parsed, StoredDtype, StoredTensor, parse};
pub use load::{Loaded, load, load_into};
pub use report::{Duplicated, LoadReport, Misplaced, Misshapen, Missing, NotFinite, Unknown, Unreadable};
pub use save::{save, save_tensors};

pub(crate) use flow_diffusers::safetensors::replace;
pub use source::{FileMap, Source};
