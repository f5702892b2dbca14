//! The JSON schema: that the parser knows all of it, and that both accept the same documents.

mod algorithm_seeds;
mod seeds;

use std::sync::LazyLock;

use flow_config::schema_for_editors;
use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::Value as Json;
use test_catalog::{parse_str, schema};
use toml::Value;

static SEEDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| [seeds::SEEDS, algorithm_seeds::SEEDS].concat());
static VALIDATOR: LazyLock<Validator> =
    LazyLock::new(|| jsonschema::draft202012::new(&schema()).expect("the schema is a schema"));
/// The same as editors take it.
static EDITORS: LazyLock<Validator> = LazyLock::new(|| {
    let mut schema = schema();
    schema_for_editors(&mut schema);
    jsonschema::draft202012::new(&schema).expect("the schema is a schema")
});

#[test]
fn the_schema_is_valid_by_its_own_standard() {
    assert!(jsonschema::draft202012::meta::is_valid(&schema()));
}

/// What the parser checks, and what it may pass over because it checks nothing.
const CHECKED: &[&str] = &[
    "$ref",
    "type",
    "properties",
    "additionalProperties",
    "required",
    "oneOf",
    "anyOf",
    "enum",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "items",
];
const ANNOTATIONS: &[&str] = &["$schema", "$defs", "title", "description", "default"];

#[test]
fn the_parser_knows_every_keyword_of_the_schema() {
    fn walk(schema: &Json, place: &str) {
        let Some(object) = schema.as_object() else {
            assert!(schema.is_boolean(), "{place}");
            return;
        };
        for (keyword, value) in object {
            let place = format!("{place}/{keyword}");
            assert!(
                CHECKED.contains(&keyword.as_str()) || ANNOTATIONS.contains(&keyword.as_str()),
                "{place}"
            );
            match (keyword.as_str(), value) {
                ("properties" | "$defs", Json::Object(entries)) => {
                    entries
                        .iter()
                        .for_each(|(key, value)| walk(value, &format!("{place}/{key}")));
                }
                ("oneOf" | "anyOf", Json::Array(entries)) => {
                    entries.iter().for_each(|value| walk(value, &place))
                }
                ("items" | "additionalProperties", value) => walk(value, &place),
                ("type", value) => assert!(value.is_string(), "{place}: several types"),
                _ => {}
            }
        }
    }
    walk(&schema(), "#");
}

#[test]
fn the_schema_for_editors_is_valid_and_stays_as_it_is_when_it_is_made_again() {
    let mut once = schema();
    schema_for_editors(&mut once);
    assert!(jsonschema::draft202012::meta::is_valid(&once));
    let mut twice = once.clone();
    schema_for_editors(&mut twice);
    assert!(once == twice);
}

#[test]
fn every_integer_of_the_schema_is_bounded() {
    fn walk(schema: &Json, place: &str, unbounded: &mut Vec<String>) {
        match schema {
            Json::Object(object) => {
                if schema["type"] == "integer"
                    && (schema.get("minimum").is_none() || schema.get("maximum").is_none())
                {
                    unbounded.push(place.to_owned());
                }
                object
                    .iter()
                    .filter(|(key, _)| *key != "default")
                    .for_each(|(key, value)| walk(value, &format!("{place}/{key}"), unbounded));
            }
            Json::Array(entries) => entries.iter().for_each(|value| walk(value, place, unbounded)),
            _ => {}
        }
    }
    let mut unbounded = Vec::new();
    walk(&schema(), "#", &mut unbounded);
    assert!(unbounded.is_empty(), "{unbounded:?}");
}

#[test]
fn the_defaults_of_the_schema_are_valid() {
    let config = toml::Value::try_from(test_catalog::defaults()).expect("TOML");
    assert!(VALIDATOR.is_valid(&to_json(&config)));
}

/// TOML as JSON, written down again apart from the crate's own.
fn to_json(value: &Value) -> Json {
    match value {
        Value::String(text) => text.as_str().into(),
        Value::Integer(integer) => (*integer).into(),
        Value::Float(float) => (*float).into(),
        Value::Boolean(bool) => (*bool).into(),
        Value::Datetime(datetime) => datetime.to_string().into(),
        Value::Array(entries) => entries.iter().map(to_json).collect(),
        Value::Table(table) => Json::Object(
            table
                .iter()
                .map(|(key, value)| (key.clone(), to_json(value)))
                .collect(),
        ),
    }
}

