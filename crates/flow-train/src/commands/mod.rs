//! The commands, one module each.

mod audit;
mod buckets;
mod calibrate;
mod check;
mod completions;
mod config_report;
mod context;
mod decode;
mod described;
mod doctor;
mod drift;
mod encode;
mod eval;
mod explain;
mod fetch;
mod fetch_known;
mod full_precision;
mod import;
mod init;
mod json_report;
mod launch;
mod list;
mod memory;
mod migrate;
mod nearest;
mod plan;
mod pretrain;
mod prompts;
mod report;
mod sample;
mod schema;
mod setup_diagnostics;
mod target;
mod train;
mod weights;

use crate::arguments::{Arguments, Command};
use crate::failure::Failure;
use context::{CommandContext, tokens};
use std::path::Path;

/// Says what is wrong with a command line as a JSON document.
///
/// # Errors
/// In any case, for the exit code.
pub fn as_json(failure: Failure) -> Result<(), Failure> {
    json_report::print(Path::new(""), || Err(failure))
}

/// Runs what the command line asks for.
pub fn run(arguments: Arguments) -> Result<(), Failure> {
    let quiet = arguments.quiet;
    match arguments.command {
        Command::Train(arguments) => train::run(&arguments, quiet),
        Command::Launch(arguments) => launch::run(&arguments),
        Command::Pretrain(arguments) => pretrain::run(&arguments, quiet),
        Command::Sample(arguments) => sample::run(&arguments, quiet),
        Command::Encode(arguments) => encode::run(&arguments, quiet),
        Command::Decode(arguments) => decode::run(&arguments, quiet),
        Command::Eval(arguments) => eval::run(&arguments, quiet),
        Command::Check(arguments) => check::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Audit(arguments) => audit::run(&arguments, quiet),
        Command::Drift(arguments) => drift::run(&arguments, quiet),
        Command::Calibrate(arguments) => calibrate::run(&arguments, quiet),
        Command::Schema => schema::run(),
        Command::List { what } => list::run(what),
        Command::Explain { key } => explain::run(&key),
        Command::Init(arguments) => init::run(&arguments),
        Command::Doctor => doctor::run(),
        Command::Report { run } => report::run(&run),
        Command::Migrate { config, write } => migrate::run(&config, write),
        Command::Import {
            yaml,
            out,
            there,
            all_notes,
        } => import::run(&yaml, out.as_deref(), there.on_exists, all_notes),
        Command::Fetch(arguments) => fetch::run(&arguments, quiet),
        Command::Completions { shell } => completions::run(shell),
    }
}
