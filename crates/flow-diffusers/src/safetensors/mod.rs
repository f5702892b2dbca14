//! Files in the safetensors format, in and out, without a tensor library.

mod dtype;
mod read;
mod write;

pub use dtype::StoredDtype;
pub(crate) use read::LFS_POINTER;
pub use read::{Parsed, StoredTensor, parse};
/// Precisions that the format knows.
pub use safetensors::Dtype;
pub use write::{Named, WriteError, replace, write};
