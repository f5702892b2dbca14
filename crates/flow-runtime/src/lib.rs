//! Options of the Burn and CubeCL runtimes: one table for parser, schema, documentation and application.
// The README's example is about CubeCL's options, so it is compiled where they are.
#![cfg_attr(feature = "cubecl", doc = include_str!("../README.md"))]
#![deny(missing_docs)]

mod apply;
mod finding;
mod markdown;
mod overlay;
mod parse;
mod rules;
mod schema;
pub mod sentinel;
mod spec;
mod table;
mod value;

pub use apply::{Applied, ApplyError, apply};
pub use finding::{Finding, OptionsError, codes};
pub use flow_config::{DeviceKind, Severity};
pub use markdown::{explain, markdown};
#[cfg(feature = "cubecl")]
pub use overlay::cubecl_config;
pub use overlay::{OverlayError, burn_config};
pub use parse::{Context, RuntimeOptions, parse};
pub use rules::{CONTEXT_RULES, Facts, Rule};
pub use schema::schema;
pub use spec::{DefaultValue, Feature, Kind, OptionSpec, Runtime, find};
pub use table::{EXCLUDED, Excluded, OPTIONS};
pub use value::Value;
