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
    /// An accelerator that did nothing in an iteration, or less than it is in force for, ends the command; otherwise it is named.
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

pub(super) fn one_or_many<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<AcceleratorEntry>, D::Error> {
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

pub(super) fn one_or_many_schema(generator: &mut SchemaGenerator) -> Schema {
    let entry = generator.subschema_for::<AcceleratorEntry>();
    schemars::json_schema!({ "anyOf": [{ "type": "array", "items": entry }, entry] })
}

/// `[checkpointing]`: which activations are kept for the backward pass, chosen by `policy`. Choices of routers are always
/// kept. No policy changes a bit of what is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "policy", rename_all = "kebab-case")]
pub enum CheckpointingConfig {
    /// All that automatic differentiation asks for.
    None(NoCheckpointing),
    /// The inputs of each block; the block is computed again.
    Full(FullCheckpointing),
    /// The inputs of every n-th block, which is computed again; the other blocks as `none`.
    BlockSkip(BlockSkipCheckpointing),
    /// The inputs of each block, the results of attention and of every n-th linear layer; all else is computed again.
    EveryNthLinear(EveryNthLinearCheckpointing),
    /// The inputs of each block and the results of attention; all else is computed again.
    AttnOnly(AttnOnlyCheckpointing),
    /// The inputs of each block and what patterns name; all else is computed again.
    Regions(RegionsCheckpointing),
    /// What takes the least time within a peak of memory, found by measuring before the run.
    Budget(BudgetCheckpointing),
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

/// `policy = "full"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FullCheckpointing {
    /// Compute attention and feed-forward again apart from one another: keeps the outputs of both as well, and has the
    /// inner results of one at a time in memory.
    pub split: bool,
}

/// `policy = "block-skip"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BlockSkipCheckpointing {
    /// Every how many blocks one is computed again, beginning with the first; 1 is `full`.
    #[schemars(range(min = 1, max = 1024))]
    pub every: usize,
}

impl Default for BlockSkipCheckpointing {
    fn default() -> Self {
        Self { every: 2 }
    }
}

/// `policy = "every-nth-linear"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EveryNthLinearCheckpointing {
    /// Every how many linear layers of a block one is kept, beginning with the first.
    #[schemars(range(min = 1, max = 1024))]
    pub n: usize,
}

impl Default for EveryNthLinearCheckpointing {
    /// Every second, as torchtitan's selective policy.
    fn default() -> Self {
        Self { n: 2 }
    }
}

/// `policy = "attn-only"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttnOnlyCheckpointing {
    /// Compute the rest of attention and feed-forward again apart from one another: keeps the outputs of both as well,
    /// and has the inner results of one at a time in memory.
    pub split: bool,
}

/// `policy = "regions"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegionsCheckpointing {
    /// Patterns with `*` and `?` for regions, `STACK.BLOCK.REGION`, whose outputs are kept, and for the results of
    /// operations, `STACK.BLOCK.REGION:RESULT`, which are not computed again; what follows a dot of a name suffices. For
    /// instance `["attention:attention", "transformer_blocks.0.mlp"]`.
    #[schemars(length(min = 1), inner(length(min = 1)), extend("uniqueItems" = true))]
    pub save: Vec<String>,
}

/// `policy = "budget"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetCheckpointing {
    /// The peak of memory of a training step on the device, weights, gradients and the optimizer's moments included, in
    /// GiB (2^30 bytes).
    #[schemars(range(min = 0.001, max = 100_000.0))]
    pub peak_gib: f64,
}

/// `[runtime]`: settings of Burn and CubeCL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RuntimeConfig {
    /// Options by dotted name, from the allowlist of the build in use.
    pub options: BTreeMap<String, serde_json::Value>,
}
