//! The cases that every attention kernel is checked on, with a reference in f64.
//!
//! A test takes the cases its backend supports, computes [`Data::new`] and [`reference`] for each (host code), uploads
//! [`Buffers`], launches its kernels, and judges what they wrote with [`Expected::judge`].

mod buffers;
mod cases;
mod data;
mod judge;
mod reference;

pub use buffers::Buffers;
pub use cases::{Case, Layout, MaskKind, cases};
pub use data::{Data, Operand};
pub use judge::Judgement;
pub use reference::{Expected, Results, reference};
