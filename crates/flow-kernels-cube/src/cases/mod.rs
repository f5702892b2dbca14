//! The cases every device is checked on: all kernels, awkward sizes, against definitions in f64 on the values that the
//! device is given; twice the same bits; and the bits of a sample that is alone.

mod checker;
mod elementwise;
mod experts;
mod feature_cache;
mod latents;
mod low_precision;
mod normals;
mod norms;
mod pictures;
pub mod reference;
mod row_codes;
mod storage;
mod updates;

pub use checker::{Checker, Verdict};

use crate::Element;
use cubecl::prelude::*;

/// Some cases, by name.
pub type Group = (&'static str, fn(&mut Checker<'_>));

/// All groups.
pub const GROUPS: [Group; 11] = [
    ("norms", norms::check),
    ("elementwise", elementwise::check),
    ("latents", latents::check),
    ("normals", normals::check),
    ("updates", updates::check),
    ("storage", storage::check),
    ("low_precision", low_precision::check),
    ("row_codes", row_codes::check),
    ("experts", experts::check),
    ("feature_cache", feature_cache::check),
    ("pictures", pictures::check),
];

/// Runs the group called `name` on tensors of type `element`.
///
/// # Panics
/// If there is no such group.
pub fn check(client: &Client, element: Element, name: &str) -> Verdict {
    let group = GROUPS.iter().find(|(known, _)| *known == name);
    let (_, run) = group.unwrap_or_else(|| panic!("there is no group `{name}`"));
    let mut checker = Checker::new(client, element);
    run(&mut checker);
    checker.verdict()
}
