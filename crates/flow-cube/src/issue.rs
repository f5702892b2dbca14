//! Which threads issue an operation that must happen once, such as the copy of a tile.

/// How an operation that one thread starts is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Issue {
    /// By one thread, in a branch that the other threads of its warp do not take.
    SingleThread,
    /// By all threads of a warp together; the hardware elects one lane (`elect.sync`). The whole warp must take the
    /// branch: after `elect.sync` in a divergent branch, ptxas treats no value of the kernel as warp-uniform.
    ///
    /// Use it on the critical path. For a copy issued by one thread of several, ptxas writes a loop over the threads that
    /// waits until the copy has read its operands, 45 cycles each; for an elected lane the copy is one instruction. While
    /// one warp fills a stage, the other warps of its warpgroup wait for it at the next product.
    ElectedLane,
}
