//! The `flow-train` command. Results go to standard output; progress, notes and errors to standard error.

mod arguments;
mod command_line;
mod commands;
mod diagnostics;
mod failure;
mod interrupt;
mod logging;
mod named_devices;
mod output;
mod picture_size;
mod progress;
mod terminal;

use clap::Parser;
use failure::Failure;
use flow_core::stopped;
use flow_train::checkpoint::CountingAllocator;
use std::process::ExitCode;

/// Counts what is in use, so that a budget of memory can be planned and kept.
#[global_allocator]
static MEMORY: CountingAllocator = CountingAllocator::new();

/// A path of the command line that begins with `~` or `~name/`. A shell expands it in a word of its own, not behind `=` and not in
/// quotes; taken as it stands it would be a folder of that name.
fn unexpanded_home() -> Option<String> {
    let words = std::env::args_os().skip(1);
    let mut words = words.map(|word| word.to_string_lossy().into_owned());
    words.find(|word| {
        let value = match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => value,
            _ => word.as_str(),
        };
        // No name of a person begins with a digit, and a prompt may: `~50/50`.
        let is_name = |name: &str| {
            !name.starts_with(|c: char| c.is_ascii_digit())
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let below = value.strip_prefix('~').and_then(|rest| rest.split_once('/'));
        value == "~" || below.is_some_and(|(name, _)| is_name(name))
    })
}

/// Whether the command line asks for JSON, as far as it can be read.
fn is_json_asked_for() -> bool {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let is = |word: &std::ffi::OsString, text: &str| word == text;
    let by_itself = words
        .windows(2)
        .any(|pair| is(&pair[0], "--format") && is(&pair[1], "json"));
    by_itself || words.iter().any(|word| is(word, "--format=json"))
}

/// A command line that no command can be run of, said as it asks to be told.
fn refused(message: String) -> ExitCode {
    let failure = Failure::Input(message);
    match is_json_asked_for() {
        true => commands::as_json(failure).map_or_else(|said| said.report(), |()| ExitCode::SUCCESS),
        false => failure.report(),
    }
}

fn main() -> ExitCode {
    if let Some(word) = unexpanded_home() {
        return refused(format!(
            "`~` is not expanded in `{word}`: write the path out, or $HOME; a folder that is called so is `./~`"
        ));
    }
    let arguments = match arguments::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() && is_json_asked_for() => {
            let message = error.to_string();
            return refused(message.trim_start_matches("error: ").trim_end().to_owned());
        }
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