/// Whether the parser finds nothing that the schema should have found as well.
fn parser_accepts(text: &str) -> Result<(), String> {
    // Which reward may be within a reward, and what its parameters may be, is said by the parser alone; that the one is text and
    // the other a table, by both.
    let is_inner = |found: &flow_config::Diagnostic| {
        let parts: Vec<&str> = found.path.split('.').collect();
        match parts[..] {
            [list, _, "params", _, ..] => list.ends_with("rewards"),
            [list, _, "reward"] => list.ends_with("rewards") && found.code == flow_config::codes::NOT_ALLOWED,
            _ => false,
        }
    };
    let beyond_schema = |found: &flow_config::Diagnostic| found.is_rule() || is_inner(found);
    match parse_str(text) {
        Ok(_) => Ok(()),
        Err(report) if report.diagnostics.iter().all(beyond_schema) => Ok(()),
        Err(report) => Err(report.to_string()),
    }
}

/// One change to a document, at the place and of the sort that the numbers choose.
#[derive(Clone, Debug)]
struct Mutation {
    place: usize,
    sort: Sort,
}

#[derive(Clone, Debug)]
enum Sort {
    Set(Value),
    Insert(String, Value),
    Remove,
    Repeat,
    Scale(f64),
    Nudge(i64),
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        prop::sample::select(vec![
            0,
            1,
            -1,
            2,
            3,
            7,
            8,
            9,
            10,
            16,
            64,
            100,
            101,
            999,
            1000,
            1001,
            65_536,
            65_537,
            i64::MAX,
            i64::MIN,
        ])
        .prop_map(Value::Integer),
        any::<i64>().prop_map(Value::Integer),
        prop::sample::select(vec![
            0.0, -0.0, 1.0, 1.5, 8.0, -1.0, 0.5, 0.999_999, 1e-12, 1e300, -1e300, 9.3e18, 1e18, 0.9, 10.0,
            10.5, 64.0,
        ])
        .prop_map(Value::Float),
        any::<bool>().prop_map(Value::Boolean),
        prop::sample::select(vec![
            "",
            "x",
            "grpo",
            "nft",
            "digits",
            "shapes",
            "words",
            "bert",
            "red",
            "all",
            "list",
            "random",
            "cps",
            "ode",
            "none",
            "full",
            "1",
            "flow-sde",
            "constant",
            "digits-dit",
            "größe",
        ])
        .prop_map(|text| Value::String(text.into())),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((keys(), inner), 0..3)
                .prop_map(|entries| Value::Table(entries.into_iter().collect())),
        ]
    })
}

fn keys() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(test_catalog::all_keys()).prop_map(|key| key
            .rsplit('.')
            .next()
            .unwrap_or_default()
            .to_owned()),
        "[a-z_]{1,8}",
        Just("odd key".to_owned()),
    ]
}

fn mutations() -> impl Strategy<Value = Mutation> {
    let sort = prop_oneof![
        3 => values().prop_map(Sort::Set),
        2 => (keys(), values()).prop_map(|(key, value)| Sort::Insert(key, value)),
        1 => Just(Sort::Remove),
        1 => Just(Sort::Repeat),
        1 => prop::sample::select(vec![-1.0, 0.0, 0.5, 2.0, 100.0, 1e6]).prop_map(Sort::Scale),
        1 => (-3_i64..4).prop_map(Sort::Nudge),
    ];
    (any::<prop::sample::Index>(), sort).prop_map(|(place, sort)| Mutation {
        place: place.index(1 << 20),
        sort,
    })
}

/// How many places a document has: itself and everything in it.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Table(table) => table.iter().map(|(_, value)| count(value)).sum(),
        Value::Array(entries) => entries.iter().map(count).sum(),
        _ => 0,
    }
}

