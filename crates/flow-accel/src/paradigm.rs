//! How a trainer's loss depends on the rollout that fed it.

use std::fmt;

/// What a loss reads of a rollout, and so which rollout accelerators are safe for it (Flow-Factory PR #196).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Paradigm {
    /// It reads the rollout's log-probabilities: the rollout must be computed exactly as training computes it.
    Coupled,
    /// It reads the final images only.
    Decoupled,
    /// It reads a teacher.
    Distillation,
}

impl Paradigm {
    /// Name in configs, logs and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Coupled => "coupled",
            Self::Decoupled => "decoupled",
            Self::Distillation => "distillation",
        }
    }
}

impl fmt::Display for Paradigm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
