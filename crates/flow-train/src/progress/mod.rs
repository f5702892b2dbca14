//! What a person sees of a run: bars on a terminal, lines elsewhere, or nothing.

mod bars;
mod count;
mod lines;
mod transfer;
#[cfg(feature = "tui")]
mod tui;

#[cfg(feature = "tui")]
pub use tui::Tui;

pub use count::Count;
pub use transfer::{Transfer, size};

use crate::interrupt::Interrupt;
use crate::terminal;
use flow_report::Interval;
use flow_trainer::observer::{IterationSummary, Observer, Phase};

/// An observer for standard error as it is. `every` is the number of iterations between lines.
pub fn observer(iterations: u64, every: u64, quiet: bool, interrupt: Interrupt) -> Box<dyn Observer> {
    if quiet {
        Box::new(Quiet { interrupt })
    } else if terminal::stderr_is_terminal() {
        Box::new(bars::Bars::new(iterations, interrupt))
    } else {
        Box::new(lines::Lines::new(every, interrupt))
    }
}

/// Says nothing, and still lets the user interrupt.
struct Quiet {
    interrupt: Interrupt,
}

impl Observer for Quiet {
    fn interrupted(&self) -> bool {
        self.interrupt.requested()
    }
}

/// A phase in a word or two.
fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Exploration => "exploring",
        Phase::Rollout => "sampling",
        Phase::Rewards => "rewards",
        Phase::Update => "updating",
        Phase::Evaluation => "evaluating",
        Phase::Pretraining => "pretraining",
    }
}

/// The numbers of an iteration. Pretraining has a loss and no reward, and neither have runs that learn from records.
fn numbers(summary: &IterationSummary, pretraining: bool) -> String {
    let mut text = if pretraining || summary.reward.is_nan() {
        String::new()
    } else {
        format!("reward {:.4}  ", summary.reward)
    };
    text.push_str(&format!(
        "loss {}  grad {:.3}",
        short(summary.loss),
        summary.gradient_norm
    ));
    if let Some(kl) = summary.kl {
        text.push_str(&format!("  kl {}", short(kl)));
    }
    if let Some(share) = summary.clip_fraction {
        text.push_str(&format!("  clipped {:.0} %", 100.0 * share));
    }
    text.push_str(&format!("  lr {}", rate(summary.learning_rate)));
    if let Some(deviation) = summary.max_ratio_deviation {
        text.push_str(&format!("  |ratio-1| {}", short(f64::from(deviation))));
    }
    text
}

/// A learning rate as people write them.
fn rate(value: f64) -> String {
    let text = format!("{value:.2e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            format!("{digits}e{exponent}")
        }
        None => text,
    }
}

/// A number in at most ten characters, small ones included.
fn short(value: f64) -> String {
    if value == 0.0 {
        "0".into()
    } else if value.abs() < 1e-3 || value.abs() >= 1e4 {
        format!("{value:.2e}")
    } else {
        format!("{value:.4}")
    }
}

/// An evaluation in a line.
fn evaluation(step: u64, rewards: &[(String, Interval)]) -> String {
    let rewards: Vec<String> = rewards
        .iter()
        .map(|(name, interval)| format!("{name} {}", interval.text(4)))
        .collect();
    format!("held-out prompts after iteration {step}: {}", rewards.join(", "))
}
