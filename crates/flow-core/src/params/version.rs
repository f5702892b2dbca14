//! Which values weights hold, as an identity that can be compared and that never comes back.

use crate::tensors::RawTensor;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

/// The values that a view shows. Two versions are equal as long as nobody wrote to the weights in between; clones of
/// weights share a version until one of them is written to.
///
/// There is no counter: a version is the identity of the list of values, and it holds on to that list's place in memory
/// without holding the values. While it does, [`Weights`](super::Weights) that are written to move to another place, so an
/// old version can never be mistaken for a new one (the fault of keys that are addresses).
#[derive(Clone, Debug)]
pub struct WeightsVersion {
    values: Weak<Vec<RawTensor>>,
    with_adapters: bool,
}

impl WeightsVersion {
    pub(super) fn of(values: &Arc<Vec<RawTensor>>, with_adapters: bool) -> Self {
        Self {
            values: Arc::downgrade(values),
            with_adapters,
        }
    }

    /// Whether some weights or a view still hold these values. Once they do not, they never will.
    pub fn is_alive(&self) -> bool {
        self.values.strong_count() > 0
    }
}

impl PartialEq for WeightsVersion {
    fn eq(&self, other: &Self) -> bool {
        self.with_adapters == other.with_adapters && self.values.ptr_eq(&other.values)
    }
}

impl Eq for WeightsVersion {}

impl Hash for WeightsVersion {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.values.as_ptr() as usize, self.with_adapters).hash(state);
    }
}