/// Changes the place `at`, counted in depth first order. Returns whether the parent is to drop it.
fn mutate(value: &mut Value, at: &mut usize, sort: &Sort) -> bool {
    if *at == 0 {
        *at = usize::MAX;
        match (sort, &mut *value) {
            (Sort::Set(new), value) => *value = new.clone(),
            (Sort::Insert(key, new), Value::Table(table)) => drop(table.insert(key.clone(), new.clone())),
            (Sort::Insert(_, new), Value::Array(entries)) => entries.push(new.clone()),
            (Sort::Repeat, Value::Array(entries)) => entries.extend(entries.first().cloned()),
            (Sort::Remove, _) => return true,
            (Sort::Scale(factor), Value::Float(float)) => *float *= factor,
            (Sort::Scale(factor), Value::Integer(integer)) => *integer = (*integer as f64 * factor) as i64,
            (Sort::Nudge(by), Value::Integer(integer)) => *integer = integer.saturating_add(*by),
            (Sort::Nudge(by), Value::Float(float)) => *float += *by as f64,
            _ => {}
        }
        return false;
    }
    *at -= 1;
    match value {
        Value::Table(table) => {
            let keys: Vec<String> = table.keys().cloned().collect();
            for key in keys {
                if *at == usize::MAX {
                    break;
                }
                if table.get_mut(&key).is_some_and(|value| mutate(value, at, sort)) {
                    table.remove(&key);
                }
            }
        }
        Value::Array(entries) => {
            for index in 0..entries.len() {
                if *at == usize::MAX {
                    break;
                }
                if mutate(&mut entries[index], at, sort) {
                    entries.remove(index);
                    break;
                }
            }
        }
        _ => {}
    }
    false
}

#[test]
fn the_seeds_are_accepted_by_both_and_use_every_variant() {
    let mut used = String::new();
    for seed in SEEDS.iter() {
        parser_accepts(seed).unwrap_or_else(|report| panic!("{report}"));
        let document: Value = Value::Table(seed.parse().expect("TOML"));
        assert!(VALIDATOR.is_valid(&to_json(&document)));
        assert!(EDITORS.is_valid(&to_json(&document)));
        used.push_str(seed);
    }
    for key in test_catalog::all_keys() {
        let name = key.rsplit('.').next().unwrap_or_default();
        let doc = test_catalog::explain(&key).expect("known");
        // Required keys with named values choose variants.
        for (value, _) in doc.allowed.iter().filter(|_| doc.required) {
            assert!(
                used.contains(&format!("{name} = \"{value}\"")),
                "{key} = {value:?} is in no seed"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn schema_and_parser_accept_the_same_documents(
        seed in 0..SEEDS.len(),
        changes in prop::collection::vec(mutations(), 0..4),
    ) {
        let mut document = Value::Table(SEEDS[seed].parse().expect("TOML"));
        for change in &changes {
            let mut at = change.place % count(&document);
            // The document itself stays a table.
            if at == 0 && !matches!(change.sort, Sort::Insert(..)) {
                at = 1;
            }
            mutate(&mut document, &mut at, &change.sort);
        }
        let text = toml::to_string(&document).expect("TOML");
        let by_schema = VALIDATOR.validate(&to_json(&document)).map_err(|error| error.to_string());
        prop_assert_eq!(by_schema.is_ok(), EDITORS.is_valid(&to_json(&document)), "{}", text);
        let by_parser = parser_accepts(&text);
        prop_assert_eq!(
            by_schema.is_ok(),
            by_parser.is_ok(),
            "schema: {:?}\nparser: {:?}\n{}",
            by_schema,
            by_parser,
            text
        );
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in ".{0,200}") {
        let _ = parse_str(&text);
    }

    #[test]
    fn no_text_that_looks_like_toml_makes_the_parser_panic(
        text in "([a-z_.]{1,12}( = |=)(-?[0-9e.]{1,6}|\"[a-z]{0,5}\"|\\[[0-9, ]{0,8}\\]|\\{ [a-z] = 1 \\})?[\n#]|\\[{1,2}[a-z.]{1,9}\\]{1,2}\n){0,12}"
    ) {
        let _ = parse_str(&text);
        let _ = test_catalog::parse_named("a", "config_version = 1", &[text]);
    }
}

#[test]
fn deep_nesting_is_an_error_and_no_stack_overflow() {
    for text in [
        format!("a = {}1", "[".repeat(100_000)),
        format!("a = {}", "{a=".repeat(100_000)),
        format!("[{}a]", "a.".repeat(100_000)),
        format!("{}a = 1", "a.".repeat(100_000)),
    ] {
        assert!(parse_str(&text).is_err());
    }
}
