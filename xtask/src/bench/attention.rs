//! `cargo xtask bench attention`: our kernels and PyTorch's on one GPU, in one run, in turns.
//!
//! Both sides are programs that stay alive and answer a line for a line, so that kernels are compiled once and neither
//! meets a colder GPU than the other.

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
    /// Cases by number, as `16-21`; all without. The full case that masks are compared with comes before them.
    #[arg(long)]
    cases: Option<String>,
    /// Where the results go.
    #[arg(long, default_value = "docs/src/performance")]
    to: PathBuf,
}

const PEERS: [&str; 2] = ["cudnn", "flash"];
const PARTS: [(&str, f64); 2] = [("forward", 1.0), ("backward", 2.5)];

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
    for index in range(options.cases.as_deref(), count)? {
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
    text += "\n## Masks: time against work\n\n`pairs` and `tiles` are the shares of a full mask that are left; `time` is the share of the full case's time by \
             medians, and `over tiles` what that is of the tiles' share, by medians and by the 10th percentile.\n\n";
    text += "| case | part | pairs | tiles | time | over tiles | by the 10th percentile |\n|---|---|---|---|---|---|---|\n";
    for row in rows
        .iter()
        .filter(|row| row["pairs"].as_f64().is_some_and(|pairs| pairs < 1.0))
    {
        let case = row["case"].as_str().unwrap_or_default();
        let shape: Vec<&str> = case.split(' ').take(4).collect();
        let full = format!("{} full", shape.join(" "));
        let Some(full) = rows
            .iter()
            .find(|other| other["case"] == json!(full) && other["what"] == row["what"])
        else {
            continue;
        };
        let share = |of: &str| {
            let [part, all] = [row, full].map(|row| row["ours"][of].as_f64());
            part.zip(all).map(|(part, all)| part / all)
        };
        let over_tiles = |of| {
            let over = share(of).zip(row["tiles"].as_f64());
            over.map_or("–".into(), |(time, tiles)| format!("{:.2}", time / tiles))
        };
        let _ = writeln!(
            text,
            "| {case} | {} | {} | {} | {} | {} | {} |",
            row["what"].as_str().unwrap_or_default(),
            figure(&row["pairs"], 3),
            figure(&row["tiles"], 3),
            share("median_ms").map_or("–".into(), |share| format!("{share:.3}")),
            over_tiles("median_ms"),
            over_tiles("p10_ms"),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::table;
    use serde_json::{Value, json};

    fn row(case: &str, tiles: f64, median_ms: f64, p10_ms: f64) -> Value {
        json!({
            "case": case, "what": "forward", "kernel": "wgmma 64x128", "pairs": tiles, "tiles": tiles,
            "ours": {"median_ms": median_ms, "p10_ms": p10_ms, "p90_ms": median_ms, "tflops": 1.0},
        })
    }

    #[test]
    fn masks_are_measured_by_the_full_case_of_their_own_shape() {
        let text = table(
            &json!({}),
            &[
                row("B2 H16 S8192 D64 full", 1.0, 2.0, 1.6),
                row("B2 H16 S8192 D128 full", 1.0, 4.0, 4.0),
                row("B2 H16 S8192 D64 causal", 0.5, 1.1, 1.0),
                row("B2 H16 S4096 D64 causal", 0.5, 1.1, 1.0),
            ],
        );
        let masks = text.split("## Masks").nth(1).unwrap();
        assert!(
            masks.contains("| B2 H16 S8192 D64 causal | forward | 0.500 | 0.500 | 0.550 | 1.10 | 1.25 |"),
            "{text}"
        );
        assert!(!masks.contains("S4096"), "it has no full case: {text}");
    }
}
