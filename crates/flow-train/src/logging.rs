//! Log messages of the libraries, on standard error.

use crate::arguments::LogLevel;
use tracing_subscriber::EnvFilter;

/// Starts logging. The level is the command line's; no environment variable plays a part.
pub fn start(level: LogLevel) {
    let directive = match level {
        LogLevel::Off => "off",
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(directive))
        .with_writer(std::io::stderr)
        .with_ansi(crate::terminal::stderr_is_terminal())
        .init();
}
