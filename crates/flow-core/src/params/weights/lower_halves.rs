//! Lower halves of which other processes have some.
//!
//! Models read upper halves alone, and the optimizer both. So where processes share out the steps of the optimizer, whoever steps a weight
//! needs its lower half, and the others do without: what reaches them of a step is the upper one, in half the bytes.

use super::Weights;
use crate::device::cpu;
use crate::params::WeightStorage;
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use std::sync::Arc;

impl Weights {
    /// Keeps the lower halves of those weights alone that are `kept` (one flag each), of what is in halves now and of what is
    /// [stored](Self::store) so later: of each weight one process keeps it. What models see stays the same. All processes call this, or none.
    ///
    /// # Panics
    /// If `kept` has another length than the layout.
    pub fn keep_lower_halves(&mut self, kept: Arc<[bool]>) {
        assert_eq!(kept.len(), self.layout.len(), "one flag per weight");
        let lowers = Arc::make_mut(&mut self.lowers).iter_mut();
        lowers
            .zip(&*kept)
            .filter(|(_, kept)| !**kept)
            .for_each(|(lower, _)| *lower = None);
        self.kept_lowers = Some(kept);
        // What others keep.
        self.device.release_unused();
    }

    /// Whether a weight is stored in halves here. Where processes share out lower halves, this one may have none.
    pub fn has_halves(&self) -> bool {
        self.lowers.iter().any(Option::is_some)
    }

    /// Whether one process has the lower half of the weight at `index`, and every one its upper half.
    pub fn shares_lower_half(&self, index: usize) -> bool {
        let is_in_halves = self
            .stored
            .as_ref()
            .is_some_and(|stored| stored.storage == WeightStorage::SplitF32 && stored.trained[index]);
        // What was replaced and not settled is an f32.
        is_in_halves
            && self.kept_lowers.is_some()
            && !self.is_in_parts(index)
            && self.values[index].dtype() == DType::BF16
    }

    /// Whether another process has the lower half of the weight at `index`.
    pub fn lacks_lower_half(&self, index: usize) -> bool {
        self.shares_lower_half(index) && self.lowers[index].is_none()
    }

    /// Whether the 16 bits that are stored of the weight at `index` are all that every process has of it: of one in halves the upper one.
    pub fn is_narrow_everywhere(&self, index: usize) -> bool {
        self.values[index].dtype() == DType::BF16
            && (self.lowers[index].is_none() || self.shares_lower_half(index))
    }

    /// What every process has of the weight at `index`, on the host, row-major: its values, or as numbers the upper halves of those whose lower
    /// ones are shared out.
    ///
    /// # Panics
    /// If processes have parts of them.
    pub fn common_host(&self, index: usize) -> Vec<f32> {
        match self.shares_lower_half(index) {
            true => cpu::to_host(&self.values[index]),
            false => self.host(index),
        }
    }

    pub(super) fn expect_lower_half(&self, index: usize) {
        assert!(
            !self.lacks_lower_half(index),
            "another process has the lower half of the weight `{}`",
            self.layout.specs()[index].name
        );
    }
}
