//! What `flow-train check` says, and that a config which it passes does not fail afterwards.

mod bad_configs;
mod codes;
mod passes;
mod support;
