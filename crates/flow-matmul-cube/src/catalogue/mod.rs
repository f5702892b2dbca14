//! What backends are checked with: calls, operands, and results by definition in f64.

mod calls;
mod data;

pub use calls::{SIZES, calls, wrong, wrong_groups, wrong_sums};
pub use data::{Both, Case, Random, activate, decode, encode};
