//! `cargo xtask bench gemm`: our matrix products and PyTorch's (cuBLAS) on one GPU, in one run, in turns.

use super::built::Built;
use super::cases::range;
use super::report::Report;
use super::server::{Samples, Server, figure};
use crate::peer;
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// How to measure matrix products.
#[derive(Debug, Args)]
pub struct Options {
    /// The Python whose PyTorch is the peer, or `none` for no peer; without it one is made in the user's cache folder.
    #[arg(long, alias = "peer")]
    python: Option<PathBuf>,
    /// Our program, if it is built already (`crates/flow-matmul-cube/examples/matmul_device`).
    #[arg(long)]
    program: Option<PathBuf>,
    /// Rounds; in each, both run once, in an order that turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measurements within a round.
    #[arg(long, default_value_t = 7)]
    repeats: usize,
    /// Cases by number, as `0-29`; all without.
    #[arg(long)]
    cases: Option<String>,
    /// Where the results go.
    #[arg(long, default_value = "bench/results")]
    to: PathBuf,
}

/// Measures, prints the table and writes it with the figures.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.rounds == 0 || options.repeats == 0 {
        bail!("--rounds and --repeats must be at least 1");
    }
    let program =
        Built::example("flow-matmul-cube", "matmul_device").or_given(workspace, &options.program)?;
    let mut command = Command::new(program);
    command.arg("serve");
    let mut ours = Server::start(command)?;
    let mut peer = match peer::unless_none(options.python.as_deref())? {
        None => None,
        Some(python) => {
            let mut command = Command::new(python);
            command.arg(workspace.path("bench/matmul_peer.py"));
            Some(Server::start(command)?)
        }
    };
    let count = ours.ask("about")?["cases"]
        .as_u64()
        .context("no number of cases")?;
    let mut ask_peer = |request: Value| match &mut peer {
        Some(peer) => peer.ask(&request.to_string()),
        None => Ok(Value::Null),
    };
    let about = ask_peer(json!({ "do": "about" }))?;
    let ceiling = &ask_peer(json!({ "do": "ceiling" }))?["flops"];
    let mut report = Report::new(workspace, &options.to, "matmul", [&about, ceiling], table)?;
    let ceiling = ceiling.as_f64();
    for index in range(options.cases.as_deref(), count)? {
        let mut case = Value::Null;
        let mut samples = [Samples::default(), Samples::default()];
        for round in 0..options.rounds {
            for turn in 0..2 {
                // Our first answer says what the case is, so we are first in the first round.
                if (turn + round) % 2 == 0 {
                    case = ours.ask(&format!("time {index} {}", options.repeats))?;
                    samples[0].add(&case["seconds"])?;
                } else {
                    let answer = ask_peer(json!({ "do": "time", "case": case, "repeats": options.repeats }))?;
                    if !answer.is_null() {
                        samples[1].add(&answer["seconds"])?;
                    }
                }
            }
        }
        let flops = case["flops"].as_f64().context("no flops")?;
        let [us, them] = &samples;
        let mut row = json!({ "case": case["name"], "kernel": case["kernel"], "ours": us.json(flops) });
        if !them.0.is_empty() {
            row["pytorch"] = them.json(flops);
            row["ratio"] = json!(them.at(0.5) / us.at(0.5));
        }
        if let Some(ceiling) = ceiling {
            row["share_of_ceiling"] = json!(flops / us.at(0.5) / ceiling);
        }
        say!("{}", line(&row));
        report.add(row)?;
    }
    say!("\n{}\nwrote {}", report.text(), report.place());
    Ok(())
}

fn line(row: &Value) -> String {
    let ours = &row["ours"];
    format!(
        "| {} | {} | {} ({}–{}) | {} | {} | {} | {} |",
        row["case"].as_str().unwrap_or_default(),
        row["kernel"].as_str().unwrap_or_default(),
        figure(&ours["median_ms"], 4),
        figure(&ours["p10_ms"], 4),
        figure(&ours["p90_ms"], 4),
        figure(&ours["tflops"], 0),
        figure(&row["pytorch"]["tflops"], 0),
        figure(&row["ratio"], 2),
        figure(&row["share_of_ceiling"], 2),
    )
}

fn table(about: &Value, rows: &[Value]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "# Matrix products on {}, {}\n\nPyTorch {} with CUDA {}; bf16; ceiling {} TFLOP/s (8192³, cuBLAS). Times are device times of \
         replayed graphs with four sets of operands in rotation, medians with the 10th and 90th percentile. The ratio is of \
         speed: above 1, ours is faster. What PyTorch cannot fuse with the product it does in further operations.\n",
        about["peer"]["device"].as_str().unwrap_or("this GPU"),
        about["date"].as_str().unwrap_or_default(),
        about["peer"]["torch"].as_str().unwrap_or("absent"),
        about["peer"]["cuda"].as_str().unwrap_or("absent"),
        figure(&about["matmul_ceiling_tflops"], 0),
    );
    text += "| rows x in -> out | kernel | ms | TFLOP/s | PyTorch TFLOP/s | ratio | of ceiling |\n";
    text += "|---|---|---|---|---|---|---|\n";
    for row in rows {
        text += &line(row);
        text.push('\n');
    }
    text
}
