//! The flow-train config as plain data: sections, defaults, presets, spans, migrations and the JSON schema.
//!
//! [`Config`] and the types it is made of are plain serde data; anything may build one in code. [`load`] makes one from
//! a TOML file and `--set` overrides and reports everything that is wrong at once, each with its place and how to mend
//! it ([`Report`]); what passes comes back as [`Resolved`], with the [`Source`] of every value.
//!
//! The schema that schemars makes of the types ([`schema()`]) is the single description of keys, types and ranges: the
//! parser checks by it, [`explain()`] reads from it, and editors complete with it. Rules on several keys are the parser's
//! alone; their codes begin with `rule::`. [`schema_for_editors`] rewrites it so that an editor marks a mistake where it is.
//!
//! [`inspect`] gives what can be read of a wrong config too; whoever finds more in it makes [`Diagnostic`]s, and
//! [`Resolved::located`] finds their places in the texts.
//!
//! This crate knows nothing of tensors and does not depend on Burn.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod anchor;
mod catalog;
mod check;
pub mod codes;
mod diagnostic;
mod explain;
mod load;
mod locate;
mod migrate;
mod number;
mod overrides;
mod params;
mod path_text;
mod phrase;
mod presets;
mod printable;
mod removed;
mod resolved;
mod rules;
mod schema;
mod sections;
mod shell;
mod suggest;
mod tree;

pub use catalog::{
    AlgorithmFacts, AlgorithmKind, Catalog, DataFacts, DataKind, DistillationFacts, ImageFacts, Kinds,
    ModelKind, ParamsError, PluginKind, PromptFacts,
};
pub use diagnostic::{Diagnostic, Layer, Report, Severity, SourceText, begun_small};
pub use explain::{FieldDoc, all_keys, explain, explain_params, find_key, find_value, names};
pub use flow_registry::likeness;
pub use load::{
    WeightsLayer, base_dir, check, inspect, inspect_named, inspect_over, load, parse_named, parse_str,
    read_file,
};
pub use migrate::{Change, migrate};
pub use params::check_params;
pub use presets::{Preset, presets};
pub use printable::printable;
pub use removed::explain_elsewhere;
pub use resolved::{Inspection, Resolved, Source};
pub use rules::{Added, Rules};
pub use schema::{
    add_example as add_schema_example, examples as schema_examples, for_editors as schema_for_editors,
    schema, tidy as tidy_schema,
};
pub use sections::*;
pub use shell::unexpanded;
pub use suggest::nearest;
pub use tree::quoted_key as key_in_path;
