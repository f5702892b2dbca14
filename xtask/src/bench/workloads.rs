//! `cargo xtask bench workloads`: whole models at published sizes, ours and PyTorch's, from the same weights and inputs; and
//! parts of that, `bench block`, `bench step` and `bench rollout`.
//!
//! First both programs compute each workload with a few channels and tokens in f32 on the processor, and have to agree.
//! Then, with `--device`, they are timed in turns; a contender whose loss is not the others' stops the run.

use super::built::Built;
use super::ceilings;
use super::result::median;
use super::server::figure;
use crate::peer;
use crate::process::{output, run as run_command};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How far losses of bf16 programs may lie apart, relative to the loss.
pub(super) const LOSS_TOLERANCE: f64 = 0.02;

/// Kernels of a row that the table names, the longest first; the file has all.
const KERNELS: usize = 8;

/// How to measure workloads.
#[derive(Debug, Args)]
pub struct Options {
    /// Workloads; without any, all.
    names: Vec<String>,
    /// Device to time on, `cpu` or `cuda`; without it nothing is timed.
    #[arg(long)]
    device: Option<String>,
    /// Times the small versions, to try the programs.
    #[arg(long)]
    tiny: bool,
    /// Rounds; in each, every contender runs once, in an order that turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measurements within a round.
    #[arg(long, default_value_t = 7)]
    repeats: usize,
    /// The Python whose PyTorch is the peer; without it one is made in the user's cache folder.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Our program, if it is built already (`crates/flow-trainer/examples/workload_speed.rs`).
    #[arg(long)]
    program: Option<PathBuf>,
    /// Leaves out the launches and kernels of each row, which take another run of each contender.
    #[arg(long)]
    no_trace: bool,
    /// A file for the measurements, one line of JSON each.
    #[arg(long)]
    to: Option<PathBuf>,
}

/// What of the workloads is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All that is listed for each.
    All,
    /// One block of each model (SD3.5: the first and the last), forward and a training step.
    Block,
    /// A training step.
    Step,
    /// A rollout, or a forward pass where there is none.
    Rollout,
}

impl Which {
    /// What of a workload is timed: the part and what backward keeps.
    fn rows(self, workload: &str) -> Vec<(&'static str, &'static str)> {
        let rows = rows(workload).iter().copied();
        match self {
            Self::All => rows.collect(),
            Self::Block => vec![("forward", "none"), ("step", "none")],
            Self::Step => rows.filter(|(part, _)| *part == "step").collect(),
            Self::Rollout => rows.filter(|(part, _)| *part != "step").collect(),
        }
    }
}

/// Whether adapters on many weights are trained: each program makes the weights where it computes, instead of reading files of up to 41 GB.
fn is_large(workload: &str) -> bool {
    ["flux", "qwen-image", "wan-lora"]
        .iter()
        .any(|name| workload.starts_with(name))
}

