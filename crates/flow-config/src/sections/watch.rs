//! `[watch]`: whether the trained reward is exploited.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;

/// `[watch]`: signs that a policy exploits the weakness of its reward, in the images of rollouts and by judges that are not trained
/// on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WatchConfig {
    /// Iterations between two looks at the images of a rollout. 0 looks at none.
    #[schemars(range(max = 1_000_000))]
    pub every: usize,
    /// Looks that are compared: the earlier half of them with the later half.
    #[schemars(range(min = 4, max = 100_000))]
    pub window: usize,
    /// The share of its value by which a number must have fallen to be told of.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub least_fall: f64,
    /// Rewards of the evaluation, by their names, that must not fall while the trained reward rises. Without it, those that are not
    /// trained on.
    #[schemars(extend("uniqueItems" = true))]
    pub judges: Vec<String>,
}

impl Default for WatchConfig {
    fn default() -> Self {
        Self {
            every: 0,
            window: 20,
            least_fall: 0.1,
            judges: Vec::new(),
        }
    }
}

impl Config {
    /// The rewards of the evaluation that judge whether the trained rewards are exploited: `watch.judges`, or all that are not
    /// trained on.
    pub fn judges(&self) -> Vec<String> {
        if !self.watch.judges.is_empty() {
            return self.watch.judges.clone();
        }
        let trained = |judge: &&super::RewardConfig| {
            let mut trained = self.rewards.iter();
            trained.any(|reward| reward.kind == judge.kind && reward.params == judge.params)
        };
        let judges = self
            .effective_eval_rewards()
            .iter()
            .filter(|judge| !trained(judge));
        judges.map(|judge| judge.name().to_owned()).collect()
    }
}
