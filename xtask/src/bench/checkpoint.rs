//! `cargo xtask bench checkpoint`: a training step under every policy of activation checkpointing: time, peak of memory,
//! operations, and what the planner predicted; and the same step in PyTorch.

mod beside;

use super::built::Built;
use super::server::Server;
use super::{date, processor};
use crate::peer;
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use beside::Peer;
use clap::{Args, ValueEnum};
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
    /// The model and its batch: `wan-1.3b`, `wan-1.3b-short` or `wan-tiny`, or JSON (see
    /// `crates/flow-checkpoint/examples/policy_speed.rs`); without it, a DiT that a processor trains in a second.
    #[arg(long)]
    problem: Option<String>,
    /// Our program, if it is built already.
    #[arg(long)]
    program: Option<PathBuf>,
    /// What else takes the same step, in the same rounds.
    #[arg(long, value_enum, default_value_t = PeerChoice::None)]
    peer: PeerChoice,
    /// The Python whose PyTorch is the peer; without it one is made in the user's cache folder.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Rounds; in each, every policy runs once, in an order that turns; with a peer, once more before, uncounted.
    #[arg(long, default_value_t = 9)]
    repeats: usize,
    /// Budgets between the smallest and the peak of keeping everything.
    #[arg(long, default_value_t = 4)]
    budgets: usize,
    /// Threads on the processor.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Where the results go.
    #[arg(long, default_value = "bench/results")]
    to: PathBuf,
}

/// Who else is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PeerChoice {
    /// Nobody.
    None,
    /// PyTorch, from the same weights and inputs.
    Torch,
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

/// Wan2.1-T2V-1.3B (`transformer/config.json` of `Wan-AI/Wan2.1-T2V-1.3B-Diffusers`) at 480 x 832 pixels, 1560 tokens for
/// each of `frames` frames of latents: 20 are 31,200 tokens, 8 are 12,480.
fn wan(frames: usize) -> Value {
    json!({
        "architecture": "wan",
        "settings": {
            "latent_frames": frames, "latent_height": 60, "latent_width": 104, "patch_size": [1, 2, 2],
            "num_attention_heads": 12, "attention_head_dim": 128, "in_channels": 16, "out_channels": 16,
            "text_dim": 4096, "freq_dim": 256, "ffn_dim": 8960, "num_layers": 30,
        },
        "rows": 1,
        "text_tokens": 512,
    })
}

/// A few channels and tokens of the same, to try the programs.
fn tiny_wan() -> Value {
    json!({
        "architecture": "wan",
        "settings": {
            "latent_frames": 2, "latent_height": 8, "latent_width": 8, "patch_size": [1, 2, 2],
            "num_attention_heads": 2, "attention_head_dim": 24, "in_channels": 4, "out_channels": 4,
            "text_dim": 16, "freq_dim": 32, "ffn_dim": 144, "num_layers": 3,
        },
        "rows": 1,
        "text_tokens": 7,
    })
}

