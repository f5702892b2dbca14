//! A mistake in a table that chooses a variant is found at its key and nowhere else, as an editor marks it.

use super::{REGISTRIES, VALIDATOR};
use flow_train::schema;
use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;

/// A table that chooses a variant: where it stands in a config, and what the schema says of it.
struct Union {
    /// Keys and, for entries of lists, `0`.
    path: Vec<String>,
    tag: String,
    node: Json,
}

/// A variant: its name and what a table of it must be.
struct Variant {
    name: String,
    then: Json,
}

impl Union {
    fn variants(&self) -> Vec<Variant> {
        let mut variants = Vec::new();
        let mut link = &self.node;
        while link["if"].is_object() {
            let chosen = &link["if"]["properties"][&self.tag];
            let name = match &chosen["const"] {
                Json::String(name) => name.clone(),
                // `^[Ff][Uu]…$`: the second letter of each pair.
                _ => chosen["pattern"]
                    .as_str()
                    .expect("a name or a pattern")
                    .replace(|c: char| "^$[]".contains(c) || c.is_ascii_uppercase(), ""),
            };
            variants.push(Variant {
                name,
                then: link["then"].clone(),
            });
            link = &link["else"];
        }
        variants
    }

    /// What the schema says of `key` in `variant`.
    fn key<'s>(&'s self, variant: &'s Variant, key: &str) -> &'s Json {
        match &variant.then["properties"][key] {
            Json::Bool(true) => &self.node["properties"][key],
            schema => schema,
        }
    }

    /// The least table of `variant`.
    fn table(&self, root: &Json, variant: &Variant) -> Map<String, Json> {
        let mut table = Map::from_iter([(self.tag.clone(), json!(variant.name))]);
        for key in variant.then["required"].as_array().into_iter().flatten() {
            let key = key.as_str().expect("keys are texts");
            table.insert(key.to_owned(), sample(root, self.key(variant, key)));
        }
        table
    }

    /// A config with this in the place of the table.
    fn config(&self, table: Json) -> Json {
        let mut content = table;
        for step in self.path.iter().rev() {
            content = match step.as_str() {
                "0" => json!([content]),
                // A cache's parameters stand beside its name.
                "params" => json!({ "name": "feature_cache", "params": content }),
                key => json!({ key: content }),
            };
        }
        content["config_version"] = json!(1);
        content
    }

    fn pointer(&self, key: &str) -> String {
        format!("{}/{key}", self.place())
    }

    fn place(&self) -> String {
        self.path.iter().map(|step| format!("/{step}")).collect()
    }
}

fn resolve<'s>(root: &'s Json, schema: &'s Json) -> &'s Json {
    match schema["$ref"].as_str() {
        Some(reference) => root.pointer(&reference[1..]).expect("it leads somewhere"),
        None => schema,
    }
}

/// Every table of the schema that chooses a variant.
fn unions() -> Vec<Union> {
    fn walk(root: &Json, schema: &Json, path: &[String], found: &mut Vec<Union>) {
        let schema = resolve(root, schema);
        if let Some(Json::Object(tags)) = schema["if"].get("properties") {
            found.push(Union {
                path: path.to_vec(),
                tag: tags.keys().next().expect("one key chooses").clone(),
                node: schema.clone(),
            });
        }
        let mut below = |step: &str, schema: &Json| {
            let path = [path, &[step.to_owned()]].concat();
            walk(root, schema, &path, found);
        };
        if let Some(items) = schema.get("items") {
            below("0", items);
        }
        let mut link = schema;
        while link.is_object() {
            for (key, schema) in link["properties"].as_object().into_iter().flatten() {
                below(key, schema);
            }
            for (key, schema) in link["then"]["properties"].as_object().into_iter().flatten() {
                below(key, schema);
            }
            link = &link["else"];
        }
    }
    let schema = schema(&REGISTRIES);
    let mut found = Vec::new();
    walk(&schema, &schema, &[], &mut found);
    found
}

