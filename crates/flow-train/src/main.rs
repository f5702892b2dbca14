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
use std::process::ExitCode;

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
    match commands::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
