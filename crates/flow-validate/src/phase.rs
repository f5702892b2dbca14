//! What a run does, as far as it matters to memory.

/// A time of a run at which something is in memory that is not there at others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The model's weights are read, those that are trained in f32, before they are stored as the device computes.
    Loading,
    /// Prompts are encoded: the model is there, and one text encoder after the other.
    Encoding,
    /// Images are sampled, and an autoencoder decodes them.
    Rollout,
    /// The loss and its gradients are computed.
    Update,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Loading, Self::Encoding, Self::Rollout, Self::Update];

    /// Its name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Encoding => "encoding",
            Self::Rollout => "rollout",
            Self::Update => "update",
        }
    }

    /// When it is, as the end of a sentence.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Loading => "at its start, while weights are read",
            Self::Encoding => "at its start, while prompts are encoded",
            Self::Rollout => "in a rollout, while images are decoded",
            Self::Update => "in an update",
        }
    }
}
