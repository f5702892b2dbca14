//! `cargo xtask bench checkpoint`: a training step under every policy of activation checkpointing: time, peak of memory,
//! operations, and what the planner predicted.

use super::{date, processor};
use crate::process::{cargo, output, run as run_command};
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use clap::Args;
use flow_report::{LineChart, Series};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// How to measure policies.
#[derive(Debug, Args)]
pub struct Options {
    /// Where the model computes: `cpu`, or `cuda` in a program built with that feature.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// The model and its batch as JSON (see `crates/flow-checkpoint/examples/policy_speed.rs`); without it, a DiT that a
    /// processor trains in a second.
    #[arg(long)]
    problem: Option<String>,
    /// Our program, if it is built already.
    #[arg(long)]
    program: Option<PathBuf>,
    /// Rounds; in each, every policy runs once, in an order that turns.
    #[arg(long, default_value_t = 9)]
    repeats: usize,
    /// Budgets between the smallest and the peak of keeping everything.
    #[arg(long, default_value_t = 4)]
    budgets: usize,
    /// Threads on the processor.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Where the results go.
    #[arg(long, default_value = "docs/src/performance")]
    to: PathBuf,
}

const MIB: f64 = (1u64 << 20) as f64;

/// What is measured without a problem: 1024 tokens of 64 channels in 12 blocks, so that attention is three quarters of
/// the work, as it is of a video model's.
fn default_problem() -> Value {
    json!({
        "architecture": "dit",
        "settings": {
            "latent": { "channels": 4, "height": 32, "width": 32 },
            "patch": 1, "hidden": 64, "layers": 12, "heads": 2, "qk_norm": true, "position": "rope",
        },
        "rows": 1,
    })
}

/// Measures, prints the table and writes it with the figure.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.repeats == 0 || options.threads == 0 {
        bail!("--repeats and --threads must be at least 1");
    }
    let program = match &options.program {
        Some(program) => program.clone(),
        None => {
            let mut package = vec!["build", "--release", "--package", "flow-checkpoint"];
            package.extend(["--example", "policy_speed"]);
            if options.device == "cuda" {
                package.extend(["--features", "cuda"]);
            }
            run_command(&mut cargo(workspace, &package))?;
            workspace.release_folder()?.join("examples").join("policy_speed")
        }
    };
    let mut problem = match &options.problem {
        Some(text) => serde_json::from_str(text).context("--problem is no JSON")?,
        None => default_problem(),
    };
    problem["device"] = options.device.as_str().into();
    problem["repeats"] = options.repeats.into();
    problem["budgets"] = options.budgets.into();
    problem["threads"] = options.threads.into();
    let lines = output(Command::new(program).arg(problem.to_string()))?;
    let rows = lines
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("`{line}` is no JSON")))
        .collect::<Result<Vec<Value>>>()?;
    let device = match options.device.as_str() {
        "cpu" => format!("{}, {} threads", processor(), options.threads),
        other => other.to_owned(),
    };
    let stem = format!("checkpointing-{}-{}", options.device, date()?);
    let report = report(&problem, &device, &stem, &rows);
    println!("{report}");
    let folder = workspace.path(&options.to.to_string_lossy());
    fs::create_dir_all(&folder)?;
    let document =
        serde_json::to_string_pretty(&json!({ "problem": problem, "device": device, "rows": rows }))?;
    fs::write(folder.join(format!("{stem}.json")), document + "\n")?;
    fs::write(folder.join(format!("{stem}.md")), report)?;
    fs::write(folder.join(format!("{stem}.svg")), chart(&rows).svg())?;
    println!("wrote {stem}.md, .json and .svg to {}", options.to.display());
    Ok(())
}

fn name(row: &Value) -> &str {
    row["policy"].as_str().unwrap_or_default()
}

fn mib(row: &Value, part: &str, key: &str) -> f64 {
    row[part][key].as_f64().unwrap_or(f64::NAN) / MIB
}

/// The value below which `share` of the times are.
fn time(row: &Value, share: f64) -> f64 {
    let times = row["wall_ms"].as_array().cloned().unwrap_or_default();
    let mut times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
    times.sort_by(f64::total_cmp);
    match times.len() {
        0 => f64::NAN,
        n => times[((n - 1) as f64 * share).round() as usize],
    }
}

fn report(problem: &Value, device: &str, stem: &str, rows: &[Value]) -> String {
    let mut text = format!(
        "# Activation checkpointing: one training step\n\nOn {device}. Model and batch: `{}`.\n\nTimes are medians of \
         {} steps in turns, with the tenth and ninetieth of a hundred; peaks are those of everything in use, weights and \
         gradients included; an operation counts once for its forward and once for its backward. Every policy gave the \
         same bits of every gradient, or there would be no table.\n\n",
        json!({ "architecture": problem["architecture"], "settings": problem["settings"], "rows": problem["rows"] }),
        problem["repeats"]
    );
    text.push_str(
        "| policy | time, ms | p10 to p90 | predicted | peak, MiB | predicted | held, MiB | predicted | operations | attention forwards | linear forwards | GFLOP |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let usage = |operation: &str| row["usage"][operation]["forwards"].as_u64().unwrap_or(0);
        let flop: f64 = row["usage"].as_object().map_or(0.0, |usage| {
            usage.values().filter_map(|one| one["flop"].as_f64()).sum()
        });
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.1} | {:.1} to {:.1} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} | {} | {} | {} | {:.2} |",
            name(row),
            time(row, 0.5),
            time(row, 0.1),
            time(row, 0.9),
            row["predicted"]["wall_ms"].as_f64().unwrap_or(f64::NAN),
            mib(row, "measured", "peak_bytes"),
            mib(row, "predicted", "peak_bytes"),
            mib(row, "measured", "held_bytes"),
            mib(row, "predicted", "held_bytes"),
            row["operations"],
            usage("attention"),
            usage("linear"),
            flop / 1e9,
        );
    }
    let _ = writeln!(text, "\n![Peak of memory against time]({stem}.svg)");
    text
}

/// Peak against time: the budgets as a line, every other policy as a point.
fn chart(rows: &[Value]) -> LineChart {
    let point = |row: &Value| (mib(row, "measured", "peak_bytes"), time(row, 0.5));
    let (budgets, others): (Vec<&Value>, Vec<&Value>) =
        rows.iter().partition(|row| name(row).starts_with("budget"));
    let chart = LineChart::new("One training step", "peak of memory, MiB", "time, ms")
        .with(Series::new("budget", budgets.into_iter().map(point).collect()));
    // As many as there are colours beside the line.
    let shown = [
        "none",
        "full",
        "block-skip (every 2)",
        "every-nth-linear (n 2)",
        "attn-only",
    ];
    let shown = others.into_iter().filter(|row| shown.contains(&name(row)));
    shown.fold(chart, |chart, row| {
        chart.with(Series::new(name(row), vec![point(row)]))
    })
}
