//! Diffusion transformers, LoRA, and their weights in and out.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

pub mod dit;
mod error;
pub mod flux;
mod layers;
pub mod lora;
pub mod mmdit;
pub mod qwen_image;
mod registry;
mod section;
mod settings;
pub mod wan;
pub mod weights;

pub use dit::{Dit, DitConfig, MoeConfig, Position};
pub use error::ModelError;
pub use flux::{Flux, FluxConfig};
pub use lora::{
    AdapterFile, AdapterLayout, Trained, add_lora, export_adapters, load_adapters, merge, save_adapters,
    trained_mask,
};
pub use mmdit::{Mmdit, MmditConfig};
pub use qwen_image::{QwenImage, QwenImageConfig};
pub use registry::{
    Architecture, ModelFactory, ModelRegistry, initialize, initialize_adapters,
    initialize_adapters_on_frozen, initialize_on_parts,
};
pub use wan::{Wan, WanConfig};
pub use weights::{LoadReport, Loaded, StoredDtype, load, load_into, save, save_tensors};

/// Adds every architecture of this crate to `registry`.
///
/// # Errors
/// [`NameTaken`](flow_registry::NameTaken) if one of the names is taken.
pub fn register(registry: &mut ModelRegistry) -> Result<(), flow_registry::NameTaken> {
    dit::register(registry)?;
    flux::register(registry)?;
    mmdit::register(registry)?;
    qwen_image::register(registry)?;
    wan::register(registry)
}
