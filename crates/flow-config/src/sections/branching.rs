//! `[sampling.branching]`: where the members of a group part.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[sampling.branching]`: where the members of a group part, and which of them are compared with which. All but `none` need
/// `sampling.initial_noise = "per_group"` and a coupled algorithm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum Branching {
    /// Each member has noise of its own at every random step, and its advantage counts at all of them.
    None(NoBranching),
    /// Each member is random at one step of the window alone, and its reward is credited to that step (TempFlow-GRPO, arXiv
    /// 2508.04324). The members of a group are dealt to the steps of the window in equal parts, and compared within their part.
    OneStep(OneStepBranching),
}

impl Default for Branching {
    fn default() -> Self {
        Self::None(NoBranching {})
    }
}

/// `kind = "none"`; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NoBranching {}

/// `kind = "one-step"`; it has no options: the window says which steps there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OneStepBranching {}
