//! The `flow-train` command, driven as people drive it: processes, files, exit codes.

mod acceleration;
mod checkpointing;
mod drift;
mod errors;
mod exact_reuse;
mod feature_cache;
mod resume;
mod support;
mod tools;
mod train;
