//! What an accelerator promises about the bits.

use std::fmt;

/// Whether results under an accelerator are the same bits in rollout and training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Safety {
    /// They are: bit-exact across stages, not only within each. If unsure, it is not this.
    Lossless,
    /// They are not, in these steps of a trajectory.
    Lossy(StepScope),
}

impl Safety {
    /// Whether the importance ratio of a coupled trainer is exactly 1 before the first update: the results are the
    /// same bits wherever the loss has a term.
    pub fn is_exact_on_policy(self) -> bool {
        self != Self::Lossy(StepScope::AllSteps)
    }
}

impl fmt::Display for Safety {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lossless => "lossless",
            Self::Lossy(StepScope::AllSteps) => "lossy",
            Self::Lossy(StepScope::OutsideSdeWindow) => "lossy outside the SDE window",
        })
    }
}

/// In which steps of a trajectory an accelerator may change results.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum StepScope {
    /// In all of them.
    #[default]
    AllSteps,
    /// In deterministic steps only. They have no log-probability, so no term of a coupled loss sees them; what is kept
    /// between steps is dropped where a stochastic one comes.
    OutsideSdeWindow,
}
