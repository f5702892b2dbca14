//! Weights of encoders, from the files that transformers writes.

mod files;
mod load;

pub use load::{Loaded, Wanted, load, load_tensors, open};

/// What a tensor of a file is to an encoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The weight of this name in the layout; if the layout has none, a tensor that nobody knows.
    Weight(String),
    /// The same values as the weight of this name, which files have in its stead or beside it.
    Stead(String),
    /// No part of the encoder: it is never looked at.
    Ignored,
}
