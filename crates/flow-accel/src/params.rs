//! Parameters as a config gives them: from untyped values to an accelerator's own type, by its schema.

use flow_config::Diagnostic;
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

/// What `schema`, that of their type, says against `params` at the dotted `path` of a config: ranges and lengths too, which
/// a type alone does not know.
pub(crate) fn check(params: &Params, schema: &Json, path: &str) -> Vec<Diagnostic> {
    let object = Json::Object(params.clone().into_iter().collect());
    flow_config::check_params(&object, schema, path)
}

/// A problem with what is said of it beside the message, for those who do not show diagnostics.
pub(crate) fn in_words(problem: &Diagnostic) -> String {
    let allowed = problem.allowed.join(", ");
    match &problem.help {
        Some(help) => format!("{} ({help})", problem.message),
        None if allowed.is_empty() || problem.message.contains(&allowed) => problem.message.clone(),
        None => format!("{} (allowed: {allowed})", problem.message),
    }
}
