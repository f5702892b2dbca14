//! `cargo xtask bench`: speed beside PyTorch, on the same machine, in one run, in turns; and what the feature cache saves.

mod attention;
mod audit;
mod built;
mod cache;
mod cases;
mod ceilings;
mod checkpoint;
mod cycles;
mod gemm;
mod iterations;
mod job;
mod masks;
mod options;
mod quiet;
mod report;
mod result;
mod rewards;
mod run;
mod server;
#[cfg(test)]
mod tests;
mod workloads;

use crate::peer;
use crate::process::{output, run as run_command};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use built::Built;
use clap::{Args, Subcommand};
use result::{Contender, Outcome};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use workloads::Which;

/// What to measure.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum Target {
    /// Rollout, loss with backward pass, and optimizer step of the jobs, on the processor.
    Cpu(CpuOptions),
    /// Attention, forward and backward, on an NVIDIA GPU.
    Attention(attention::Options),
    /// Cycles of attention's kernels, as `ncu` counts them: the same from launch to launch, where times are not.
    Cycles(cycles::Options),
    /// Matrix products with and without epilogues, on an NVIDIA GPU.
    Gemm(gemm::Options),
    /// A training step under every policy of activation checkpointing.
    Checkpoint(checkpoint::Options),
    /// The policies of the feature cache: what each saves and changes, on trained toys.
    Cache(cache::Options),
    /// Options of the runtimes: which of them make a run faster, and that none changes a bit.
    Options(options::Options),
    /// A whole run: reward against images and against seconds.
    Run(run::Options),
    /// Whole models at published sizes: that PyTorch computes the same, and how fast both are.
    Workloads(workloads::Options),
    /// Of the same, one block of each model (SD3.5: the first and the last): forward, and a training step.
    Block(workloads::Options),
    /// Of the same, the training steps.
    Step(workloads::Options),
    /// Of the same, the rollouts, or the forward pass where there is none.
    Rollout(workloads::Options),
    /// That training computes the ratios of the rollout exactly, with every combination of what computes.
    Audit(audit::Options),
    /// Rewards that are computed in the process: images a second, and what they hold in memory.
    Rewards(rewards::Options),
    /// What this GPU gives at most: products of large matrices, copies, launches.
    Ceilings(ceilings::Options),
}

/// How to measure on the processor.
#[derive(Debug, Args)]
struct CpuOptions {
    /// Configs whose model and batch are measured; without any, the main job's.
    configs: Vec<String>,
    /// Rounds; in each, every contender runs once, in an order that turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measurements of each part within a round.
    #[arg(long, default_value_t = 15)]
    repeats: usize,
    /// Threads of every contender.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// How PyTorch runs: `eager`, `compile`, or both.
    #[arg(long, value_delimiter = ',', default_value = "eager,compile")]
    peers: Vec<String>,
    /// Attempts at a measurement during which something else used the processor, and seconds to wait before each.
    #[arg(long, default_value_t = 20)]
    attempts: u64,
    /// Write no result files.
    #[arg(long)]
    dry_run: bool,
}

/// Measures.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    match &options.target {
        Target::Cpu(options) => cpu(workspace, options),
        Target::Attention(options) => attention::run(workspace, options),
        Target::Cycles(options) => cycles::run(workspace, options),
        Target::Gemm(options) => gemm::run(workspace, options),
        Target::Checkpoint(options) => checkpoint::run(workspace, options),
        Target::Cache(options) => cache::run(workspace, options),
        Target::Options(options) => options::run(workspace, options),
        Target::Run(options) => run::run(workspace, options),
        Target::Workloads(options) => workloads::run(workspace, options, Which::All),
        Target::Block(options) => workloads::run(workspace, options, Which::Block),
        Target::Step(options) => workloads::run(workspace, options, Which::Step),
        Target::Rollout(options) => workloads::run(workspace, options, Which::Rollout),
        Target::Audit(options) => audit::run(workspace, options),
        Target::Rewards(options) => rewards::run(workspace, options),
        Target::Ceilings(options) => ceilings::run(workspace, options),
    }
}

