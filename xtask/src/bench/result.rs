//! What was measured, and how it is told.

#[cfg(test)]
mod tests;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The parts, in the order in which they are told.
const PARTS: &[(&str, &str)] = &[
    ("rollout", "rollout of a micro-batch"),
    ("rollout_guided", "rollout, guided (both branches in one batch)"),
    ("unit", "loss and backward"),
    ("unit_guided", "loss and backward, guided"),
    ("optimizer", "clipping and AdamW step"),
];

/// One program with the medians of its rounds, in milliseconds.
#[derive(Debug)]
pub struct Contender {
    name: String,
    medians: BTreeMap<String, Vec<f64>>,
    peaks_gib: Vec<f64>,
    others: Vec<f64>,
}

/// One job measured.
#[derive(Debug)]
pub struct Outcome {
    /// Config.
    pub config: String,
    /// Shapes and counts, as `step_speed` describes them.
    pub job: Value,
    /// How far the programs' results are apart.
    pub agreement: Value,
    /// The programs, flow-train first.
    pub contenders: Vec<Contender>,
}

/// The middle value, or the mean of the two in the middle; NaN of none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

fn range(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

impl Contender {
    /// Without measurements yet.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            medians: BTreeMap::new(),
            peaks_gib: Vec::new(),
            others: Vec::new(),
        }
    }

    /// Adds the measurements of a round, during which others used the share `others` of the processor.
    pub fn add(&mut self, found: &Value, others: f64) -> Result<()> {
        for (part, _) in PARTS {
            let values = found["wall_ms"][part]
                .as_array()
                .with_context(|| format!("no times of `{part}`"))?;
            let values: Vec<f64> = values.iter().filter_map(Value::as_f64).collect();
            self.medians
                .entry((*part).into())
                .or_default()
                .push(median(&values));
        }
        self.others.push(others);
        self.peaks_gib.extend(found["peak_gib"].as_f64());
        Ok(())
    }

    /// The last round in one line.
    pub fn last(&self) -> String {
        let last = |part: &str| self.medians[part].last().copied().unwrap_or(f64::NAN);
        let parts: Vec<String> = PARTS
            .iter()
            .map(|(part, _)| format!("{part} {:.2}", last(part)))
            .collect();
        format!("{}: {} ms", self.name, parts.join(", "))
    }

    /// Milliseconds of an iteration of the job, by round: as many of each part as the job has.
    fn iterations(&self, job: &Value) -> Vec<f64> {
        let count = |what: &str| job["per_iteration"][what].as_f64().unwrap_or(0.0);
        let rounds = self.medians["rollout"].len();
        let of = |part: &str, round: usize| self.medians[part][round];
        (0..rounds)
            .map(|round| {
                count("rollouts") * of("rollout", round)
                    + count("units") * of("unit", round)
                    + count("optimizer_steps") * of("optimizer", round)
            })
            .collect()
    }

    fn series(&self, part: &str, job: &Value) -> Vec<f64> {
        if part == "iteration" {
            self.iterations(job)
        } else {
            self.medians[part].clone()
        }
    }
}

impl Outcome {
    /// All numbers.
    pub fn json(&self) -> Value {
        let contenders: Vec<Value> = self
            .contenders
            .iter()
            .map(|one| {
                json!({
                    "name": one.name,
                    "medians_ms_by_round": one.medians,
                    "iteration_ms_by_round": one.iterations(&self.job),
                    "peak_gib": median(&one.peaks_gib),
                    "share_of_processor_used_by_others_by_round": one.others,
                })
            })
            .collect();
        json!({ "config": self.config, "job": self.job, "agreement": self.agreement, "contenders": contenders })
    }

    fn tell(&self, text: &mut String) -> std::fmt::Result {
        let settings = &self.job["settings"];
        writeln!(
            text,
            "## {}\n\nDiT of width {}, {} blocks, {} heads, {} parameters; micro-batch {}, {} sampler steps; f32.\n",
            self.config,
            settings["hidden"],
            settings["layers"],
            settings["heads"],
            self.job["parameters"],
            self.job["micro_batch"],
            self.job["steps"]
        )?;
        let (ours, peers) = self.contenders.split_first().expect("flow-train is measured");
        write!(text, "| part | {} (ms) |", ours.name)?;
        for peer in peers {
            write!(text, " {} (ms) | speed of flow-train relative to it |", peer.name)?;
        }
        write!(text, "\n|---|---|")?;
        writeln!(text, "{}", "---|---|".repeat(peers.len()))?;
        let whole = [("iteration", "**one iteration of the job**")];
        for (part, title) in whole.iter().chain(PARTS) {
            let mine = ours.series(part, &self.job);
            write!(text, "| {title} | {} |", spread(&mine, 2))?;
            for peer in peers {
                let theirs = peer.series(part, &self.job);
                let ratios: Vec<f64> = theirs.iter().zip(&mine).map(|(peer, ours)| peer / ours).collect();
                write!(text, " {} | {} |", spread(&theirs, 2), spread(&ratios, 2))?;
            }
            writeln!(text)?;
        }
        let peaks: Vec<String> = self
            .contenders
            .iter()
            .map(|one| format!("{} {:.2}", one.name, median(&one.peaks_gib)))
            .collect();
        writeln!(text, "\nPeak resident memory in GiB: {}.", peaks.join(", "))?;
        let others = self
            .contenders
            .iter()
            .flat_map(|one| one.others.iter().copied())
            .fold(0.0, f64::max);
        writeln!(
            text,
            "\nOther programs used at most {:.1} % of the processor during a measurement.",
            100.0 * others
        )?;
        writeln!(
            text,
            "\nRelative L2 distance of the results: `{}`.\n",
            self.agreement["relative_l2"]
        )
    }
}

/// `median (least to largest)`.
fn spread(values: &[f64], digits: usize) -> String {
    let (least, most) = range(values);
    format!(
        "{:.digits$} ({least:.digits$} to {most:.digits$})",
        median(values)
    )
}

/// The page.
pub fn report(about: &Value, outcomes: &[Outcome]) -> String {
    let say = |key: &str| {
        about[key]
            .as_str()
            .map_or_else(|| about[key].to_string(), str::to_owned)
    };
    let mut text = format!(
        "# Speed on the processor, {}\n\n{}, {} threads each; {}; PyTorch {}. flow-train computes as many \
         micro-batches beside one another as it has threads, as its runs do, and its times are per micro-batch; PyTorch \
         splits operations. {} rounds, in each of which every program ran once, in turns; a cell is the median over rounds of the median of {} measurements, with the least and \
         the largest round. A relative speed above 1 means that flow-train is faster; it is formed within a round.\n\n\
         Written by `cargo xtask bench cpu`. Before timing, both programs computed the same rollout, loss, gradients \
         and optimizer step from the same weights, inputs and noise, and agreed.\n\n",
        say("date"),
        say("processor"),
        say("threads"),
        say("rustc"),
        say("torch"),
        say("rounds"),
        say("repeats"),
    );
    for outcome in outcomes {
        outcome.tell(&mut text).expect("writing to a string cannot fail");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
