//! Parameters as a config gives them: from untyped values to an accelerator's own type, by its schema.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;

/// Parameters as a config gives them: by name, untyped.
pub type Params = BTreeMap<String, Json>;

/// Reads `params` as a `P`.
///
/// # Errors
/// What is wrong with which parameter.
pub(crate) fn read<P: DeserializeOwned>(params: &Params) -> Result<P, String> {
    let object: Map<String, Json> = params
        .iter()
        .map(|(key, value)| (key.clone(), with_whole_numbers(value)))
        .collect();
    serde_json::from_value(Json::Object(object)).map_err(|error| error.to_string())
}

/// Whole numbers written as floats (`8.0`, `1e3`) as integers: JSON schema takes them for such, and so does the config.
fn with_whole_numbers(value: &Json) -> Json {
    /// Beyond this not every integer is a float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Json::Number(number) if number.is_f64() => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() <= EXACT => (float as i64).into(),
            _ => value.clone(),
        },
        Json::Array(values) => values.iter().map(with_whole_numbers).collect(),
        Json::Object(object) => {
            let pairs = object.iter();
            Json::Object(
                pairs
                    .map(|(key, value)| (key.clone(), with_whole_numbers(value)))
                    .collect(),
            )
        }
        _ => value.clone(),
    }
}

/// Checks `params` against the schema of their type: ranges and lengths, which a type alone does not know.
///
/// # Errors
/// What is wrong with which parameter.
pub(crate) fn check(schema: &Json, params: &Params) -> Result<(), String> {
    let object = Json::Object(params.clone().into_iter().collect());
    let chosen = variant(schema, &object);
    let validator = jsonschema::draft202012::new(&chosen)
        .map_err(|error| format!("their schema is not one ({error}); this is a defect of the accelerator"))?;
    let problems: Vec<String> = validator
        .iter_errors(&object)
        .map(|error| {
            let place = error.instance_path.to_string();
            let place = place.trim_start_matches('/').replace('/', ".");
            if place.is_empty() {
                error.to_string()
            } else {
                format!("`{place}`: {error}")
            }
        })
        .collect();
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems.join("; "))
    }
}

/// The variant of `schema` that `object` chooses by a tag, so that a message is about what was meant; `schema` itself if
/// there are no variants, or none is chosen.
fn variant(schema: &Json, object: &Json) -> Json {
    let is_chosen = |variant: &&Json| {
        let properties = variant["properties"].as_object();
        let tags = properties
            .into_iter()
            .flatten()
            .filter(|(_, property)| property["const"].is_string());
        let mut chosen = tags.map(|(key, property)| object.get(key) == Some(&property["const"]));
        chosen.next() == Some(true) && chosen.all(|same| same)
    };
    let variants = schema["oneOf"].as_array();
    let Some(variant) = variants.and_then(|variants| variants.iter().find(is_chosen)) else {
        return schema.clone();
    };
    let mut variant = variant.clone();
    if let (Some(variant), Some(definitions)) = (variant.as_object_mut(), schema.get("$defs")) {
        variant.insert("$defs".into(), definitions.clone());
    }
    variant
}
