//! Weights of blocks of which several processes have a part each.

use crate::tensors::RawTensor;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// Weights of a model's blocks that the processes of a run have shared out among themselves, trained or frozen. They are whole while a block
/// computes and in parts otherwise, as in fully sharded data parallelism (Zhao et al. 2023, arXiv:2304.11277).
///
/// A run has several sets of such weights: the trained ones, their average, a reference. Sets have numbers, in the order in which they are
/// [opened](Self::open), which is the same on all processes. [`Weights`](super::Weights) hold the parts of their set and [show](Self::show)
/// them here; a [`ParamView`](super::ParamView) asks for the whole weights of one block ([`of_block`](super::ParamView::of_block)), and
/// they last as long as that view.
pub trait BlockWeights: Debug + Send + Sync {
    /// Which values of the weight at `index` of the layout this process keeps, of all of them in row-major order: none or more, from a multiple
    /// of four on. `None` of a weight that every process has whole.
    fn own_part(&self, index: usize) -> Option<Range<usize>>;

    /// How many values of the weight at `index` each process keeps, in the order of the weight; `None` of one that every process has whole.
    fn counts(&self, index: usize) -> Option<Vec<usize>>;

    /// The number of a new set.
    fn open(&self) -> usize;

    /// Shows this process's part of the weight at `index` in a set, as one row, to whoever gathers blocks of it, in the place of an earlier
    /// one. Models see it in the type that they compute with.
    fn show(&self, set: usize, index: usize, part: RawTensor);

    /// Lets go of all parts of a set, so that they may change where they are. No process computes with the set until they are shown again.
    fn hide(&self, set: usize);

    /// The weights that are shared out of block number `block` of `stack` in a set, whole, each with its place in the layout; none of a block
    /// that has none. Other processes take part: how they learn of it is up to whoever implements this.
    ///
    /// `next` is the block of the same stack and set that this thread will most likely ask for after this one, if there is one: whoever
    /// implements this may fetch it while this one computes. It is a hint: another one may follow, or none.
    ///
    /// It unwinds with [`Stopped::RankLost`](crate::Stopped::RankLost) if a process is lost.
    fn gather(&self, set: usize, stack: &str, block: usize, next: Option<usize>) -> Vec<(usize, RawTensor)>;
}

/// A set of weights in parts, as long as some [`Weights`](super::Weights) hold it.
#[derive(Debug)]
pub(super) struct PartsSet {
    pub blocks: Arc<dyn BlockWeights>,
    pub number: usize,
}

impl PartsSet {
    /// A new set.
    pub fn open(blocks: Arc<dyn BlockWeights>) -> Self {
        let number = blocks.open();
        Self { blocks, number }
    }

    /// Whether processes have parts of the weight at `index`.
    pub fn has(&self, index: usize) -> bool {
        self.blocks.own_part(index).is_some()
    }

    /// Shows those of `values`, which are all of the layout, that are parts.
    pub fn show_all(&self, values: &[RawTensor]) {
        for (index, value) in values.iter().enumerate().filter(|(index, _)| self.has(*index)) {
            self.blocks.show(self.number, index, value.clone());
        }
    }
}

impl Drop for PartsSet {
    fn drop(&mut self) {
        self.blocks.hide(self.number);
    }
}
