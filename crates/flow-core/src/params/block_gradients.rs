//! Gradients of blocks of whose weights several processes have a part each.

use crate::tensors::RawTensor;
use std::fmt::Debug;

/// Who takes the gradients of trained weights in parts block by block, as soon as backward has them: so the gradients of all blocks need not be
/// there at one time. The gradients of a unit, a forward and a backward pass, are those of all runs of a block in it together.
///
/// A [`ParamView`](super::ParamView) knows it ([`handing_to`](super::ParamView::handing_to)), and an engine of regions tells it.
pub trait BlockGradients: Debug + Send + Sync {
    /// Block number `block` of `stack` was run once more, and will run again in backward.
    fn expect(&self, stack: &str, block: usize);

    /// The block ran again: the gradients of its weights in parts, whole, each with its place in the layout. Those that did not arrive are
    /// missing.
    ///
    /// It may unwind with [`Stopped`](crate::Stopped).
    fn take(&self, stack: &str, block: usize, gradients: Vec<(usize, RawTensor)>);
}
