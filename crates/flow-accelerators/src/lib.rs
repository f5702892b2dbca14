#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod attention_backend;
mod graph_capture;
mod register;

pub use attention_backend::{AttentionBackendAccelerator, AttentionBackendParams};
pub use graph_capture::GraphCaptureParams;
pub use register::register;
