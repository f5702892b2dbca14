//! The cases that every attention kernel is checked on, with a reference in f64.
//!
//! A test takes the cases its backend supports, computes [`Data::new`] and [`reference`] for each (host code), uploads
//! [`Buffers`], launches its kernels, and compares with [`Expected::compare`] what they wrote.

mod buffers;
mod case;
mod compare;
mod data;
mod reference;

pub use buffers::Buffers;
pub use case::{Case, Layout, MaskKind, cases};
pub use compare::Comparison;
pub use data::{Data, Operand};
pub use reference::{Expected, Results, reference};
