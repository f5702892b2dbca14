//! What backends are checked with: calls, operands, and results by definition in f64.

mod codes;
mod data;
mod problems;

pub use codes::{other_bits, problems_of_codes, wrong_codes, wrong_columns};
pub use data::{Both, Case, Random, activate, code_value, decode, encode, nearest_code};
pub use problems::{SIZES, problems, wrong, wrong_groups, wrong_sums};
