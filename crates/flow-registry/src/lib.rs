//! Plug-ins by name: one [`Registry`], one finder of the [`nearest`] name, one sentence about an [`UnknownName`]; one
//! finder of a [`repeated_key`]; and one [`Refusal`].

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod nearest;
mod pattern;
mod refusal;
mod registry;
mod repeated_key;
mod unknown;

pub use nearest::{is_misspelt, likeness, nearest, nearest_within, simplify};
pub use pattern::names_layer;
pub use refusal::Refusal;
pub use registry::{NameTaken, NotFound, Registry, Removed};
pub use repeated_key::repeated_key;
pub use unknown::UnknownName;