/// A value that the schema takes.
fn sample(root: &Json, schema: &Json) -> Json {
    let schema = resolve(root, schema);
    let stated = schema.get("default").or(schema.get("const"));
    if let Some(value) = stated.or(schema["enum"].get(0)) {
        return value.clone();
    }
    let kind = schema["type"].as_str().or(schema["type"][0].as_str());
    match kind.expect("every value has a type") {
        "boolean" => json!(true),
        "integer" => schema.get("minimum").cloned().unwrap_or(json!(1)),
        "number" => match schema["minimum"].as_f64() {
            Some(minimum) => json!(minimum),
            None => json!(schema["exclusiveMinimum"].as_f64().unwrap_or(0.0) + 0.5),
        },
        "string" => json!("x".repeat(schema["minLength"].as_u64().unwrap_or(1) as usize)),
        "array" => {
            let count = schema["minItems"].as_u64().unwrap_or(0);
            (0..count).map(|_| sample(root, &schema["items"])).collect()
        }
        "object" => {
            let required = schema["required"].as_array().into_iter().flatten();
            let keys = required.map(|key| key.as_str().expect("a text").to_owned());
            keys.map(|key| (key.clone(), sample(root, &schema["properties"][&key])))
                .collect::<Map<_, _>>()
                .into()
        }
        other => panic!("values of type {other}"),
    }
}

/// A value that no schema takes that has a type.
fn wrong(root: &Json, schema: &Json) -> Json {
    let kind = &resolve(root, schema)["type"];
    let takes_tables = kind == "object"
        || kind
            .as_array()
            .is_some_and(|kinds| kinds.contains(&json!("object")));
    if takes_tables {
        json!(true)
    } else {
        json!({ "?": 1 })
    }
}

/// Where an editor marks mistakes: at the values that validators blame. Every line of them, so a table is too much.
fn places(config: &Json) -> BTreeSet<String> {
    let errors = VALIDATOR.iter_errors(config);
    errors.map(|error| error.instance_path.to_string()).collect()
}

/// Whether mistakes are marked at `place` alone.
#[track_caller]
fn marked_at(config: &Json, place: &str) {
    let found = places(config);
    assert!(found.iter().eq([place]), "{config}: {found:?}, not {place}");
}

#[test]
fn every_choice_of_a_config_is_a_chain_and_none_is_left_that_says_only_that_nothing_fits() {
    let found: Vec<String> = unions().iter().map(Union::place).collect();
    for place in [
        "/algorithm",
        "/data",
        "/text",
        "/rewards/0",
        "/eval_rewards/0",
        "/scheduler/shift",
        "/scheduler/window",
        "/optimizer/schedule",
        "/ema/schedule",
        "/checkpointing",
        "/model/dit/conditioning",
        "/acceleration/shared",
        "/acceleration/shared/0",
        "/acceleration/rollout/0",
        "/acceleration/rollout/0/params",
    ] {
        assert!(found.iter().any(|one| one == place), "{place}: {found:?}");
    }
    let text = schema(&REGISTRIES).to_string();
    assert!(
        !text.contains("\"oneOf\""),
        "an editor marks the whole of a `oneOf`"
    );
    // Names of accelerators, whose last alternative takes everything.
    let last = text
        .split("\"anyOf\":[")
        .skip(1)
        .map(|rest| rest.split(']').next().expect("a list"));
    last.for_each(|list| assert!(list.ends_with(",true"), "{list}"));
}

#[test]
fn the_least_table_of_every_variant_is_taken() {
    let root = schema(&REGISTRIES);
    for union in unions() {
        for variant in union.variants() {
            let config = union.config(union.table(&root, &variant).into());
            assert_eq!(places(&config), BTreeSet::new(), "{config}");
        }
    }
}

#[test]
fn an_unknown_key_is_marked_alone_with_the_keys_there_are() {
    let root = schema(&REGISTRIES);
    for union in unions() {
        for variant in union.variants() {
            let mut table = union.table(&root, &variant);
            table.insert("unheard_of".into(), json!(1));
            let config = union.config(table.into());
            marked_at(&config, &union.pointer("unheard_of"));
            let said: Vec<String> = VALIDATOR
                .iter_errors(&config)
                .map(|error| error.to_string())
                .collect();
            let keys = variant.then["properties"].as_object().expect("keys").keys();
            let mut keys = keys.map(|key| format!("`{key}`"));
            assert!(
                said.len() == 1 && keys.all(|key| said[0].contains(&key)),
                "{said:?}"
            );
        }
    }
}

#[test]
fn a_key_of_another_variant_is_marked_alone() {
    let root = schema(&REGISTRIES);
    for union in unions() {
        for variant in union.variants() {
            for other in union.variants() {
                for key in other.then["properties"].as_object().expect("keys").keys() {
                    if variant.then["properties"].get(key).is_none() {
                        let mut table = union.table(&root, &variant);
                        table.insert(key.clone(), sample(&root, union.key(&other, key)));
                        marked_at(&union.config(table.into()), &union.pointer(key));
                    }
                }
            }
        }
    }
}

