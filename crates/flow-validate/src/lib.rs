//! Whether the parts of a config fit together: a pure function from data to diagnostics.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod activations;
mod check;
pub mod codes;
mod companions;
mod exploration;
mod features;
mod gpu;
pub mod kernels;
mod low_precision;
mod markdown;
mod memory;
mod memory_check;
mod memory_table;
mod operations;
mod phase;
mod resolve;
mod rules;
mod several;
mod sharded;
mod validate;

pub use activations::Kept;
pub use check::{Entry, TrainerKind, check};
pub use codes::{Explanation, all_codes, explain};
pub use companions::{Companion, Companions};
pub use exploration::resolve_exploration;
pub use features::{checkpoint_policy, unavailable};
pub use flow_config::{Diagnostic, Severity};
pub use gpu::Gpu;
pub use low_precision::LowPrecisionLoad;
pub use markdown::markdown;
pub use memory::{Load, MemoryEstimate, Stored, Teachers, features, gib};
pub use memory_table::{MemoryRow, MemoryTable, Trained};
pub use operations::Operations;
pub use phase::Phase;
pub use resolve::resolve;
pub use rules::{RULES, Rule};
pub use several::{lanes, learns_alone, several};
pub use sharded::{sharded_pretraining, sharded_weights};
pub use validate::{Capabilities, Machine, Question, errors, validate};
