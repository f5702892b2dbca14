//! Development tasks. Dispatch only: each task is one module.

fn main() {}
