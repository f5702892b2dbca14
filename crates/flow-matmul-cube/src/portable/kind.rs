//! Sizes of the portable kernel, and what it is compiled for.

use crate::problem::{Epilogue, Layout};
use flow_cube::activation::Arithmetic;

/// Threads of a block.
pub(crate) const THREADS: usize = 256;
/// Rows and columns of a block.
pub(super) const SIDE: usize = 64;
/// Summands that pass through shared memory at a time.
pub(super) const CHUNK: usize = 16;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Where rows and columns of the operands are.
    pub layout: Layout,
    /// Whether there is a second pair of operands.
    pub low_rank: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// The epilogue; `tokens` is not looked at.
    pub epilogue: Epilogue,
    /// Of activations.
    pub arithmetic: Arithmetic,
    /// Whether there are groups of rows.
    pub grouped: bool,
    /// Whether sums are scaled by row and column: operands are codes that were widened.
    pub scaled: bool,
}

impl Kind {
    pub(super) fn gated(&self) -> bool {
        matches!(self.epilogue, Epilogue::GateAndAdd { .. })
    }
}
