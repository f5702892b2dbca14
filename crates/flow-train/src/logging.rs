//! Log messages of the libraries, on standard error.

use crate::arguments::LogLevel;
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Warnings of libraries that mean nothing is wrong.
///
/// Kernels are compiled by several threads at once (`flow-precompile`): where two compile the same one, CubeCL warns that it finds
/// on the disk what it was about to write there.
const ROUTINE: [&str; 1] = ["Unable to cache the compiled kernel: another process stored the key first"];

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
    let colour = crate::terminal::stderr_is_terminal();
    messages(directive, std::io::stderr, colour).init();
}

/// What writes the messages of this level and above.
fn messages<W>(directive: &str, writer: W, colour: bool) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    tracing_subscriber::registry()
        .with(EnvFilter::new(directive))
        .with(WithoutRoutine)
        .with(
            tracing_subscriber::fmt::layer()
                .with_writer(writer)
                .with_ansi(colour),
        )
}

/// Leaves [`ROUTINE`] messages out.
struct WithoutRoutine;

impl<S: Subscriber> Layer<S> for WithoutRoutine {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let mut is_routine = IsRoutine(false);
        event.record(&mut is_routine);
        !is_routine.0
    }
}

struct IsRoutine(bool);

impl Visit for IsRoutine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let message = format!("{value:?}");
            self.0 |= ROUTINE.contains(&message.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no test panics here").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_kernel_that_two_threads_compiled_is_no_warning_and_one_that_was_not_kept_is() {
        let written = Written::default();
        let to = written.clone();
        tracing::subscriber::with_default(messages("warn", move || to.clone(), false), || {
            for why in ["another process stored the key first", "no space left on device"] {
                tracing::warn!("Unable to cache the compiled kernel: {}", why);
            }
            tracing::info!("nothing");
        });
        let text = String::from_utf8(written.0.lock().expect("no test panics here").clone());
        let text = text.expect("text");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("no space left on device"), "{text}");
    }
}
