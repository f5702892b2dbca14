//! Records of a data set, from which algorithms learn that make no rollout.

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// One image with its caption.
    Examples,
    /// Two images of one prompt: the one that is liked better, then the other.
    Preferences,
}

impl RecordKind {
    /// Images of a record, which are the members of a group.
    pub const fn rows(self) -> usize {
        match self {
            Self::Examples => 1,
            Self::Preferences => 2,
        }
    }
}
