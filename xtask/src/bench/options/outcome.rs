//! What a setting came to, and whether that is more than chance.

use crate::bench::iterations;
use crate::bench::result::median;
use anyhow::{Context, Result};
use flow_report::Metrics;
use serde_json::{Value, json};
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;

/// Differences below this share are never an effect, however little the runs without options differ.
const LEAST_EFFECT: f64 = 0.005;

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Measured {
    /// The program takes no such option here, and why.
    Refused(String),
    /// It ran.
    Ran(Run),
}

/// A run that ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    /// Median of the iterations of the last half.
    pub iteration_s: f64,
    /// The whole process, less the iterations, each at that pace at most: loading, compiling, first uses.
    pub start_s: f64,
    /// The most that the device's pools held, where there is such a number.
    pub peak_gib: Option<f64>,
    /// The metrics, byte for byte.
    pub metrics: String,
}

impl Measured {
    /// The run in a folder, whose process took `wall_s`.
    pub fn read(folder: &Path, wall_s: f64) -> Result<Self> {
        let timing = Metrics::read(&folder.join("timing.jsonl"))?;
        let seconds: Vec<f64> = iterations::seconds(&timing).into_values().collect();
        let tail = &seconds[seconds.len() / 2..];
        let iteration_s = median(tail);
        if !iteration_s.is_finite() {
            anyhow::bail!("{} has no timed iteration", folder.display());
        }
        let held = ["rollout_gib", "update_gib"].map(|key| timing.series("device_memory", key));
        let held = held.into_iter().flatten().map(|(_, gib)| gib);
        let metrics = folder.join("metrics.jsonl");
        Ok(Self::Ran(Run {
            iteration_s,
            start_s: wall_s
                - seconds
                    .iter()
                    .map(|seconds| seconds.min(iteration_s))
                    .sum::<f64>(),
            peak_gib: held.reduce(f64::max),
            metrics: fs::read_to_string(&metrics).with_context(|| format!("no {}", metrics.display()))?,
        }))
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Ran(run) => write!(
                f,
                "{:.2} ms an iteration, {:.2} s to start",
                run.iteration_s * 1e3,
                run.start_s
            ),
        }
    }
}

/// A setting with its runs, one for each seed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome {
    name: String,
    runs: Vec<Run>,
    refused: Option<String>,
}

/// What is to be said of a setting.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// What the others are compared with.
    Baseline,
    /// Nothing that every seed shows.
    NoEffect,
    /// Shares of the time that it saves (or costs, negative): the least and the most of the seeds.
    Faster(f64, f64),
    Slower(f64, f64),
    /// It computes something else.
    OtherBits,
    Refused(String),
}

impl Outcome {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            runs: Vec::new(),
            refused: None,
        }
    }

    pub fn add(&mut self, measured: Measured) {
        match measured {
            Measured::Ran(run) => self.runs.push(run),
            Measured::Refused(why) => self.refused = Some(why),
        }
    }

    fn of(&self, value: fn(&Run) -> f64) -> Vec<f64> {
        self.runs.iter().map(value).collect()
    }
}

/// The share of `before` that `after` saves, seed by seed.
fn saved(before: &[f64], after: &[f64]) -> Vec<f64> {
    before
        .iter()
        .zip(after)
        .map(|(before, after)| 1.0 - after / before)
        .collect()
}

/// By how much the two baselines differ, at most: what chance alone does.
pub(super) fn noise(first: &Outcome, second: &Outcome) -> f64 {
    let seconds: fn(&Run) -> f64 = |run| run.iteration_s;
    let apart = saved(&first.of(seconds), &second.of(seconds));
    apart.into_iter().map(f64::abs).fold(LEAST_EFFECT, f64::max)
}

