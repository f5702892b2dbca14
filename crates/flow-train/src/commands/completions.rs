//! `completions`: a script for the shell.

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::terminal;
use clap::CommandFactory;
use clap_complete::Shell;

/// Prints the script.
pub fn run(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "flow-train", &mut script);
    terminal::print(&String::from_utf8_lossy(&script))
}
