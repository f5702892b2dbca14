//! The cases that every attention kernel is checked on, with a reference in f64. Host code only.
//!
//! Tests take the cases a backend supports, compute [`Data::new`] and [`reference`] for each, and judge with
//! [`Expected::judge`].

mod cases;
mod data;
mod judge;
mod reference;

pub use cases::{Case, Layout, MaskKind, cases};
pub use data::{Data, Operand};
pub use judge::{Judgement, Results};
pub use reference::{Expected, reference};
