//! How the processes of one training run find each other.
#![doc = ""]
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod error;
mod launch;
mod membership;
mod store;
mod variables;
mod watch;
mod world;

pub use error::RendezvousError;
pub use launch::{Launch, Launcher, StorePlace};
pub use membership::Membership;
pub use store::{Store, StoreServer};
pub use watch::Watch;
pub use world::World;
