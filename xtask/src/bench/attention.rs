//! `cargo xtask bench attention`: our kernels and PyTorch's on one GPU, in one run, in turns.
//!
//! Both sides are programs that stay alive and answer a line for a line, so that kernels are compiled once and neither
//! meets a colder GPU than the other.

use super::built::Built;
use super::cases::range;
use super::masks::{self, Full};
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
use std::time::{Duration, Instant};

/// How to measure attention.
#[derive(Debug, Args)]
pub struct Options {
    /// The Python whose PyTorch is the peer, or `none` for no peer; without it one is made in the user's cache folder.
    #[arg(long, alias = "peer")]
    python: Option<PathBuf>,
    /// Our program, if it is built already (`crates/flow-attention-cube/examples/gpu_speed.rs`).
    #[arg(long)]
    program: Option<PathBuf>,
    /// Rounds; in each, every contender runs once, in an order that turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measurements within a round.
    #[arg(long, default_value_t = 7)]
    repeats: usize,
    /// Cases by number, as `16-21`; all without. Masks are compared with the full case before them.
    #[arg(long)]
    cases: Option<String>,
    /// Where the results go.
    #[arg(long, default_value = "bench/results")]
    to: PathBuf,
}

/// How long kernels run before the first measurement.
const WARM_UP: Duration = Duration::from_secs(4);

const PEERS: [&str; 2] = ["cudnn", "flash"];
/// What is measured of a case, and its work in forwards.
pub(super) const PARTS: [(&str, f64); 2] = [("forward", 1.0), ("backward", 2.5)];

/// Measures, prints the table and writes it with the figures.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.rounds == 0 || options.repeats == 0 {
        bail!("--rounds and --repeats must be at least 1");
    }
    let program = Built::example("flow-attention-cube", "gpu_speed").or_given(workspace, &options.program)?;
    let mut ours = Server::start(Command::new(program))?;
    let mut peer = match peer::unless_none(options.python.as_deref())? {
        None => None,
        Some(python) => {
            let mut command = Command::new(python);
            command.arg(workspace.path("bench/attention_peer.py"));
            Some(Server::start(command)?)
        }
    };
    let count = ours.ask("about")?["cases"]
        .as_u64()
        .context("no number of cases")?;
    let about = peer
        .as_mut()
        .map_or(Ok(Value::Null), |peer| peer.ask(r#"{"do":"about"}"#))?;
    let ceiling = peer
        .as_mut()
        .map_or(Ok(Value::Null), |peer| peer.ask(r#"{"do":"ceiling"}"#))?;
    let ceiling = &ceiling["flops"];
    let mut report = Report::new(workspace, &options.to, "attention", [&about, ceiling], table)?;
    let ceiling = ceiling.as_f64();
    let cases = range(options.cases.as_deref(), count)?;
    // A GPU that had nothing to do is cold, and has its highest clock.
    let start = Instant::now();
    while start.elapsed() < WARM_UP {
        ours.ask(&format!("time {} 1", cases.start))?;
    }
    let mut full = Full::default();
    for index in cases {
        let mut case = Value::Null;
        let mut samples: Vec<Vec<Samples>> = (0..=PEERS.len())
            .map(|_| vec![Samples::default(), Samples::default()])
            .collect();
        for round in 0..options.rounds {
            for turn in 0..=PEERS.len() {
                // Our first answer says what the case is, so we are first in the first round.
                let contender = (turn + round) % (PEERS.len() + 1);
                if contender == 0 {
                    case = ours.ask(&format!("time {index} {}", options.repeats))?;
                    for (part, (name, _)) in PARTS.iter().enumerate() {
                        samples[0][part].add(&case[name])?;
                    }
                } else if let Some(peer) = &mut peer
                    && (case["masked"] == json!(false) || case["causal"] == json!(true))
                {
                    for (part, (name, _)) in PARTS.iter().enumerate() {
                        let request = json!({
                            "do": "time", "case": case, "backend": PEERS[contender - 1], "what": name,
                            "repeats": options.repeats,
                        });
                        samples[contender][part].add(&peer.ask(&request.to_string())?["seconds"])?;
                    }
                }
            }
        }
        full.see(index, &case);
        let of_full = full.shares(&mut ours, index, &case)?;
        let flops = case["flops"].as_f64().context("no flops")?;
        for (part, (name, factor)) in PARTS.iter().enumerate() {
            let mut row = json!({
                "case": label(&case), "what": name, "kernel": case[if part == 0 { "kernel" } else { "backward_kernel" }],
                "pairs": case["pairs"], "tiles": case["tiles"], "ours": samples[0][part].json(flops * factor),
            });
            for (peer, name) in PEERS.iter().enumerate() {
                let found = &samples[peer + 1][part];
                if !found.0.is_empty() {
                    row[*name] = found.json(flops * factor);
                    row[format!("ratio_to_{name}")] = json!(found.at(0.5) / samples[0][part].at(0.5));
                }
            }
            if let Some(shares) = &of_full {
                row["of_full"] = masks::in_row(&shares[part]);
            }
            if let Some(ceiling) = ceiling {
                row["share_of_ceiling"] = json!(flops * factor / samples[0][part].at(0.5) / ceiling);
            }
            say!("{}", line(&row));
            report.add(row)?;
        }
    }
    say!("\n{}\nwrote {}", report.text(), report.place());
    Ok(())
}

pub(super) fn label(case: &Value) -> String {
    format!(
        "B{} H{} S{} D{} {}",
        case["batch"],
        case["heads"],
        case["keys"],
        case["head_dim"],
        case["name"].as_str().unwrap_or_default()
    )
}

fn line(row: &Value) -> String {
    let ours = &row["ours"];
    format!(
        "| {} | {} | {} | {} ({}–{}) | {} | {} | {} | {} | {} |",
        row["case"].as_str().unwrap_or_default(),
        row["what"].as_str().unwrap_or_default(),
        row["kernel"].as_str().unwrap_or_default(),
        figure(&ours["median_ms"], 3),
        figure(&ours["p10_ms"], 3),
        figure(&ours["p90_ms"], 3),
        figure(&ours["tflops"], 0),
        figure(&row["cudnn"]["tflops"], 0),
        figure(&row["ratio_to_cudnn"], 2),
        figure(&row["ratio_to_flash"], 2),
        figure(&row["share_of_ceiling"], 2),
    )
}

fn table(about: &Value, rows: &[Value]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "# Attention on {}, {}\n\nPyTorch {} with cuDNN {}; bf16; matmul ceiling {} TFLOP/s (8192³, cuBLAS). Times are device times of replayed \
         graphs, medians with the 10th and 90th percentile. TFLOP/s count the pairs that the mask allows (forward 4·D per \
         pair and head, backward 2.5 times that). Ratios are of speed: above 1, ours is faster.\n",
        about["peer"]["device"].as_str().unwrap_or("this GPU"),
        about["date"].as_str().unwrap_or_default(),
        about["peer"]["torch"].as_str().unwrap_or("absent"),
        about["peer"]["cudnn"],
        figure(&about["matmul_ceiling_tflops"], 0),
    );
    text += "| case | part | kernel | ms | TFLOP/s | cuDNN TFLOP/s | ratio to cuDNN | ratio to FA2 | of ceiling |\n";
    text += "|---|---|---|---|---|---|---|---|---|\n";
    for row in rows {
        text += &line(row);
        text.push('\n');
    }
    text += &masks::table(rows);
    text
}
