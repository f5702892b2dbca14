//! How many of a known number of things are done, and how long the rest will take.

use crate::terminal;
use flow_report::{Stopwatch, human_duration};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Seconds between two lines where there is no terminal.
const BETWEEN_LINES_S: f64 = 10.0;

/// A bar on a terminal, a line every ten seconds elsewhere.
pub struct Count {
    what: &'static str,
    all: u64,
    done: u64,
    watch: Stopwatch,
    said_s: f64,
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Count {
    /// None of `all` is done.
    pub fn new(what: &'static str, all: u64, quiet: bool) -> Self {
        let bar = (!quiet && terminal::stderr_is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len}  {eta} left");
            let bar = ProgressBar::new(all)
                .with_style(
                    style
                        .unwrap_or_else(|_| ProgressStyle::default_bar())
                        .progress_chars("━╸ "),
                )
                .with_prefix(what);
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self {
            what,
            all,
            done: 0,
            watch: Stopwatch::start(),
            said_s: 0.0,
            bar,
            quiet,
        }
    }

    /// Lets `print` write to the terminal that the bar is on.
    pub fn print_above<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// One more is done.
    pub fn advance(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            return bar.inc(1);
        }
        let wall_s = self.watch.wall_s();
        if self.quiet || self.done == self.all || wall_s - self.said_s < BETWEEN_LINES_S {
            return;
        }
        self.said_s = wall_s;
        let left_s = wall_s / self.done as f64 * (self.all - self.done) as f64;
        terminal::note(&format!(
            "{} of {} {}, about {} left",
            self.done,
            self.all,
            self.what,
            human_duration(left_s)
        ));
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
