//! The JSON schema of `[runtime.options]`.

use crate::value::PATH_CHARS;
use crate::{Kind, OPTIONS, OptionSpec};
use serde_json::{Map, Value as Json, json};

/// The schema, draft 2020-12, of the table `[runtime.options]` of a config: one property per option and no others.
///
/// It has no `pattern`, so [`Kind::Name`] and paths may pass it and be refused by [`parse`](crate::parse) with the code
/// [`codes::BAD_TEXT`](crate::codes::BAD_TEXT). Nor does it know the rules on several options, or what the build reads.
pub fn schema() -> Json {
    let properties: Map<String, Json> = OPTIONS
        .iter()
        .map(|spec| (spec.path.to_owned(), property(spec)))
        .collect();
    json!({
        "description": "Options of the Burn and CubeCL runtimes, by dotted name.",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

fn property(spec: &OptionSpec) -> Json {
    let path = json!({ "type": "string", "minLength": 1, "maxLength": PATH_CHARS });
    let mut schema = match spec.kind {
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Integer { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Choice(words) => json!({ "type": "string", "enum": words }),
        Kind::Name => json!({ "type": "string", "minLength": 1, "maxLength": 100 }),
        Kind::File => path,
        Kind::Place(words) => json!({ "anyOf": [
            { "type": "string", "enum": words },
            {
                "type": "object",
                "properties": { "directory": path },
                "required": ["directory"],
                "additionalProperties": false,
            },
        ]}),
    };
    schema["description"] = format!("{} Costs: {}.", spec.doc, spec.cost).into();
    let default = spec.default.to_json();
    if !default.is_null() {
        schema["default"] = default;
    }
    schema
}
