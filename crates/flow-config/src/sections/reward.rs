//! `[[rewards]]` and `[[eval_rewards]]`: what images are scored by. Their kinds and parameters are plug-ins'
//! ([`Catalog`](crate::Catalog)); name and weight are every reward's.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One reward, chosen by `kind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RewardConfig {
    /// The reward, by the name that it is registered under.
    pub kind: String,
    /// Name in metrics and reports; without it, the kind. Unique in its list.
    #[serde(default)]
    #[schemars(length(min = 1, max = 100))]
    pub name: Option<String>,
    /// Weight in the sum of rewards; may be negative.
    #[serde(default = "one")]
    #[schemars(range(min = -1e30, max = 1e30))]
    pub weight: f64,
    /// What else the kind has.
    #[serde(flatten)]
    #[schemars(skip)]
    pub params: Map<String, Value>,
}

impl RewardConfig {
    /// The reward `kind` with these parameters, weight 1 and no name of its own.
    pub fn new(kind: &str, params: Map<String, Value>) -> Self {
        Self {
            kind: kind.to_owned(),
            name: None,
            weight: one(),
            params,
        }
    }

    /// Its name in metrics and reports: `name` if it is given, else the kind.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.kind)
    }

    /// Its parameters as the type of its plug-in.
    ///
    /// # Errors
    /// If they are another plug-in's.
    pub fn params<P: DeserializeOwned>(&self) -> Result<P, serde_json::Error> {
        serde_json::from_value(Value::Object(self.params.clone()))
    }
}

fn one() -> f64 {
    1.0
}
