//! Progress bars: one for the run, one below it for the phase.

use super::{evaluation, numbers, phase_name};
use crate::interrupt::Interrupt;
use flow_report::{Interval, Stopwatch, human_duration};
use flow_trainer::observer::{IterationSummary, Observer, Phase};
use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bars on standard error.
pub struct Bars {
    all: MultiProgress,
    run: ProgressBar,
    phase: ProgressBar,
    interrupt: Interrupt,
    pace: Arc<Mutex<Pace>>,
    pretraining: bool,
}

/// How fast this process goes; what an earlier one did says nothing about it.
struct Pace {
    watch: Stopwatch,
    seen: u64,
    left: u64,
}

impl Pace {
    fn text(&self) -> String {
        let wall_s = self.watch.wall_s();
        if self.seen == 0 || wall_s <= 0.0 {
            return "?".into();
        }
        let rate = self.seen as f64 / wall_s;
        format!("{rate:.1}/s  {} left", human_duration(self.left as f64 / rate))
    }
}

impl Bars {
    /// Bars for a run of `iterations`.
    pub fn new(iterations: u64, interrupt: Interrupt) -> Self {
        let all = MultiProgress::new();
        let pace = Arc::new(Mutex::new(Pace {
            watch: Stopwatch::start(),
            seen: 0,
            left: iterations,
        }));
        let shown = pace.clone();
        let pace_text = move |_: &ProgressState, out: &mut dyn Write| {
            if let Ok(pace) = shown.lock() {
                let _ = write!(out, "{}", pace.text());
            }
        };
        let with_pace =
            style("{msg}\n{prefix:11} {wide_bar} {pos}/{len}  {pace}").with_key("pace", pace_text);
        let run = all.add(ProgressBar::new(iterations).with_style(with_pace));
        let phase =
            all.add(ProgressBar::new(0).with_style(style("{prefix:11} {wide_bar} {pos}/{len}  {rate}")));
        run.set_prefix("iterations");
        run.enable_steady_tick(Duration::from_millis(250));
        Self {
            all,
            run,
            phase,
            interrupt,
            pace,
            pretraining: false,
        }
    }

    /// A line above the bars.
    fn say(&self, text: &str) {
        // That the terminal is gone is no reason to stop a run.
        let _ = self.all.println(text);
    }
}

/// A style; the templates are constants, and one that cannot be read falls back to indicatif's own.
fn style(template: &str) -> ProgressStyle {
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        // A rate that cannot be written is a rate that nobody reads.
        let _ = write!(out, "{:.1}/s", state.per_sec());
    };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("rate", rate)
        .progress_chars("━╸ ")
}

impl Observer for Bars {
    fn phase(&mut self, phase: Phase, units: usize) {
        self.pretraining = phase == Phase::Pretraining;
        self.phase.set_prefix(phase_name(phase));
        self.phase.set_length(units as u64);
        self.phase.set_position(0);
        self.phase.reset_eta();
    }

    fn advance(&mut self, units: usize) {
        self.phase.inc(units as u64);
    }

    fn iteration(&mut self, summary: &IterationSummary) {
        self.run.set_length(summary.total);
        if let Ok(mut pace) = self.pace.lock() {
            pace.seen += 1;
            pace.left = summary.total.saturating_sub(summary.done);
        }
        self.run.set_position(summary.done);
        self.run.set_message(numbers(summary, self.pretraining));
    }

    fn evaluation(&mut self, step: u64, rewards: &[(String, Interval)]) {
        self.say(&evaluation(step, rewards));
    }

    fn notice(&mut self, text: &str) {
        self.say(&format!("note: {text}"));
    }

    fn interrupted(&self) -> bool {
        self.interrupt.requested()
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.phase.finish_and_clear();
        // What it showed is said again by whoever ends the run; a bar that stands still would look like one that works.
        self.run.finish_and_clear();
    }
}
