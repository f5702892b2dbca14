//! What backends are checked with: calls, operands, and results by definition in f64.

mod data;
mod problems;

pub use data::{Both, Case, Random, activate, decode, encode};
pub use problems::{SIZES, problems, wrong, wrong_groups, wrong_sums};
