//! What is made from the table: the JSON schema and the documentation.

mod common;

use common::{Written, everything, usable, valid_options, written};
use flow_runtime::{Kind, OPTIONS, codes, markdown, parse, schema};
use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::sync::LazyLock;

static VALIDATOR: LazyLock<Validator> =
    LazyLock::new(|| jsonschema::draft202012::new(&schema()).expect("the schema is a schema"));

#[test]
fn the_committed_documentation_is_up_to_date() {
    let committed = std::fs::read_to_string("OPTIONS.md").expect("OPTIONS.md");
    assert!(
        committed == markdown(),
        "OPTIONS.md is out of date: run `cargo run --release -p flow-runtime --features cubecl --example options > \
         crates/flow-runtime/OPTIONS.md`"
    );
}

#[test]
fn every_row_of_the_documentation_has_all_columns() {
    let text = markdown();
    let rows: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("| `cubecl.") || line.starts_with("| `burn."))
        .collect();
    for spec in OPTIONS {
        let start = format!("| `{}` |", spec.path);
        let row = rows
            .iter()
            .find(|row| row.starts_with(&start))
            .expect("a row for each option");
        assert_eq!(row.matches(" | ").count(), 7, "{row}");
    }
}

#[test]
fn the_schema_is_valid_by_its_own_standard_and_has_each_option_and_no_other() {
    let schema = schema();
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    let properties = schema["properties"].as_object().expect("properties");
    assert_eq!(properties.len(), OPTIONS.len());
    assert!(OPTIONS.iter().all(|spec| properties.contains_key(spec.path)));
    assert_eq!(schema["additionalProperties"], json!(false));
}

#[test]
fn the_schema_has_only_keywords_that_the_config_knows() {
    // `flow-config` has no `pattern`, so that a fragment with one could not become part of its schema.
    const KNOWN: &[&str] = &[
        "type",
        "enum",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "anyOf",
        "properties",
        "required",
        "additionalProperties",
        "description",
        "default",
    ];
    fn walk(schema: &Json) {
        for (keyword, value) in schema.as_object().expect("a schema") {
            assert!(KNOWN.contains(&&**keyword), "{keyword}");
            match keyword.as_str() {
                "properties" => value.as_object().expect("properties").values().for_each(walk),
                "anyOf" => value.as_array().expect("schemas").iter().for_each(walk),
                _ => {}
            }
        }
    }
    walk(&schema());
}

/// Whether the parser takes the options, as far as a schema can say.
fn parses(options: &Written) -> bool {
    let beyond = |code: &str| code == codes::BAD_TEXT || code == codes::MISSING_FEATURE;
    match parse(options, &everything()) {
        Ok(_) => true,
        Err(error) => error
            .findings
            .iter()
            .all(|finding| beyond(finding.code) || finding.severity != flow_runtime::Severity::Error),
    }
}

/// Values at and beyond the borders of every kind.
fn borders() -> Vec<Json> {
    let mut values = vec![
        Json::Null,
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(1.0),
        json!(1.5),
        json!(2.5),
        json!(1e9),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e300),
        json!(-1e300),
        json!(""),
        json!("x"),
        json!("full"),
        json!("Full"),
        json!("directory"),
        json!([]),
        json!(["full"]),
        json!({}),
        json!({ "directory": "x" }),
        json!({ "directory": "" }),
        json!({ "directory": 1 }),
        json!({ "directory": "x", "y": 1 }),
        json!("é".repeat(100)),
        json!("a".repeat(100)),
        json!("a".repeat(101)),
        json!("a".repeat(4096)),
        json!("a".repeat(4097)),
    ];
    for spec in OPTIONS {
        match spec.kind {
            Kind::Integer { min, max } => {
                values.extend([json!(min), json!(max), json!(max + 1), json!(min.wrapping_sub(1))])
            }
            _ => values.extend(common::samples(spec)),
        }
    }
    values
}

#[test]
fn schema_and_parser_agree_on_every_option_at_every_border() {
    let values = borders();
    for spec in OPTIONS {
        for value in &values {
            let options = written([(spec.path, value.clone())]);
            let by_schema = VALIDATOR.is_valid(&json!(options));
            assert_eq!(by_schema, parses(&options), "{} = {value}", spec.path);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_schema_takes_all_valid_options_and_none_with_an_unknown_one(
        options in valid_options(usable().collect()),
        other in "[a-z.]{0,20}",
    ) {
        prop_assert!(VALIDATOR.is_valid(&json!(options)));
        let mut more = options;
        more.insert(format!("x{other}"), json!(1));
        prop_assert!(!VALIDATOR.is_valid(&json!(more)));
        prop_assert!(!parses(&more));
    }
}
