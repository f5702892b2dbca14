//! Which NCCL would be used here: `cargo run --release -p flow-nccl --example find [-- PATH]`.

use flow_nccl::{Nccl, NcclError};
use std::path::PathBuf;

fn main() -> Result<(), NcclError> {
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let nccl = Nccl::open(path.as_deref())?;
    let version = nccl.version();
    let [major, minor, patch] = [version / 10_000, version / 100 % 100, version % 100];
    println!("NCCL {major}.{minor}.{patch}, {}", nccl.path().display());
    Ok(())
}
