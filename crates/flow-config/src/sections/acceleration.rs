//! `[acceleration]`, `[checkpointing]` and `[runtime]`: how the same computation is made faster or smaller.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};

/// `[acceleration]`: accelerators in two slots. Both are empty by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccelerationConfig {
    /// Applied once to the model, in list order, and in force in rollout and training alike. A single table is
    /// taken for a list of one.
    #[serde(deserialize_with = "one_or_many")]
    #[schemars(schema_with = "one_or_many_schema")]
    pub shared: Vec<AcceleratorEntry>,
    /// In force during rollouts only; the first entry is the outermost. A single table is taken for a list of one.
    #[serde(deserialize_with = "one_or_many")]
    #[schemars(schema_with = "one_or_many_schema")]
    pub rollout: Vec<AcceleratorEntry>,
    /// An accelerator that did nothing in a whole iteration stops the run; otherwise it is a warning.
    pub strict: bool,
}

/// One accelerator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorEntry {
    /// Its name in the registry; case does not matter.
    #[schemars(length(min = 1, max = 100))]
    pub name: String,
    /// Its parameters; which ones there are is the accelerator's own matter.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, serde_json::Value>,
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<AcceleratorEntry>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(AcceleratorEntry),
        Many(Vec<AcceleratorEntry>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(entry) => vec![entry],
        OneOrMany::Many(entries) => entries,
    })
}

fn one_or_many_schema(generator: &mut SchemaGenerator) -> Schema {
    let entry = generator.subschema_for::<AcceleratorEntry>();
    schemars::json_schema!({ "anyOf": [{ "type": "array", "items": entry }, entry] })
}

/// `[checkpointing]`: which activations are kept for the backward pass, chosen by `policy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "policy", rename_all = "kebab-case")]
pub enum CheckpointingConfig {
    /// All that automatic differentiation asks for.
    None(NoCheckpointing),
    /// The inputs of each block; the block is computed again.
    Full(FullCheckpointing),
    /// The inputs of each block and the results of attention; all else is computed again.
    AttnOnly(AttnOnlyCheckpointing),
}

impl Default for CheckpointingConfig {
    fn default() -> Self {
        Self::None(NoCheckpointing {})
    }
}

/// `policy = "none"`; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NoCheckpointing {}

/// `policy = "full"`; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FullCheckpointing {}

/// `policy = "attn-only"`; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttnOnlyCheckpointing {}

/// `[runtime]`: settings of Burn and CubeCL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RuntimeConfig {
    /// Options by dotted name, from the allowlist of the build in use.
    pub options: BTreeMap<String, serde_json::Value>,
}
