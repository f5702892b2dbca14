//! Which accelerators may run with which trainer: rules as data.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod check;
mod finding;
mod resolve;
mod rules;

pub use check::{Entry, Trainer, check};
pub use finding::{Finding, Severity, errors};
pub use resolve::{check_config, resolve};
pub use rules::{RULES, Rule, explain};