/// Measures, prints the table and writes it with the figure.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.repeats == 0 || options.threads == 0 {
        bail!("--repeats and --threads must be at least 1");
    }
    let program = Built::example("flow-checkpoint", "policy_speed")
        .with_cuda(options.device == "cuda")
        .or_given(workspace, &options.program)?;
    let mut problem = match options.problem.as_deref() {
        Some("wan-1.3b") => {
            let mut problem = wan(20);
            // What keeps everything fits no GPU, nor what keeps every other block's.
            problem["policies"] = json!(["full", "every-nth-linear", "attn-only"]);
            problem
        }
        Some("wan-1.3b-short") => wan(8),
        Some("wan-tiny") => tiny_wan(),
        Some(text) => serde_json::from_str(text)
            .context("--problem is neither `wan-1.3b`, `wan-1.3b-short`, `wan-tiny` nor JSON")?,
        None => default_problem(),
    };
    if options.device == "cuda" && problem["kernels"].is_null() {
        problem["kernels"] = "cuda-bf16".into();
    }
    problem["device"] = options.device.as_str().into();
    problem["repeats"] = options.repeats.into();
    problem["budgets"] = options.budgets.into();
    problem["threads"] = options.threads.into();
    let mut command = Command::new(program);
    command.arg("serve").arg(problem.to_string());
    let mut ours = Server::start(command)?;
    let rows = ours.ask("rows")?;
    let mut rows = rows.as_array().cloned().context("no list of rows")?;
    let exported = tempfile::tempdir()?;
    let mut peer = match options.peer {
        PeerChoice::None => None,
        PeerChoice::Torch => {
            ours.ask(&format!("export {}", exported.path().display()))?;
            let python = options.python.clone().map_or_else(peer::python, Ok)?;
            let script = workspace.path("bench/step_peer.py");
            let server = beside::start(&python, &script, exported.path(), &problem)?;
            Some(Peer::new(server, &problem, &rows)?)
        }
    };
    in_turns(options.repeats, &mut ours, &mut rows, peer.as_mut())?;
    let device = match options.device.as_str() {
        "cpu" => format!("{}, {} threads", processor(), options.threads),
        other => other.to_owned(),
    };
    let stem = format!("checkpointing-{}-{}", options.device, date()?);
    let mut report = report(&problem, &device, &stem, &rows);
    if let Some(peer) = &peer {
        report.push_str(&peer.report(&rows));
    }
    say!("{report}");
    let folder = workspace.path(&options.to.to_string_lossy());
    fs::create_dir_all(&folder)?;
    let beside = peer.as_ref().map(|peer| peer.json(&rows));
    let document = json!({ "problem": problem, "device": device, "rows": rows, "peer": beside });
    let document = serde_json::to_string_pretty(&document)?;
    fs::write(folder.join(format!("{stem}.json")), document + "\n")?;
    fs::write(folder.join(format!("{stem}.md")), report)?;
    fs::write(folder.join(format!("{stem}.svg")), chart(&rows).svg())?;
    say!("wrote {stem}.md, .json and .svg to {}", options.to.display());
    Ok(())
}

/// Takes a step of every row, ours and the peer's, in each of `rounds` rounds.
fn in_turns(rounds: usize, ours: &mut Server, rows: &mut [Value], mut peer: Option<&mut Peer>) -> Result<()> {
    let mut wall_ms: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    let count = rows.len() + peer.as_ref().map_or(0, |peer| peer.len());
    // After another program, the first step finds cold caches, so it is not counted, ours as little as the peer's.
    let warm_up = usize::from(peer.is_some());
    for round in 0..rounds {
        for turn in 0..count {
            // Everyone is first as often as the others, so that none always meets a warmer device.
            let index = (turn + round) % count;
            match (index.checked_sub(rows.len()), &mut peer) {
                (Some(index), Some(peer)) => peer.step(index)?,
                _ => {
                    let answer = ours.ask(&format!("time {index} {}", 1 + warm_up))?;
                    let seconds = answer["seconds"].as_array().context("no list of seconds")?;
                    let seconds = seconds.iter().skip(warm_up).filter_map(Value::as_f64);
                    wall_ms[index].extend(seconds.map(|seconds| 1e3 * seconds));
                    rows[index]["taken_bytes"] = answer["taken_bytes"].clone();
                }
            }
        }
    }
    for (row, wall_ms) in rows.iter_mut().zip(wall_ms) {
        row["wall_ms"] = wall_ms.into();
    }
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
         gradients included; taken is what the device's allocator had of it, if it has pools; an operation counts once for its forward and once for its backward. Every policy gave the \
         same bits of every gradient, or there would be no table.\n\n",
        json!({ "architecture": problem["architecture"], "settings": problem["settings"], "rows": problem["rows"] }),
        problem["repeats"]
    );
    text.push_str(
        "| policy | time, ms | p10 to p90 | predicted | peak, MiB | predicted | taken, MiB | held, MiB | predicted | operations | attention forwards | linear forwards | GFLOP |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let usage = |operation: &str| row["usage"][operation]["forwards"].as_u64().unwrap_or(0);
        let flop: f64 = row["usage"].as_object().map_or(0.0, |usage| {
            usage.values().filter_map(|one| one["flop"].as_f64()).sum()
        });
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.1} | {:.1} to {:.1} | {:.1} | {:.2} | {:.2} | {} | {:.2} | {:.2} | {} | {} | {} | {:.2} |",
            name(row),
            time(row, 0.5),
            time(row, 0.1),
            time(row, 0.9),
            row["predicted"]["wall_ms"].as_f64().unwrap_or(f64::NAN),
            mib(row, "measured", "peak_bytes"),
            mib(row, "predicted", "peak_bytes"),
            row["taken_bytes"]
                .as_f64()
                .map_or("–".into(), |bytes| format!("{:.0}", bytes / MIB)),
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
