//! Weights of which this process has a part, and others the rest.

use super::Weights;
use crate::params::BlockWeights;
use crate::params::block_weights::PartsSet;
use std::ops::Range;
use std::sync::Arc;

impl Weights {
    /// The weights of blocks that other processes have parts of, if there are some.
    pub fn blocks(&self) -> Option<&Arc<dyn BlockWeights>> {
        self.parts.as_ref().map(|parts| &parts.blocks)
    }

    /// Whether processes have parts of the weight at `index`.
    pub fn is_in_parts(&self, index: usize) -> bool {
        self.own_part(index).is_some()
    }

    /// The values of the weight at `index` that this process has, on the host: a part of them in row-major order, or none; all of a weight that
    /// is whole.
    ///
    /// # Panics
    /// As [`host`](Self::host) of a whole weight.
    pub fn own_host(&self, index: usize) -> Vec<f32> {
        match self.own_part(index) {
            Some(part) if part.is_empty() => Vec::new(),
            Some(_) => self.stored_on_host(index),
            None => self.host(index),
        }
    }

    /// Who gathers blocks, and the number of this set.
    pub(in crate::params) fn parts_set(&self) -> Option<(Arc<dyn BlockWeights>, usize)> {
        let parts = self.parts.as_ref()?;
        Some((parts.blocks.clone(), parts.number))
    }

    pub(super) fn own_part(&self, index: usize) -> Option<Range<usize>> {
        self.blocks().and_then(|blocks| blocks.own_part(index))
    }

    /// Which values of the weight at `index` this process has, and in which shape: all, or a part of them as one row.
    pub(super) fn here(&self, index: usize) -> (Range<usize>, Vec<usize>) {
        let shape = &self.layout.specs()[index].shape;
        match self.own_part(index) {
            Some(part) => (part.clone(), vec![part.len()]),
            None => (0..shape.iter().product(), shape.clone()),
        }
    }

    /// Before a value is replaced: makes of these weights a set of their own, if clones of them are of the same.
    pub(super) fn own_set(&mut self) {
        if let Some(parts) = &mut self.parts
            && Arc::get_mut(parts).is_none()
        {
            let own = PartsSet::open(parts.blocks.clone());
            own.show_all(&self.values);
            *parts = Arc::new(own);
        }
    }

    /// Before values change where they are: nobody else holds the parts then. Whoever calls this shows them again.
    pub(super) fn hide_parts(&mut self) {
        let Some(parts) = &mut self.parts else {
            return;
        };
        match Arc::get_mut(parts) {
            Some(own) => own.blocks.hide(own.number),
            None => *parts = Arc::new(PartsSet::open(parts.blocks.clone())),
        }
    }

    /// Shows the parts as they are now.
    pub(super) fn show_parts(&self) {
        if let Some(parts) = &self.parts {
            parts.show_all(&self.values);
        }
    }
}
