//! Models, adapters and their files: one program, for each would compile the references anew.

mod adapters;
mod adapters_refused;
mod common;
mod dit;
mod flux;
mod fused;
mod lora;
mod low_precision;
mod mmdit;
mod qwen_image;
mod wan;
mod weights;
