//! How a command fails: a message for a person and an exit code.

use crate::{diagnostics, terminal};
use flow_config::Report;
use flow_core::Stopped;
use std::error::Error;
use std::fmt;
use std::process::ExitCode;

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub enum Failure {
    /// The input cannot be used; nothing was run. Exit code 2.
    Input(String),
    /// As [`Failure::Input`], with everything that is wrong with a config.
    Config(Box<Report>),
    /// As [`Failure::Input`], and the result says so already.
    Said,
    /// The run failed. Exit code 1.
    Run(String),
    /// A panic: a defect of the program, or memory that ran out. Exit code 101, as Rust has it.
    Defect(String),
    /// The user stopped the run, its state is saved. Exit code 130, as shells have it for SIGINT.
    Interrupted,
    /// Nobody reads standard output any more. What was done is done, so the exit code is 0; a command that had more to do
    /// fails with [`Failure::CutOff`] instead.
    Unread,
    /// Nobody reads standard output any more, and the command was not done. Exit code 141, as shells have it for SIGPIPE.
    CutOff,
}

impl Failure {
    /// Prints the message and gives the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Self::Input(message) => {
                terminal::error(message);
                ExitCode::from(2)
            }
            Self::Config(report) => {
                terminal::note(diagnostics::render(report, terminal::stderr_is_terminal()).trim_end());
                ExitCode::from(2)
            }
            Self::Run(message) => {
                terminal::error(message);
                ExitCode::from(1)
            }
            Self::Defect(message) => {
                terminal::error(&format!(
                    "{message}. This is a defect of flow-train, or memory ran out; please report it with the lines above"
                ));
                ExitCode::from(101)
            }
            Self::Said => ExitCode::from(2),
            Self::Interrupted => ExitCode::from(130),
            Self::Unread => ExitCode::SUCCESS,
            Self::CutOff => ExitCode::from(141),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(message) | Self::Run(message) | Self::Defect(message) => f.write_str(message),
            Self::Config(report) => f.write_str(&diagnostics::render(report, false)),
            Self::Said => f.write_str("the input cannot be used"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Unread | Self::CutOff => f.write_str("nobody reads standard output"),
        }
    }
}

/// Shows the warnings of a config; errors become a failure.
pub fn settle(report: &Report) -> Result<(), Failure> {
    if report.diagnostics.is_empty() {
        return Ok(());
    }
    if report.has_errors() {
        return Err(Failure::Config(Box::new(report.clone())));
    }
    terminal::note(diagnostics::render(report, terminal::stderr_is_terminal()).trim_end());
    Ok(())
}

impl From<Stopped> for Failure {
    fn from(stopped: Stopped) -> Self {
        match stopped.is_defect() {
            true => Self::Defect(stopped.to_string()),
            false => Self::Run(stopped.to_string()),
        }
    }
}

/// Turns errors of libraries into failures.
pub trait OrFailure<T> {
    /// The input is to blame.
    fn or_bad_input(self) -> Result<T, Failure>;
    /// The run failed.
    fn or_failed(self) -> Result<T, Failure>;
}

impl<T, E: Error> OrFailure<T> for Result<T, E> {
    fn or_bad_input(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Input(chain(&error)))
    }

    fn or_failed(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Run(chain(&error)))
    }
}

/// An error with its causes, each said once: many messages contain their cause already.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
