//! Weights of blocks of which several processes have a part each.

use crate::tensors::RawTensor;
use std::fmt::Debug;
use std::ops::Range;

/// Frozen weights of a model's blocks that the processes of a run have shared out among themselves. They are whole while a block computes and
/// in parts otherwise, as in fully sharded data parallelism (Zhao et al. 2023, arXiv:2304.11277).
///
/// [`Weights`](super::Weights) give what they load to [`keep`](Self::keep); a [`ParamView`](super::ParamView) asks for the whole weights
/// of one block ([`of_block`](super::ParamView::of_block)), and they last as long as that view.
pub trait BlockWeights: Debug + Send + Sync {
    /// Which values of the weight at `index` of the layout this process keeps, of all of them in row-major order: none or more. `None` of a
    /// weight that every process has whole.
    fn own_part(&self, index: usize) -> Option<Range<usize>>;

    /// Keeps this process's part of the weight at `index`, as one row, in the type in which frozen weights are stored.
    fn keep(&self, index: usize, part: RawTensor);

    /// The weights that are shared out of block number `block` of `stack`, whole, each with its place in the layout; none of a block that has
    /// none. Other processes take part: how they learn of it is up to whoever implements this.
    ///
    /// `next` is the block of the same stack that this thread will most likely ask for after this one, if there is one: whoever implements
    /// this may fetch it while this one computes. It is a hint: another one may follow, or none.
    ///
    /// It unwinds with [`Stopped::RankLost`](crate::Stopped::RankLost) if a process is lost.
    fn gather(&self, stack: &str, block: usize, next: Option<usize>) -> Vec<(usize, RawTensor)>;
}
