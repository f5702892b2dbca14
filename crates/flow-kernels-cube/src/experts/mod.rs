//! A mixture of experts besides its products: routing, sorting tokens by expert, and back. Nothing is read back: how many
//! rows an expert has is on the device.
//!
//! Legend: `B` batch, `S` tokens of a sample, `E` experts, `K` experts of a token, `R = B·S·K` rows. Row `r` belongs to a
//! token and one of its choices: a *slot*, numbered `token · K + choice`. Indices are 32-bit integers.

pub mod group;
pub mod mix;
pub mod route;

pub use group::{Grouping, group_sums};
pub use mix::Mix;
pub use route::Routing;

use crate::Refusal;
use crate::buffer::wrong_length;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;

/// Indices on the device, `count` of them.
fn indices(name: &'static str, handle: &Handle, count: usize) -> Result<BufferArg, Refusal> {
    let found = handle.size_in_used() as usize / 4;
    if found < count {
        return Err(wrong_length(name, found, count));
    }
    // SAFETY: it holds as many.
    Ok(unsafe { BufferArg::from_raw_parts(handle.clone(), count) })
}
