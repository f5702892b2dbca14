//! The JSON schema of a config with everything that the program's registries know: each accelerator's own parameters,
//! and the options of the runtimes.

use crate::Registries;
use flow_accel::{AcceleratorKind, AcceleratorRegistry, Params, Slot};
use serde_json::{Map, Value as Json, json};

/// What names the schema, wherever it is kept.
const ID: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/raw/main/configs/schema.json");

/// The JSON schema (draft 2020-12) of a config file for the plug-ins of `registries`, as editors take it
/// ([`flow_config::schema_for_editors`]).
///
/// A slot takes the entries of the accelerators that may stand in it, one variant per name. Letters of a name may be of
/// any case, as in the parser: a variant has the name itself, for editors to complete, and a pattern of both cases. What
/// an accelerator refuses in view of the program or the model (a backend that is not registered) is the parser's alone.
pub fn schema(registries: &Registries) -> Json {
    let registry = &registries.accelerators;
    let mut schema = flow_config::schema(&registries.catalog());
    let mut definitions = Map::new();
    for slot in Slot::ALL {
        let kinds = registry.kinds().filter(|kind| kind.stage() == slot.takes());
        let entries: Vec<Json> = kinds
            .map(|kind| entry(registry, kind, &mut definitions))
            .collect();
        let name = format!(
            "{}{}Accelerator",
            &slot.name()[..1].to_uppercase(),
            &slot.name()[1..]
        );
        let reference = json!({ "$ref": format!("#/$defs/{name}") });
        let taken = if entries.is_empty() {
            json!([{ "type": "array", "maxItems": 0 }])
        } else {
            json!([{ "type": "array", "items": reference }, reference])
        };
        let sections = &mut schema["$defs"];
        if slot == Slot::Rollout {
            sections["ExplorationConfig"]["properties"]["accelerators"]["anyOf"] = taken.clone();
        }
        sections["AccelerationConfig"]["properties"][slot.name()]["anyOf"] = taken;
        if !entries.is_empty() {
            let description = format!("An accelerator of `acceleration.{slot}`.");
            definitions.insert(name, json!({ "description": description, "oneOf": entries }));
        }
    }
    let mut options = flow_runtime::schema();
    options["default"] = json!({});
    schema["$defs"]["RuntimeConfig"]["properties"]["options"] = options;
    if let Some(all) = schema["$defs"].as_object_mut() {
        all.shift_remove("AcceleratorEntry");
        all.extend(definitions);
    }
    flow_config::schema_for_editors(&mut schema);
    let mut examples = flow_config::schema_examples();
    // Only what this registry has.
    let fused =
        json!([{ "name": "fused_kernels", "params": { "mode": "full" } }, { "name": "graph_capture" }]);
    let names = ["fused_kernels", "graph_capture"];
    if names.iter().all(|name| registry.kind(name).is_some()) {
        examples.push(("acceleration.shared", fused));
    }
    for (path, example) in examples {
        flow_config::add_schema_example(&mut schema, path, example);
    }
    identified(schema)
}

/// With `$schema`, `$id` and title before everything else.
fn identified(schema: Json) -> Json {
    let mut first = Map::new();
    if let Json::Object(mut rest) = schema {
        first.extend(rest.shift_remove_entry("$schema"));
        first.insert("$id".into(), ID.into());
        first.insert("title".into(), "flow-train config".into());
        rest.shift_remove("title");
        first.extend(rest);
    }
    first.into()
}

/// The schema as it is committed in `configs/schema.json`: indented, with a newline at the end.
pub fn schema_text(registries: &Registries) -> String {
    format!("{:#}\n", schema(registries))
}

/// An entry with the parameters of `kind`, whose definitions go into `definitions`.
fn entry(
    registry: &AcceleratorRegistry,
    kind: &AcceleratorKind,
    definitions: &mut Map<String, Json>,
) -> Json {
    let mut params = kind.schema().as_value().clone();
    flow_config::tidy_schema(&mut params);
    if let Some(params) = params.as_object_mut() {
        for keyword in ["$schema", "title"] {
            params.shift_remove(keyword);
        }
        if let Some(Json::Object(own)) = params.shift_remove("$defs") {
            for (name, mut definition) in own {
                rename_references(&mut definition, kind.name());
                definitions.insert(definition_name(kind.name(), &name), definition);
            }
        }
    }
    rename_references(&mut params, kind.name());
    let floor = kind.floor().map(|floor| format!("; here: {floor}"));
    let summary = format!("{}{}.", kind.summary(), floor.unwrap_or_default());
    let required = match registry.build(kind.name(), &Params::new()) {
        Ok(_) => json!(["name"]),
        Err(_) => json!(["name", "params"]),
    };
    json!({
        "description": summary,
        "type": "object",
        "properties": {
            "name": {
                "description": summary,
                "anyOf": [{ "const": kind.name() }, { "type": "string", "pattern": any_case(kind.name()) }],
            },
            "params": params,
        },
        "required": required,
        "additionalProperties": false,
    })
}

/// Definitions of one accelerator must not meet those of another.
fn definition_name(kind: &str, name: &str) -> String {
    format!("{kind}.{name}")
}

fn rename_references(schema: &mut Json, kind: &str) {
    match schema {
        Json::Object(object) => {
            for (key, value) in object {
                match value {
                    Json::String(reference) if key == "$ref" => {
                        if let Some(name) = reference.strip_prefix("#/$defs/") {
                            *reference = format!("#/$defs/{}", definition_name(kind, name));
                        }
                    }
                    value => rename_references(value, kind),
                }
            }
        }
        Json::Array(entries) => entries
            .iter_mut()
            .for_each(|entry| rename_references(entry, kind)),
        _ => {}
    }
}

/// A regular expression (ECMA-262) for `name` with ASCII letters of any case.
fn any_case(name: &str) -> String {
    let letters = name.chars().map(|letter| match letter {
        letter if letter.is_ascii_alphabetic() => {
            format!("[{}{}]", letter.to_ascii_uppercase(), letter.to_ascii_lowercase())
        }
        letter if letter.is_ascii_alphanumeric() || "_-".contains(letter) => letter.to_string(),
        letter if letter.is_ascii() => format!("\\{letter}"),
        letter => letter.to_string(),
    });
    format!("^{}$", letters.collect::<String>())
}
