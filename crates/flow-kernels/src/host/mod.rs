//! What host kernels are made of: elementary functions, fixed-order sums, matrix products and threads.
//!
//! Everything here gives the same bits for any number of threads. The elementary functions and the sums use plain
//! multiplications and additions in a fixed order, never a fused multiply-add, so they also give the same bits on any
//! processor; matrix products use the widest fused multiply-add there is and are reproducible per processor type.

pub mod bf16;
pub mod math;
pub mod matrix;
pub mod narrow;
pub mod sum;
pub mod threads;