#[test]
fn a_value_of_another_type_is_marked_alone() {
    let root = schema(&REGISTRIES);
    for union in unions() {
        for variant in union.variants() {
            for key in variant.then["properties"].as_object().expect("keys").keys() {
                if *key != union.tag {
                    let mut table = union.table(&root, &variant);
                    table.insert(key.clone(), wrong(&root, union.key(&variant, key)));
                    marked_at(&union.config(table.into()), &union.pointer(key));
                }
            }
        }
    }
}

#[test]
fn an_unknown_variant_is_marked_at_its_name_with_all_names() {
    let root = schema(&REGISTRIES);
    for union in unions() {
        let names: Vec<Json> = union.variants().iter().map(|one| json!(one.name)).collect();
        for variant in union.variants() {
            let mut table = union.table(&root, &variant);
            table.insert(union.tag.clone(), json!(format!("{}x", variant.name)));
            // A key that a variant has does no more harm.
            let config = union.config(table.into());
            marked_at(&config, &union.pointer(&union.tag));
            let errors: Vec<ValidationError<'_>> = VALIDATOR.iter_errors(&config).collect();
            let listed = errors.iter().any(|error| match &error.kind {
                ValidationErrorKind::Enum { options } => names
                    .iter()
                    .all(|name| options.as_array().is_some_and(|options| options.contains(name))),
                _ => false,
            });
            assert!(listed && errors.len() == 1, "{config}: {errors:?}");
        }
    }
}

#[test]
fn a_table_that_chooses_nothing_and_a_text_in_its_place_are_marked_themselves() {
    let root = schema(&REGISTRIES);
    for union in unions() {
        let mut table = union.table(&root, &union.variants()[0]);
        table.shift_remove(&union.tag);
        for content in [table.into(), json!("text")] {
            marked_at(&union.config(content), &union.place());
        }
    }
}

#[test]
fn an_unknown_key_of_any_table_is_marked_alone() {
    for (config, place) in [
        (json!({ "config_version": 1, "runs": {} }), "/runs"),
        (json!({ "config_version": 1, "run": { "nam": "x" } }), "/run/nam"),
        (
            json!({ "config_version": 1, "model": { "dit": { "hiden": 8, "moe": { "expert": 2 } } } }),
            "/model/dit/hiden",
        ),
        (
            json!({ "config_version": 1, "runtime": { "options": { "cubecl.environmen.path": "local" } } }),
            "/runtime/options/cubecl.environmen.path",
        ),
    ] {
        let found = places(&config);
        assert!(
            found.contains(place) && !found.contains("/model/dit"),
            "{found:?}"
        );
    }
}

#[test]
fn every_example_is_taken_by_schema_and_parser() {
    fn walk(root: &Json, schema: &Json, path: &[String], seen: &mut usize) {
        for example in schema["examples"].as_array().into_iter().flatten() {
            *seen += 1;
            let mut config = example.clone();
            for key in path.iter().rev() {
                config = json!({ key: config });
            }
            config["config_version"] = json!(1);
            assert_eq!(places(&config), BTreeSet::new(), "{config}");
            let text = toml::to_string(&config).expect("TOML");
            if let Err(report) = test_catalog::parse_str(&text) {
                let rules = report
                    .diagnostics
                    .iter()
                    .all(flow_train::config::Diagnostic::is_rule);
                assert!(rules, "{report}");
            }
        }
        let schema = resolve(root, schema);
        for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
            walk(root, schema, &[path, std::slice::from_ref(key)].concat(), seen);
        }
    }
    let schema = schema(&REGISTRIES);
    let mut seen = 0;
    walk(&schema, &schema, &[], &mut seen);
    let written = flow_train::config::schema_examples().len();
    assert_eq!(
        seen,
        written + 1,
        "an example stands at a key that the schema does not have"
    );
}

#[test]
fn the_schema_says_what_it_is_and_every_definition_has_a_title() {
    let schema = schema(&REGISTRIES);
    assert_eq!(schema["title"], "flow-train config");
    assert!(
        schema["$id"]
            .as_str()
            .is_some_and(|id| id.ends_with("/configs/schema.json"))
    );
    for (name, definition) in schema["$defs"].as_object().expect("definitions") {
        assert!(definition["title"].is_string(), "{name}");
    }
    assert_eq!(schema["$defs"]["RateSchedule"]["title"], "Rate schedule");
}
