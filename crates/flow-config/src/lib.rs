//! The flow-train config as plain data: sections, defaults, presets, spans, migrations and the JSON schema.

mod sections;

pub use sections::*;