/// All that is timed of a workload.
fn rows(workload: &str) -> &'static [(&'static str, &'static str)] {
    match workload {
        "wan-1.3b" => &[("step", "full"), ("step", "attn_only")],
        "wan-1.3b-short" => &[("step", "none"), ("step", "full"), ("step", "attn_only")],
        "sd35-medium" => &[("rollout", "none"), ("step", "none")],
        "dit-s" => &[("rollout", "none")],
        name if is_large(name) => &[("forward", "none"), ("step", "attn_only")],
        _ => &[("forward", "none"), ("step", "none")],
    }
}

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Ours,
    /// Ours, with calls of the model recorded and replayed.
    Captured,
    /// Ours with trained weights, their gradients and moments in bf16, as PyTorch's are.
    Narrow,
    /// Ours without accelerators: operations one by one.
    Plain,
    Peer(&'static str),
    /// The peer with trained parameters, their gradients and moments in f32, as ours are.
    MixedPeer(&'static str),
}

impl Contender {
    fn of(workload: &str, part: &str, device: &str) -> Vec<Self> {
        let ours: &[Self] = match device {
            // What they train is adapters alone, and each contender takes a minute until it computes.
            "cuda" if is_large(workload) => &[Self::Ours, Self::Captured],
            "cuda" if part == "step" => &[Self::Ours, Self::Captured, Self::Narrow, Self::Plain],
            "cuda" => &[Self::Ours, Self::Captured, Self::Plain],
            _ => &[Self::Ours, Self::Plain],
        };
        let modes = modes(workload, device);
        let peers = modes.iter().copied().map(Self::Peer);
        let mixed = modes
            .iter()
            .copied()
            .filter(|_| part == "step")
            .map(Self::MixedPeer);
        ours.iter().copied().chain(peers).chain(mixed).collect()
    }

    /// Whether it is PyTorch.
    fn is_peer(self) -> bool {
        matches!(self, Self::Peer(_) | Self::MixedPeer(_))
    }

    /// Whether what it trains is stored in f32.
    fn trains_in_f32(self) -> bool {
        matches!(
            self,
            Self::Ours | Self::Captured | Self::Plain | Self::MixedPeer(_)
        )
    }

    fn name(self) -> String {
        match self {
            Self::Ours => "flow-train".into(),
            Self::Captured => "flow-train, captured".into(),
            Self::Narrow => "flow-train, bf16".into(),
            Self::Plain => "flow-train, plain".into(),
            Self::Peer(mode) => format!("PyTorch {mode}"),
            Self::MixedPeer(mode) => format!("PyTorch {mode}, f32"),
        }
    }
}

/// A contender over all rounds of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Summary {
    median_ms: f64,
    /// From the least to the largest over the rounds, so that the median of their medians lies between them.
    p10_ms: f64,
    p90_ms: f64,
    /// Time of the host until everything was asked for.
    enqueued_ms: f64,
    /// What the program took from the device: PyTorch's allocator keeps what it once took as our pools do.
    gib: f64,
}

impl Summary {
    /// Of the lines that the rounds wrote; NaN for what none of them has.
    fn of(rounds: &[Value]) -> Self {
        let all = |key: &str| -> Vec<f64> { rounds.iter().filter_map(|line| line[key].as_f64()).collect() };
        let gib = |line: &Value| line["reserved_gib"].as_f64().or(line["peak_gib"].as_f64());
        Self {
            median_ms: median(&all("median_ms")),
            p10_ms: all("p10_ms").into_iter().fold(f64::NAN, f64::min),
            p90_ms: all("p90_ms").into_iter().fold(f64::NAN, f64::max),
            enqueued_ms: median(&all("enqueued_ms")),
            gib: rounds.iter().filter_map(gib).fold(f64::NAN, f64::max),
        }
    }
}

/// Modes of the peer, the best that PyTorch has: compiled with cuDNN's attention, with kernels of products chosen by trial, and both
/// recorded as CUDA graphs. Where steps take seconds a graph changes nothing; Wan's are not recorded in ours either.
fn modes(workload: &str, device: &str) -> Vec<&'static str> {
    match (device, workload) {
        ("cuda", "wan-1.3b" | "wan-1.3b-short") => vec!["compile", "tuned"],
        ("cuda", name) if is_large(name) => vec!["compile", "tuned"],
        ("cuda", _) => vec!["compile", "tuned", "graphs", "tuned-graphs"],
        _ => vec!["eager", "compile"],
    }
}

