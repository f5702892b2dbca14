//! `[sampling.branching]`: where the members of a group part.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[sampling.branching]`: where the members of a group part, and which of them are compared with which. All but `none` need a coupled
/// algorithm, `one-step` and `tree` also `sampling.initial_noise = "per_group"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum Branching {
    /// Each member has noise of its own at every random step, and its advantage counts at all of them.
    None(NoBranching),
    /// Each member is random at one step of the window alone, and its reward is credited to that step (TempFlow-GRPO, arXiv
    /// 2508.04324). The members of a group are dealt to the steps of the window in equal parts, and compared within their part.
    OneStep(OneStepBranching),
    /// All members of a group are random at the same step of the window alone, which is drawn for each group anew, and compared at it: the
    /// iso-temporal grouping of Flash-GRPO (arXiv 2605.15980). Members may start from noise of their own.
    OneStepPerGroup(OneStepPerGroupBranching),
    /// The members of a group are the leaves of a tree, which has noise in common down to where they part; each step is credited with
    /// the images that came of it (BranchGRPO, arXiv 2509.06040).
    Tree(TreeBranching),
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

/// `kind = "one-step-per-group"`; it has no options: the window says which steps there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OneStepPerGroupBranching {}

/// `kind = "tree"`: `children` to the power of the number of `splits` is `sampling.group_size`. Random steps between splits have one noise
/// per node. Advantages compare the nodes of a tree at the same depth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TreeBranching {
    /// Steps at which every node has several children, rising; all of them in the window, the first of which is the first split.
    /// BranchGRPO's are 0, 3, 6 and 9 of 20 steps.
    #[schemars(inner(range(max = 999)), length(min = 1, max = 16), extend("uniqueItems" = true))]
    pub splits: Vec<usize>,
    /// Children of a node at a split.
    #[schemars(range(min = 2, max = 256))]
    pub children: usize,
    /// How the values of children become that of a node.
    pub fusion: TreeFusion,
    /// Which leaves are trained from the last split on (pruning by width).
    pub leaves: TreeLeaves,
    /// With `leaves = "extremes"`: how many best and how many worst leaves of a tree.
    #[schemars(range(min = 1, max = 32_768))]
    pub extremes: usize,
    /// Steps of the window that are not trained (pruning by depth).
    #[schemars(inner(range(max = 999)), length(max = 1000), extend("uniqueItems" = true))]
    pub untrained_steps: Vec<usize>,
    /// Iterations after which `untrained_steps` move by one step towards the noise; 0 for never.
    #[schemars(range(max = 1_000_000))]
    pub untrained_hold: usize,
    /// Where the first of them stops.
    #[schemars(range(max = 999))]
    pub untrained_least: usize,
}

impl Default for TreeBranching {
    fn default() -> Self {
        Self {
            splits: vec![0, 2, 4, 6],
            children: 2,
            fusion: TreeFusion::Mean,
            leaves: TreeLeaves::All,
            extremes: 4,
            untrained_steps: Vec::new(),
            untrained_hold: 0,
            untrained_least: 0,
        }
    }
}

impl TreeBranching {
    /// Leaves of a tree; none if there are more than can be counted.
    pub fn leaf_count(&self) -> Option<usize> {
        self.children.checked_pow(u32::try_from(self.splits.len()).ok()?)
    }
}

/// How the values of children become that of their node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TreeFusion {
    /// Their mean.
    #[default]
    Mean,
    /// Their mean, weighted by the softmax of the log-probabilities of the steps that lead to them.
    PathProbability,
}

/// Which leaves of a tree are trained from the last split on. Values decide; the steps before are trained whatever becomes of leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TreeLeaves {
    /// All.
    #[default]
    All,
    /// The better half of the children of each node, rounded up.
    BetterHalf,
    /// The `extremes` best and the `extremes` worst of each tree.
    Extremes,
}
