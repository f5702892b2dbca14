//! Moves data between the ranks of a run; sums have one order, whatever the number of ranks.
#![doc = ""]
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod exchange;
mod frame;
mod lanes;
mod local;
mod lost;
mod portion;
mod ranks;
mod tcp;
mod values;

pub use exchange::{Alone, Exchange};
pub use flow_rendezvous::World;
pub use lanes::{Lanes, Partials};
pub use local::in_process;
pub use lost::Lost;
pub use portion::{parts_of_ranks, portion};
pub use ranks::Ranks;
pub use tcp::tcp;
pub use values::{HostValues, ValueType, Values};
