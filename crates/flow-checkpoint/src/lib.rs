//! Activation checkpointing for flow-train: what backward keeps and what it computes again.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

use flow_core::{KeepAll, RegionEngine};
use std::fmt;
use std::sync::Arc;

/// What backward keeps of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// Everything that operations keep: no recomputation.
    #[default]
    None,
}

/// A policy that this release does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no checkpoint policy `{asked}`; policies: {}. Set `checkpointing.policy = \"none\"`", Policy::names().join(", "))]
pub struct UnknownPolicy {
    /// The name asked for.
    pub asked: String,
}

impl Policy {
    /// The names of all policies.
    pub fn names() -> Vec<&'static str> {
        vec!["none"]
    }

    /// The policy called `name`.
    ///
    /// # Errors
    /// [`UnknownPolicy`], which lists those there are.
    pub fn named(name: &str) -> Result<Self, UnknownPolicy> {
        match name {
            "none" => Ok(Self::None),
            _ => Err(UnknownPolicy { asked: name.into() }),
        }
    }

    /// The engine that follows this policy.
    pub fn engine(self) -> Arc<dyn RegionEngine> {
        match self {
            Self::None => Arc::new(KeepAll),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
        })
    }
}
