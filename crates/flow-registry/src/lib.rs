//! Plug-ins by name: one [`Registry`], one finder of the [`nearest`] name, one sentence about an [`UnknownName`].

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod nearest;
mod registry;
mod unknown;

pub use nearest::{likeness, nearest, nearest_within};
pub use registry::{NameTaken, NotFound, Registry, Removed};
pub use unknown::UnknownName;
