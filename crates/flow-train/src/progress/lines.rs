//! Plain lines, for logs and pipes.

use super::{evaluation, numbers};
use crate::interrupt::Interrupt;
use crate::terminal;
use flow_report::{Interval, Stopwatch, human_duration};
use flow_trainer::observer::{IterationSummary, Observer, Phase};

/// One line per iteration and per evaluation.
pub struct Lines {
    every: u64,
    interrupt: Interrupt,
    watch: Stopwatch,
    /// Iterations that this process has seen; a resumed run does not begin at 0.
    seen: u64,
    pretraining: bool,
}

impl Lines {
    /// A line every `every` iterations, and one for the last.
    pub fn new(every: u64, interrupt: Interrupt) -> Self {
        Self {
            every: every.max(1),
            interrupt,
            watch: Stopwatch::start(),
            seen: 0,
            pretraining: false,
        }
    }
}

impl Observer for Lines {
    fn phase(&mut self, phase: Phase, _units: usize) {
        self.pretraining = phase == Phase::Pretraining;
    }

    fn iteration(&mut self, summary: &IterationSummary) {
        self.seen += 1;
        let IterationSummary {
            done,
            total,
            images,
            wall_s,
            ..
        } = *summary;
        if !done.is_multiple_of(self.every) && done != total {
            return;
        }
        let left_s = self.watch.wall_s() / self.seen as f64 * total.saturating_sub(done) as f64;
        terminal::note(&format!(
            "{} {done}/{total}  {}  {:.2} s ({:.0} images/s)  {} left",
            if self.pretraining { "step" } else { "iteration" },
            numbers(summary, self.pretraining),
            wall_s,
            images as f64 / wall_s.max(1e-9),
            human_duration(left_s)
        ));
    }

    fn evaluation(&mut self, step: u64, rewards: &[(String, Interval)]) {
        terminal::note(&evaluation(step, rewards));
    }

    fn notice(&mut self, text: &str) {
        terminal::note(&format!("note: {text}"));
    }

    fn interrupted(&self) -> bool {
        self.interrupt.requested()
    }
}
