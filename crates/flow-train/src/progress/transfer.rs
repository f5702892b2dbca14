//! How many bytes of a known number are there, and how long the rest will take.

use crate::terminal;
use flow_report::{BYTES_PER_GIB, Stopwatch, human_duration};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Seconds between two lines where there is no terminal.
const BETWEEN_LINES_S: f64 = 10.0;

/// A bar on a terminal, a line every ten seconds elsewhere.
pub struct Transfer {
    watch: Stopwatch,
    /// What is being done, and the bytes and seconds at which that began: what was there before says nothing about the speed.
    began: Option<(&'static str, u64, f64)>,
    said_s: f64,
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Transfer {
    /// Nothing is done.
    pub fn new(quiet: bool) -> Self {
        let bar = (!quiet && terminal::stderr_is_terminal()).then(|| {
            let style = ProgressStyle::with_template(
                "{prefix} {msg}\n{wide_bar} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta} left",
            );
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(0).with_style(style.progress_chars("━╸ "));
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self {
            watch: Stopwatch::start(),
            began: None,
            said_s: 0.0,
            bar,
            quiet,
        }
    }

    /// `done_bytes` of `all_bytes` are there, the last of them of `file`.
    pub fn show(&mut self, what: &'static str, file: &str, done_bytes: u64, all_bytes: u64) {
        let wall_s = self.watch.wall_s();
        let began = self.began.filter(|(began, ..)| *began == what);
        let (_, from_bytes, from_s) = *self.began.insert(began.unwrap_or((what, done_bytes, wall_s)));
        if let Some(bar) = &self.bar {
            if began.is_none() {
                bar.set_prefix(what);
                bar.set_length(all_bytes);
                // The rate is that of this process.
                bar.set_position(done_bytes);
                bar.reset_eta();
            }
            bar.set_message(file.to_owned());
            bar.set_position(done_bytes);
            return;
        }
        if self.quiet || done_bytes == all_bytes || wall_s - self.said_s < BETWEEN_LINES_S {
            return;
        }
        self.said_s = wall_s;
        let left_s = (wall_s - from_s) / done_bytes.saturating_sub(from_bytes) as f64
            * all_bytes.saturating_sub(done_bytes) as f64;
        terminal::note(&format!(
            "{what} {file}: {} of {}, about {} left",
            size(done_bytes),
            size(all_bytes),
            human_duration(left_s)
        ));
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// An amount of bytes as people read it.
pub fn size(bytes: u64) -> String {
    let gib = bytes as f64 / BYTES_PER_GIB;
    match bytes {
        0..0x400 => format!("{bytes} bytes"),
        0x400..0x10_0000 => format!("{:.1} KiB", gib * 1024.0 * 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", gib * 1024.0),
        _ => format!("{gib:.2} GiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_the_unit_that_fits() {
        let amounts = [0, 1023, 1536, 5 << 20, (5 << 30) / 2];
        assert_eq!(
            amounts.map(size),
            ["0 bytes", "1023 bytes", "1.5 KiB", "5.0 MiB", "2.50 GiB"]
        );
    }
}
