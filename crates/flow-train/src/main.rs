//! The `flow-train` command.

fn main() {}
