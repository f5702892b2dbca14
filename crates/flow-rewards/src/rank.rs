//! `rank-in-group`: the rank of another reward's score within the group, an example of a group-wise reward.
//!
//! Ranks keep the order of the scores and forget their sizes, so one outlier cannot set the scale of a group's
//! advantages.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use flow_data::Prompt;
use flow_registry::NameTaken;

use crate::error::RewardError;
use crate::registry::{Params, RewardFactory, RewardRegistry};
use crate::reward::{Reward, RewardKind, RewardSample, score_videos};

const NAME: &str = "rank-in-group";

/// Ranks within the group, scaled so that the worst has 0 and the best 1.
///
/// Equal scores share the mean of their ranks; a group of one scores 0.5.
pub struct RankInGroup {
    inner: Arc<dyn Reward>,
}

impl RankInGroup {
    /// Ranks by `inner`.
    pub fn new(inner: Arc<dyn Reward>) -> Self {
        Self { inner }
    }
}

impl Reward for RankInGroup {
    fn name(&self) -> &str {
        NAME
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn kind(&self) -> RewardKind {
        RewardKind::Groupwise
    }

    fn check_prompt(&self, prompt: &Prompt) -> Result<(), String> {
        self.inner.check_prompt(prompt)
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let scores = score_videos(&*self.inner, samples)?;
        if let Some(index) = scores.iter().position(|score| !score.is_finite()) {
            let problem = format!(
                "`{}` gave {}, which has no rank",
                self.inner.name(),
                scores[index]
            );
            return Err(RewardError::Sample { index, problem });
        }
        Ok(ranks(&scores))
    }
}

fn ranks(scores: &[f32]) -> Vec<f32> {
    if scores.len() < 2 {
        return vec![0.5; scores.len()];
    }
    let steps = (scores.len() - 1) as f32;
    scores
        .iter()
        .map(|score| {
            let below = scores.iter().filter(|other| *other < score).count();
            let equal = scores.iter().filter(|other| *other == score).count();
            // The mean of the ranks below .. below + equal.
            (below as f32 + (equal - 1) as f32 / 2.0) / steps
        })
        .collect()
}

/// Settings of [`RankInGroup`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RankInGroupSettings {
    /// The reward that ranks, by its `kind`.
    pub reward: String,
    /// The keys of that reward, without `kind`, `name` and `weight`.
    #[serde(default)]
    pub params: Params,
}

impl RankInGroup {
    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<RankInGroupSettings>(
            NAME,
            "The rank of another reward within the group, 0 (worst) to 1 (best).",
            RewardKind::Groupwise,
            |context, RankInGroupSettings { reward, params }| {
                let inner = context.build(&reward, &params)?;
                Ok(Arc::new(Self::new(inner)))
            },
        );
        registry.register(reward.wrapping("reward", "params"))
    }
}