/// What a setting does to the time of an iteration, beside the mean of two baselines.
pub(super) fn verdict(outcome: &Outcome, first: &Outcome, second: &Outcome) -> Verdict {
    if let Some(why) = &outcome.refused {
        return Verdict::Refused(why.clone());
    }
    let same = |(run, of): (&Run, &Run)| run.metrics == of.metrics;
    if !outcome.runs.iter().zip(&first.runs).all(same) {
        return Verdict::OtherBits;
    }
    let seconds: fn(&Run) -> f64 = |run| run.iteration_s;
    let pairs = first.of(seconds).into_iter().zip(second.of(seconds));
    let baseline: Vec<f64> = pairs.map(|(one, two)| (one + two) / 2.0).collect();
    let saved = saved(&baseline, &outcome.of(seconds));
    let least = saved.iter().copied().fold(f64::INFINITY, f64::min);
    let most = saved.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let noise = noise(first, second);
    if least > noise {
        Verdict::Faster(least, most)
    } else if most < -noise {
        Verdict::Slower(least, most)
    } else {
        Verdict::NoEffect
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: &f64| format!("{:.1}", 100.0 * share.abs());
        match self {
            Self::Baseline => f.write_str("–"),
            Self::NoEffect => f.write_str("no effect"),
            Self::Faster(least, most) => write!(f, "**{} to {} % less time**", percent(least), percent(most)),
            Self::Slower(least, most) => write!(f, "{} to {} % more time", percent(most), percent(least)),
            Self::OtherBits => f.write_str("**computes something else**"),
            Self::Refused(why) => write!(f, "not here: {why}"),
        }
    }
}

fn verdicts(outcomes: &[Outcome]) -> Vec<Verdict> {
    let [first, second, tried @ ..] = outcomes else {
        return Vec::new();
    };
    let of_tried = tried.iter().map(|outcome| verdict(outcome, first, second));
    let same = |(run, of): (&Run, &Run)| run.metrics == of.metrics;
    let again = match first.runs.iter().zip(&second.runs).all(same) {
        true => Verdict::Baseline,
        false => Verdict::OtherBits,
    };
    [Verdict::Baseline, again].into_iter().chain(of_tried).collect()
}

/// The table, and what it recommends.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let verdicts = verdicts(outcomes);
    let mut text = String::from(
        "| setting | iteration, each seed (ms) | to start (s) | pools (GiB) | verdict |\n|---|---|---|---|---|\n",
    );
    let list = |values: Vec<f64>, digits: usize| {
        let worded: Vec<String> = values.iter().map(|value| format!("{value:.digits$}")).collect();
        if worded.is_empty() {
            "–".to_owned()
        } else {
            worded.join(", ")
        }
    };
    for (outcome, verdict) in outcomes.iter().zip(&verdicts) {
        let peak = outcome
            .runs
            .iter()
            .filter_map(|run| run.peak_gib)
            .reduce(f64::max);
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {verdict} |",
            outcome.name,
            list(outcome.of(|run| run.iteration_s * 1e3), 2),
            list(outcome.of(|run| run.start_s), 2),
            list(peak.into_iter().collect(), 2),
        );
    }
    if let [first, second, ..] = outcomes {
        let _ = writeln!(
            text,
            "\nRuns without options differ by {:.1} % at most; less than that, or not with every seed, is no effect.",
            100.0 * noise(first, second)
        );
    }
    let helps = outcomes
        .iter()
        .zip(&verdicts)
        .filter(|(_, verdict)| matches!(verdict, Verdict::Faster(..)));
    let names: Vec<String> = helps.map(|(outcome, _)| format!("`{}`", outcome.name)).collect();
    let _ = match names.as_slice() {
        [] => writeln!(text, "\nRecommended: no option."),
        names => writeln!(text, "\nRecommended: {}.", names.join(", ")),
    };
    text
}

/// The same as data.
pub(super) fn document(about: &Value, outcomes: &[Outcome]) -> Value {
    let rows = outcomes.iter().zip(verdicts(outcomes)).map(|(outcome, verdict)| {
        json!({
            "setting": outcome.name,
            "iteration_s": outcome.of(|run| run.iteration_s),
            "start_s": outcome.of(|run| run.start_s),
            "peak_gib": outcome.runs.iter().filter_map(|run| run.peak_gib).reduce(f64::max),
            "verdict": verdict.to_string().replace("**", ""),
        })
    });
    json!({ "about": about, "settings": rows.collect::<Vec<_>>() })
}