fn cpu(workspace: &Workspace, options: &CpuOptions) -> Result<()> {
    for mode in &options.peers {
        if !["eager", "compile"].contains(&&**mode) {
            bail!("there is no peer `{mode}`; choose from `eager`, `compile`");
        }
    }
    if options.rounds == 0 || options.repeats == 0 || options.threads == 0 {
        bail!("--rounds, --repeats and --threads must be at least 1");
    }
    let python = peer::python()?;
    let ours = Built::example("flow-trainer", "step_speed").or_given(workspace, &None)?;
    let default = ["configs/digits-grpo.toml".to_owned()];
    let configs = if options.configs.is_empty() {
        &default[..]
    } else {
        &options.configs[..]
    };
    let mut outcomes = Vec::new();
    for config in configs {
        outcomes.push(measure(workspace, options, &ours, &python, config)?);
    }
    let about = json!({
        "date": date()?,
        "processor": processor(),
        "threads": options.threads,
        "rounds": options.rounds,
        "repeats": options.repeats,
        "rustc": output(Command::new("rustc").arg("--version"))?.trim(),
        "torch": peer::version(&python)?,
    });
    let report = result::report(&about, &outcomes);
    say!("\n{report}");
    if options.dry_run {
        return Ok(());
    }
    let folder = workspace.path("bench/results");
    fs::create_dir_all(&folder)?;
    let stem = format!("cpu-{}", about["date"].as_str().unwrap_or_default());
    let jobs: Vec<Value> = outcomes.iter().map(Outcome::json).collect();
    let document = serde_json::to_string_pretty(&json!({ "about": about, "jobs": jobs }))?;
    fs::write(folder.join(format!("{stem}.json")), document + "\n")?;
    fs::write(folder.join(format!("{stem}.md")), report)?;
    say!("wrote bench/results/{stem}.md and .json");
    Ok(())
}

fn measure(
    workspace: &Workspace,
    options: &CpuOptions,
    ours: &Path,
    python: &Path,
    config: &str,
) -> Result<Outcome> {
    say!("\n{config}");
    let folder = tempfile::tempdir()?;
    let path = workspace.path(config);
    let exported = folder.path();
    run_command(Command::new(ours).arg("export").arg(&path).arg(exported))?;
    let script = workspace.path("bench/peer.py");
    let checked = output(Command::new(python).arg(&script).arg("check").arg(exported))?;
    let agreement: Value = serde_json::from_str(&checked).context("the peer's check wrote no JSON")?;
    say!("both compute the same: {}", agreement["relative_l2"]);
    let job: Value = serde_json::from_str(&fs::read_to_string(exported.join("job.json"))?)?;

    let mut contenders = vec![Contender::new("flow-train")];
    contenders.extend(
        options
            .peers
            .iter()
            .map(|mode| Contender::new(&format!("PyTorch {mode}"))),
    );
    for round in 0..options.rounds {
        for turn in 0..contenders.len() {
            // Every contender is first as often as the others, so that none always meets a warmer processor.
            let index = (turn + round) % contenders.len();
            let command = || {
                let (repeats, threads) = (options.repeats.to_string(), options.threads.to_string());
                if index == 0 {
                    let mut command = Command::new(ours);
                    command.arg("time").arg(&path).arg(repeats).arg(threads);
                    command
                } else {
                    let mut command = Command::new(python);
                    command.arg(&script).arg("time").arg(exported).arg(repeats);
                    command.arg(&options.peers[index - 1]).arg(threads);
                    command
                }
            };
            let (found, others) = undisturbed(options.attempts, command)?;
            contenders[index].add(&found, others)?;
            say!(
                "round {} of {}: {}",
                round + 1,
                options.rounds,
                contenders[index].last()
            );
        }
    }
    Ok(Outcome {
        config: config.into(),
        job,
        agreement,
        contenders,
    })
}

/// Measures until nothing else used the processor meanwhile; gives the measurement and the share that others used.
fn undisturbed(attempts: u64, command: impl Fn() -> Command) -> Result<(Value, f64)> {
    let mut attempt = 1;
    loop {
        quiet::wait(attempts);
        let before = quiet::Ticks::now();
        let text = output(&mut command())?;
        let others = before
            .zip(quiet::Ticks::now())
            .map_or(0.0, |(before, after)| after.others_since(before));
        if others <= quiet::ALLOWED || attempt >= attempts {
            let found = serde_json::from_str(&text).context("a measurement wrote no JSON")?;
            return Ok((found, others));
        }
        say!(
            "  others used {:.0} % of the processor; once more",
            100.0 * others
        );
        attempt += 1;
    }
}

fn processor() -> String {
    let text = fs::read_to_string(PathBuf::from("/proc/cpuinfo")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line
        .and_then(|line| line.split_once(':'))
        .map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn date() -> Result<String> {
    Ok(output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?
        .trim()
        .to_owned())
}
