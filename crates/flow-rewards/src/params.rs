//! Parameters of rewards: from a generic value to a typed struct, with errors that name the parameter.

use flow_data::suggest;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::RewardError;

/// The typed parameters of a reward from a JSON-like object; `null` counts as an empty object.
///
/// `known` lists the names of the parameters, for the error about any other.
///
/// # Errors
/// [`RewardError::UnknownParam`] for a name outside `known`; [`RewardError::Params`] for a value that does not fit.
pub fn parse_params<T: DeserializeOwned>(
    reward: &str,
    params: &Value,
    known: &[&str],
) -> Result<T, RewardError> {
    let empty = Value::Object(serde_json::Map::new());
    let params = if params.is_null() { &empty } else { params };
    let Value::Object(entries) = params else {
        return Err(RewardError::Params {
            reward: reward.to_owned(),
            problem: format!(
                "expected a table such as {{ {} = … }}, found {params}",
                known.first().unwrap_or(&"key")
            ),
        });
    };
    if let Some(param) = entries.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(RewardError::UnknownParam {
            reward: reward.to_owned(),
            param: param.clone(),
            nearest: suggest::nearest(param, known.iter().copied()).map(str::to_owned),
            known: known.iter().map(|&name| name.to_owned()).collect(),
        });
    }
    serde_path_to_error::deserialize(params).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.into_inner().to_string();
        // A missing field has no path of its own.
        let problem = if path == "." {
            problem
        } else {
            format!("`{path}`: {problem}")
        };
        RewardError::Params {
            reward: reward.to_owned(),
            problem,
        }
    })
}