/// Compares, and measures if asked to.
pub fn run(workspace: &Workspace, options: &Options, which: Which) -> Result<()> {
    if options.rounds == 0 || options.repeats == 0 {
        bail!("--rounds and --repeats must be at least 1");
    }
    let python = options.python.clone().map_or_else(peer::python, Ok)?;
    let program = Built::example("flow-trainer", "workload_speed")
        .with_cuda(options.device.as_deref() == Some("cuda"))
        .or_given(workspace, &options.program)?;
    let known = output(Command::new(&program).arg("list"))?;
    let names: Vec<&str> = match &options.names[..] {
        [] => known
            .lines()
            .filter(|name| !which.rows(name).is_empty())
            .collect(),
        names => names.iter().map(String::as_str).collect(),
    };
    if let Some(without) = names.iter().find(|name| which.rows(name).is_empty()) {
        bail!("`{without}` has no such part; `cargo xtask bench workloads {without}` measures what it has");
    }
    let mut bench = Bench {
        program,
        python,
        script: workspace.path("bench/step_peer.py"),
        options,
        which,
        ceiling: None,
    };
    let mut lines = String::new();
    for name in &names {
        writeln!(lines, "{}", bench.check(name)?)?;
    }
    let Some(device) = &options.device else {
        return Ok(());
    };
    if device == "cuda" {
        let found = ceilings::measure(workspace, &bench.python)?;
        say!("{found}");
        bench.ceiling = Some(found.matmul);
    }
    let mut table = String::new();
    for name in names {
        bench.time(name, device, &mut table, &mut lines)?;
    }
    say!("\n{table}");
    if let Some(path) = &options.to {
        fs::write(path, lines).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

struct Bench<'a> {
    program: PathBuf,
    python: PathBuf,
    script: PathBuf,
    options: &'a Options,
    which: Which,
    /// Operations a second of matrix products alone, on this device now.
    ceiling: Option<f64>,
}

impl Bench<'_> {
    fn export(&self, name: &str, folder: &Path, tiny: bool) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("export").arg(name).arg(folder);
        command.args(if tiny {
            ["--tiny"].as_slice()
        } else {
            &["--store", "bf16"]
        });
        if is_large(name) {
            command.arg("--made");
        }
        command.args(self.layers(name));
        command.arg("--threads").arg(threads());
        run_command(&mut command)
    }

    /// How many blocks our program makes the model of, if not as many as it has. SD3.5's last block does not carry its text on, so
    /// that a model of one would lack layers that adapters name.
    fn layers(&self, name: &str) -> &'static [&'static str] {
        match (self.which, name) {
            (Which::Block, "sd35-medium") => &["--layers", "2"],
            (Which::Block, _) => &["--layers", "1"],
            _ => &[],
        }
    }

    /// That both programs compute the same, and how far apart the results are.
    fn check(&self, name: &str) -> Result<Value> {
        let folder = tempfile::tempdir()?;
        self.export(name, folder.path(), true)?;
        let mut command = Command::new(&self.python);
        let checked = output(command.arg(&self.script).arg("check").arg(folder.path()))?;
        let agreement: Value = serde_json::from_str(&checked).context("the peer's check wrote no JSON")?;
        say!("{name}: both compute the same: {}", agreement["relative_l2"]);
        Ok(agreement)
    }

    /// Launches and kernels of one run, or why they are not known.
    fn trace(&self, mut command: Command) -> Result<Value> {
        let text = output(command.arg("--trace"))?;
        let line = text.lines().last().context("a trace wrote nothing")?;
        serde_json::from_str(line).context("a trace wrote no JSON")
    }

    fn contender(
        &self,
        contender: Contender,
        folder: &Path,
        name: &str,
        row: (&str, &str),
        device: &str,
    ) -> Command {
        let (part, checkpoint) = row;
        let mut command = match contender {
            Contender::Ours | Contender::Captured | Contender::Narrow | Contender::Plain => {
                let mut command = Command::new(&self.program);
                command.arg("time").arg(name).arg(folder).arg(part);
                if self.options.tiny {
                    command.arg("--tiny");
                }
                command.args(self.layers(name));
                if is_large(name) {
                    command.arg("--made");
                }
                if contender == Contender::Captured {
                    command.arg("--capture");
                }
                if contender == Contender::Plain {
                    command.arg("--plain");
                }
                if contender == Contender::Narrow {
                    command.args(["--weights", "bf16", "--gradients", "bf16", "--moments", "bf16"]);
                }
                if device == "cuda" {
                    // The processor draws the noise; PyTorch's is drawn on the device.
                    command.arg("--threads").arg(threads());
                }
                command
            }
            Contender::Peer(mode) | Contender::MixedPeer(mode) => {
                let mut command = Command::new(&self.python);
                command.arg(&self.script).arg("time").arg(folder).arg(part);
                command.args(["--mode", mode]);
                if matches!(contender, Contender::MixedPeer(_)) {
                    command.args(["--trained-in", "f32"]);
                }
                command
            }
        };
        let repeats = self.options.repeats.to_string();
        command.args([
            "--device",
            device,
            "--checkpoint",
            checkpoint,
            "--repeats",
            &repeats,
        ]);
        command
    }

    fn time(&self, name: &str, device: &str, table: &mut String, lines: &mut String) -> Result<()> {
        let folder = tempfile::tempdir()?;
        self.export(name, folder.path(), self.options.tiny)?;
        for row in self.which.rows(name) {
            let contenders = Contender::of(name, row.0, device);
            let mut found: Vec<Vec<Value>> = vec![Vec::new(); contenders.len()];
            for round in 0..self.options.rounds {
                for turn in 0..contenders.len() {
                    let index = (turn + round) % contenders.len();
                    let mut command = self.contender(contenders[index], folder.path(), name, row, device);
                    let text = output(&mut command)?;
                    let line = text.lines().last().context("a measurement wrote nothing")?;
                    say!("{line}");
                    writeln!(lines, "{line}")?;
                    found[index].push(serde_json::from_str(line).context("a measurement wrote no JSON")?);
                }
            }
            agree(name, &found)?;
            let mut traces = vec![Value::Null; contenders.len()];
            if device == "cuda" && !self.options.no_trace {
                for (contender, trace) in contenders.iter().zip(&mut traces) {
                    let command = self.contender(*contender, folder.path(), name, row, device);
                    match self.trace(command) {
                        Ok(found) => {
                            writeln!(lines, "{found}")?;
                            *trace = found;
                        }
                        Err(why) => say!("{}: its kernels are not known: {why:#}", contender.name()),
                    }
                }
            }
            let summaries: Vec<Summary> = found.iter().map(|rounds| Summary::of(rounds)).collect();
            let (part, checkpoint) = row;
            // The least of the peers that store what they train as `of` does.
            let least = |of: Contender, figure: fn(&Summary) -> f64| {
                let alike = contenders.iter().zip(&summaries);
                let alike = alike.filter(|(peer, _)| {
                    peer.is_peer() && (part != "step" || peer.trains_in_f32() == of.trains_in_f32())
                });
                alike.map(|(_, summary)| figure(summary)).fold(f64::NAN, f64::min)
            };
            // Ours says how many operations the work takes, whoever does it.
            let tflop = found[0][0]["tflop"].as_f64().unwrap_or(f64::NAN);
            // In no less time can the device do as many, if it did nothing else.
            let floor_ms = self.ceiling.map(|ceiling| tflop * 1e15 / ceiling);
            for ((contender, summary), trace) in contenders.iter().zip(&summaries).zip(&traces) {
                let Summary {
                    median_ms: median,
                    p10_ms,
                    p90_ms,
                    enqueued_ms,
                    gib,
                } = *summary;
                writeln!(
                    table,
                    "{name:16} {part:8} {checkpoint:10} {:20} {median:10.2} ms ({p10_ms:.2} to {p90_ms:.2}) {:6.1} TFLOP/s {:>5} of the ceiling {:>5} \
                     of the floor {:>8} ms of the host {:>6} launches of {:>8} ms {gib:8.2} GiB {:6.2} of the speed and {:5.2} of the memory of the best peers that store alike",
                    contender.name(),
                    tflop / median * 1e3,
                    figure(&json!(floor_ms.map(|floor| floor / median)), 2),
                    figure(&json!(floor_ms.map(|floor| median / floor)), 2),
                    figure(&json!(enqueued_ms), 2),
                    figure(&trace["launches"], 0),
                    figure(&trace["kernels_ms"], 2),
                    least(*contender, |summary| summary.median_ms) / median,
                    gib / least(*contender, |summary| summary.gib),
                )?;
                for kernel in trace["kernels"].as_array().into_iter().flatten().take(KERNELS) {
                    writeln!(
                        table,
                        "{:>40} ms in {:>5} launches of {}",
                        figure(&json!(kernel["us"].as_f64().map(|us| us / 1e3)), 3),
                        figure(&kernel["calls"], 0),
                        kernel["name"].as_str().unwrap_or_default(),
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// Threads of this machine's processor.
fn threads() -> String {
    let threads = std::thread::available_parallelism();
    threads.map_or(1, usize::from).to_string()
}

/// Fails if what the contenders computed lies apart: before the first update, or after the last one that was timed. A model that
/// came apart while it was timed runs faster, since a GPU draws less for data that are all alike.
fn agree(name: &str, found: &[Vec<Value>]) -> Result<()> {
    let mut all = found.iter().flatten();
    let first = all.clone().next().context("nothing was measured")?;
    let key = ["loss", "root_mean_square"]
        .into_iter()
        .find(|key| first[key].is_number())
        .with_context(|| format!("{name}: a measurement has no result: {first}"))?;
    let ours = first[key].as_f64().unwrap_or(f64::NAN);
    let near = |value: &Value| {
        let value = value.as_f64();
        value.is_some_and(|value| (value - ours).abs() <= LOSS_TOLERANCE * ours.abs())
    };
    // Without updates there is nothing that could come apart.
    let stayed = |row: &Value| {
        row.get("last_loss")
            .is_none_or(|last| key != "loss" || near(last))
    };
    if let Some(apart) = all.find(|row| !near(&row[key]) || !stayed(row)) {
        bail!("{name}: results lie apart, {key} {ours} first, and in {apart}: they do not compute the same");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(loss: f64, last: Option<f64>) -> Vec<Value> {
        vec![json!({ "loss": loss, "last_loss": last })]
    }

    #[test]
    fn contenders_whose_losses_are_near_one_another_agree() {
        assert!(agree("dit", &[row(1.5, Some(1.5)), row(1.501, Some(1.499))]).is_ok());
    }

    #[test]
    fn a_contender_that_computes_something_else_stops_the_benchmark() {
        assert!(agree("dit", &[row(1.5, Some(1.5)), row(1.6, Some(1.5))]).is_err());
    }

    #[test]
    fn a_contender_that_comes_apart_while_it_is_timed_stops_the_benchmark() {
        assert!(agree("dit", &[row(1.5, Some(1.5)), row(1.5, Some(2.5))]).is_err());
        assert!(agree("dit", &[row(1.5, Some(1.5)), row(1.5, None)]).is_err());
    }

    #[test]
    fn the_interval_of_a_row_holds_the_median_of_all_its_rounds() {
        let line = |median: f64, enqueued: f64, reserved: f64| {
            json!({
                "median_ms": median, "p10_ms": median - 1.0, "p90_ms": median + 1.0,
                "enqueued_ms": enqueued, "reserved_gib": reserved, "peak_gib": 1.0,
            })
        };
        let rounds = [line(10.0, 4.0, 2.0), line(20.0, 1.0, 3.0), line(40.0, 2.0, 2.5)];
        let expected = Summary {
            median_ms: 20.0,
            p10_ms: 9.0,
            p90_ms: 41.0,
            enqueued_ms: 2.0,
            gib: 3.0,
        };
        assert_eq!(Summary::of(&rounds), expected);
        // Of an even number of rounds none is the middle one.
        let two = Summary::of(&rounds[..2]);
        assert_eq!((two.median_ms, two.enqueued_ms), (15.0, 2.5));
    }

    #[test]
    fn what_no_round_measured_is_no_number() {
        let summary = Summary::of(&[json!({ "median_ms": 2.0, "peak_gib": 0.5 })]);
        assert_eq!((summary.median_ms, summary.gib), (2.0, 0.5));
        assert!(summary.p10_ms.is_nan() && summary.p90_ms.is_nan() && summary.enqueued_ms.is_nan());
    }

    #[test]
    fn what_is_not_trained_has_no_last_loss() {
        let rows = vec![json!({ "root_mean_square": 0.9, "last_loss": null })];
        assert!(agree("dit", &[rows.clone(), rows]).is_ok());
    }
}
