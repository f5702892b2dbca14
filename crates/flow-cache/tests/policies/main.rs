//! The policies on models whose results are known in closed form.

mod auto;
mod decisions;
mod faster;
mod first_block;
mod forecast;
mod isolation;
mod masks;
mod toy;
mod waiting;
