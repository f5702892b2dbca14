//! What backends are checked with: calls, operands, and results by definition in f64.

mod calls;
mod data;

pub use calls::{SIZES, calls, wrong};
pub use data::{Both, Case, Random, activate, decode, encode};
