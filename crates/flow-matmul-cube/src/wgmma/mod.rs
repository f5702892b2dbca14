//! Products on Hopper's asynchronous tensor cores.

pub mod arguments;
mod block;
mod copy;
mod cursor;
mod epilogue;
pub mod kernel;
pub mod launch;
mod main_loop;
pub mod select;
mod tiles;

use cubecl::prelude::{Const, Vector};
pub use tiles::Tiles;

/// Four words of an item.
pub type Record = Vector<u32, Const<4>>;
