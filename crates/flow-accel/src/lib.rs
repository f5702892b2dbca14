//! The accelerator trait, its registry and its slots.

mod paradigm;

pub use paradigm::Paradigm;
