//! The `flow-train` command. Results go to standard output; progress, notes and errors to standard error.

mod arguments;
mod commands;
mod diagnostics;
mod failure;
mod interrupt;
mod logging;
mod progress;
mod terminal;

use clap::Parser;
use flow_core::stopped;
use flow_train::checkpoint::CountingAllocator;
use std::process::ExitCode;

/// Counts what is in use, so that a budget of memory can be planned and kept.
#[global_allocator]
static MEMORY: CountingAllocator = CountingAllocator::new();

fn main() -> ExitCode {
    let arguments = match arguments::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version go to standard output and are no failure; clap knows which is which.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    logging::start(arguments.log);
    let outcome = stopped::caught(|| commands::run(arguments)).unwrap_or_else(|why| Err(why.into()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
