//! Who asks for what is to happen once, such as a copy of a tile.

/// Who calls a function of which one thread is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// One thread, in a branch that the others of its warp do not take.
    Thread,
    /// All threads of a warp at once, of which the hardware elects one (`elect.sync`). In a branch that the
    /// whole warp takes: after `elect.sync` in any other, ptxas takes nothing in the kernel for the same in all threads.
    ///
    /// For who has no time. To issue a copy for one thread of several, ptxas writes a loop over the threads and waits in it until
    /// the copy has read its operands, 45 cycles each; for a warp it is one instruction. While a warp fills a stage, the others
    /// of its warpgroup wait for it at the next product.
    Warp,
}
