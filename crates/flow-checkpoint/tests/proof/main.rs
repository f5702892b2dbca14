//! The proof of activation checkpointing on the processor: what is computed how often, what is held, and that no bit of
//! any result or gradient depends on it.

mod bits;
mod counts;
mod experts;
mod memory;
mod policies;
mod regions;
mod segmented;
mod support;
