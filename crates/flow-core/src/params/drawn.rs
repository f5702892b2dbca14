//! Which weights get initial values from a seed.

use super::{ParamKind, ParamSpec};

/// Which weights are drawn from a seed. The others are zeros, for a file that is about to give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// All.
    All,
    /// Adapters.
    Adapters,
    /// None.
    Nothing,
}

impl Drawn {
    /// Whether the weight of `spec` is one of them.
    pub(super) fn has(self, spec: &ParamSpec) -> bool {
        match self {
            Self::All => true,
            Self::Adapters => spec.kind == ParamKind::Adapter,
            Self::Nothing => false,
        }
    }
}
