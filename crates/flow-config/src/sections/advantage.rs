//! `[advantage]`: from rewards to advantages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[advantage]`: from rewards to advantages, in f64 on the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdvantageConfig {
    /// How several rewards become one advantage.
    pub aggregation: Aggregation,
    /// Divide by the standard deviation over all images of the iteration: `sum` in the place of the group's, `gdpo` in a last step, which
    /// is left out without it.
    pub global_std: bool,
    /// Least standard deviation that is divided by (a floor, not an addend, as in Flow-Factory).
    #[schemars(range(min = 1e-30, max = 1e6))]
    pub std_floor: f64,
}

impl Default for AdvantageConfig {
    fn default() -> Self {
        Self {
            aggregation: Aggregation::Gdpo,
            global_std: true,
            std_floor: 1e-6,
        }
    }
}

/// How several rewards become one advantage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// Weighted sum of rewards, then normalised per group.
    Sum,
    /// Each reward normalised per group, then the weighted sum; with `global_std` normalised over the batch (GDPO, Liu et al. 2026,
    /// arXiv 2601.05242).
    #[default]
    Gdpo,
}
