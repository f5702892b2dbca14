//! `[algorithm]`: the loss. Its kinds and their parameters are plug-ins' ([`Catalog`](crate::Catalog)).

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `[algorithm]`: the RL algorithm, chosen by `kind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AlgorithmConfig {
    /// The algorithm, by the name that it is registered under.
    pub kind: String,
    /// What else the kind has.
    #[serde(flatten)]
    #[schemars(skip)]
    pub params: Map<String, Value>,
}

impl AlgorithmConfig {
    /// The algorithm `kind` with these parameters.
    pub fn new(kind: &str, params: Map<String, Value>) -> Self {
        Self {
            kind: kind.to_owned(),
            params,
        }
    }

    /// Its parameters as the type of its plug-in.
    ///
    /// # Errors
    /// If they are another plug-in's.
    pub fn params<P: DeserializeOwned>(&self) -> Result<P, serde_json::Error> {
        serde_json::from_value(Value::Object(self.params.clone()))
    }
}
