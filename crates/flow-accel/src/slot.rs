//! Where an accelerator is in force, and where it may be.

use std::fmt;

/// A list of `[acceleration]` in a config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// In force in rollout and training alike.
    Shared,
    /// In force during rollouts only.
    Rollout,
}

impl Slot {
    /// Both slots.
    pub const ALL: [Self; 2] = [Self::Shared, Self::Rollout];

    /// Name in configs, logs and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Rollout => "rollout",
        }
    }

    /// The slot called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|slot| slot.name() == name)
    }

    /// What is said of an accelerator, `{name}`, that stands in this slot and is of the other's stage: what is wrong, and
    /// how to mend it.
    pub const fn misplaced(self) -> (&'static str, &'static str) {
        match self {
            Self::Shared => (
                "the accelerator `{name}` works in rollouts only, but `acceleration.shared` is in force in training too",
                "move the entry to `acceleration.rollout`, or choose an accelerator of stage `both`",
            ),
            Self::Rollout => (
                "the accelerator `{name}` is made for rollout and training together, but `acceleration.rollout` is in \
                 force in rollouts only",
                "move the entry to `acceleration.shared`",
            ),
        }
    }

    /// The stage that an accelerator in this slot must have.
    pub fn takes(self) -> AcceleratorStage {
        match self {
            Self::Shared => AcceleratorStage::Both,
            Self::Rollout => AcceleratorStage::Rollout,
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The parts of an iteration that an accelerator is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AcceleratorStage {
    /// Rollout and training: what it changes has a backward.
    Both,
    /// Rollouts only, for instance because it keeps state between the steps of a trajectory.
    Rollout,
}

impl AcceleratorStage {
    /// Both stages.
    pub const ALL: [Self; 2] = [Self::Both, Self::Rollout];

    /// Name in logs and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Rollout => "rollout",
        }
    }

    /// The slot for an accelerator of this stage.
    pub fn slot(self) -> Slot {
        match self {
            Self::Both => Slot::Shared,
            Self::Rollout => Slot::Rollout,
        }
    }
}

impl fmt::Display for AcceleratorStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
