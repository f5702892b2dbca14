//! flow-train: reinforcement learning of flow-matching diffusion transformers.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

pub mod distributed;
mod environment;
mod library;
mod machine;
mod manifest;
mod registries;
mod runtime_options;
mod schema;

pub use environment::{EnvironmentError, base_plan, environment, versions, worker_pool, worker_pool_beside};
pub use library::{Error, Sampling, Trained, Training, sample, train};
pub use machine::machine;
pub use manifest::{manifest_device, weights_metadata};
pub use registries::Registries;
pub use runtime_options::{apply_no_runtime_options, apply_runtime_options, runtime_options};
pub use schema::{schema, schema_text};

pub use flow_accel as accel;
pub use flow_accelerators as accelerators;
pub use flow_attention as attention;
pub use flow_cache as cache;
pub use flow_checkpoint as checkpoint;
pub use flow_config as config;
pub use flow_core as core;
pub use flow_data as data;
pub use flow_exchange as exchange;
pub use flow_import as import;
pub use flow_kernels as kernels;
pub use flow_models as models;
pub use flow_report as report;
pub use flow_rewards as rewards;
pub use flow_runtime as runtime;
pub use flow_trainer as trainer;
pub use flow_validate as validate;

pub use flow_config::Config;
pub use flow_registry::NameTaken;
