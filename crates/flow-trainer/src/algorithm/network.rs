//! Networks that are trained beside the student, each with an optimizer of its own: which an algorithm may have, and how they learn.

/// The part that a network plays which is trained beside the student. It begins as the student does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkRole {
    /// It learns the velocities of what the student makes: [`LossContext::fake`](super::LossContext::fake).
    FakeScore,
    /// It learns to make what is rewarded, for the student to follow: [`LossContext::surrogate`](super::LossContext::surrogate).
    Surrogate,
}

impl NetworkRole {
    /// All of them, in the order in which they take their optimizer steps.
    pub const ALL: [Self; 2] = [Self::FakeScore, Self::Surrogate];

    /// The name under which its loss is logged.
    pub(crate) const fn loss_name(self) -> &'static str {
        match self {
            Self::FakeScore => "fake_loss",
            Self::Surrogate => "surrogate_loss",
        }
    }
}

/// How such a network learns. What of `[optimizer]` does not stand here is its own, too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkPlan {
    /// Its optimizer steps before each of the student's.
    pub updates: usize,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Decays of its moments.
    pub betas: [f64; 2],
    /// Whether a slower copy of it is kept, which follows by [`Algorithm::network_survives`](super::Algorithm::network_survives).
    pub keeps_slow: bool,
}
