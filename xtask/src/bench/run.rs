//! `cargo xtask bench run`: a whole run, ours and PyTorch's, from the same weights, with the same prompts, noise and
//! hyper-parameters: reward against images and against seconds.
//!
//! With a config it pretrains, if the weights are not there and this makes them, trains, and lets `bench/run_peer.py` do the
//! same. Without one it draws curves of runs that were made before.

mod curve;
#[cfg(test)]
mod tests;

use super::job::{Asked, Job};
use crate::peer;
use crate::process::run as run_command;
use crate::terminal::say;
use crate::workspace::{Workspace, normal};
use anyhow::{Context, Result, bail};
use clap::Args;
use curve::Curve;
use flow_config::Config;
use flow_report::LineChart;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How to compare runs.
#[derive(Debug, Args)]
pub struct Options {
    /// The config whose run is made here and in PyTorch.
    config: Option<String>,
    #[command(flatten)]
    asked: Asked,
    /// A curve that is there already, as `LABEL=PATH`: the folder of a run, or the lines of `run_peer.py`.
    #[arg(long)]
    curve: Vec<String>,
    /// The label of a curve that is drawn against images alone, as its seconds say nothing: its run shared a device with others.
    #[arg(long, value_name = "LABEL")]
    images_only: Vec<String>,
    /// The evaluation reward that is drawn.
    #[arg(long, default_value = "all-right")]
    reward: String,
    /// The reward that is asked for.
    #[arg(long, default_value_t = 0.9)]
    goal: f64,
    /// How PyTorch runs: `eager`, `compile` or `graphs`; without it, `graphs` on a GPU and `compile` on the processor.
    #[arg(long)]
    mode: Option<String>,
    /// Lets PyTorch try kernels of products (`max-autotune-no-cudagraphs`), which takes minutes.
    #[arg(long)]
    tuned: bool,
    /// The Python whose PyTorch is the peer; without it one is made in the user's cache folder.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Folder for the runs, the lines of PyTorch and the picture.
    #[arg(long, default_value = "runs/bench-run")]
    to: PathBuf,
    /// Name of the picture and the table; without it, the run's, or `runs`.
    #[arg(long)]
    name: Option<String>,
}

/// Runs both, if there is a config, and draws.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.config.is_none() && options.curve.is_empty() {
        bail!("give a config to run, or curves to draw: `--curve LABEL=PATH`");
    }
    let mut curves = Vec::new();
    let mut name = "runs".to_owned();
    if let Some(config) = &options.config {
        let made = Made::new(workspace, options, config)?;
        let algorithm = made.algorithm.clone();
        curves.push(Curve::of_run(
            &format!("{algorithm}, flow-train"),
            &made.run,
            &options.reward,
        )?);
        let lines = made.peer(workspace, options)?;
        curves.push(Curve::of_lines(
            &format!("{algorithm}, PyTorch"),
            &lines,
            &options.reward,
        )?);
        name = made.name;
    }
    for given in &options.curve {
        let (label, path) =
            (given.split_once('=')).with_context(|| format!("`{given}` is not LABEL=PATH"))?;
        curves.push(Curve::read(label, Path::new(path), &options.reward)?);
    }
    expect_labels(&curves, &options.images_only)?;
    fs::create_dir_all(&options.to)?;
    let stem = options.to.join(options.name.as_ref().unwrap_or(&name));
    let table = curve::table(&curves, options.goal);
    say!("{table}");
    fs::write(stem.with_extension("md"), &table)?;
    fs::write(stem.with_extension("svg"), picture(&curves, options))?;
    say!("wrote {0}.md and {0}.svg", stem.display());
    Ok(())
}

/// Each of `labels` is that of a curve.
fn expect_labels(curves: &[Curve], labels: &[String]) -> Result<()> {
    for label in labels {
        if curves.iter().all(|curve| curve.label() != label) {
            let there: Vec<String> = curves
                .iter()
                .map(|curve| format!("`{}`", curve.label()))
                .collect();
            bail!(
                "`--images-only` names `{label}`, and there is no such curve: there are {}",
                there.join(", ")
            );
        }
    }
    Ok(())
}

/// Reward against images, and against seconds.
fn picture(curves: &[Curve], options: &Options) -> String {
    let chart = |title: &str, label: &str, shown: &[&Curve], x: fn(&curve::Point) -> f64| {
        let empty = LineChart::new(title, label, &format!("`{}` on held-out prompts", options.reward));
        let with_goal = empty.round_x().reference(options.goal, "goal");
        (shown.iter()).fold(with_goal, |chart, curve| chart.with(curve.series(x)))
    };
    let all: Vec<&Curve> = curves.iter().collect();
    let is_timed = |curve: &&Curve| options.images_only.iter().all(|label| curve.label() != label);
    let timed: Vec<&Curve> = curves.iter().filter(is_timed).collect();
    let mut charts = vec![chart("Reward against images", "images", &all, |point| {
        point.images
    })];
    if !timed.is_empty() {
        charts.push(chart("Reward against seconds", "seconds", &timed, |point| {
            point.seconds
        }));
    }
    LineChart::row("Reward against images and against seconds", &charts)
}

/// What both start from.
#[derive(Debug)]
struct Weights {
    file: PathBuf,
    /// Whether the config has to make them first.
    missing: bool,
}

impl Weights {
    /// The file that a config names. If it is not there, its own `[pretrain]` must be what makes it: another one would take its
    /// time and leave the run without weights.
    fn of(path: &Path, config: &Config) -> Result<Self> {
        let named = (config.model.weights.as_ref()).with_context(|| {
            format!(
                "{} names no `model.weights`, from which both programs would start: name a file, which the config's \
                 `[pretrain]` makes if `pretrain.output` is the same",
                path.display()
            )
        })?;
        let base = flow_config::base_dir(path);
        let (file, output) = (base.join(named), base.join(&config.pretrain.output));
        let missing = !file.exists();
        if missing && normal(&file) != normal(&output) {
            bail!(
                "there is no {}, the `model.weights` of {}, whose `pretrain.output` is another file, {}: make the weights first, \
                 with `flow-train pretrain CONFIG` and the config whose `pretrain.output` they are",
                normal(&file).display(),
                path.display(),
                normal(&output).display()
            );
        }
        Ok(Self { file, missing })
    }
}

/// A run that was made here.
struct Made {
    run: PathBuf,
    name: String,
    algorithm: String,
    weights: PathBuf,
    device: String,
    dtype: String,
}

impl Made {
    fn new(workspace: &Workspace, options: &Options, config: &str) -> Result<Self> {
        let job = Job::new(workspace, config, &options.asked)?;
        let Weights {
            file: weights,
            missing,
        } = Weights::of(&job.path, &job.config)?;
        if missing {
            run_command(&mut job.command("pretrain", &[]))?;
        }
        fs::create_dir_all(&options.to)?;
        let folder = fs::canonicalize(&options.to)?;
        let name = job.config.run.name.clone();
        let run = folder.join(&name);
        if run.exists() {
            bail!(
                "{} is there already; remove it, or give `--set run.name=…`",
                run.display()
            );
        }
        let into_folder = [format!("run.dir=\"{}\"", folder.display())];
        run_command(&mut job.command("train", &into_folder))?;
        let about: Value = serde_json::from_str(&fs::read_to_string(run.join("run.json"))?)?;
        let word = |pointer: &str| {
            let found = about["config"].pointer(pointer).and_then(Value::as_str);
            (found.map(str::to_owned)).with_context(|| format!("run.json has no {pointer}"))
        };
        Ok(Self {
            algorithm: word("/algorithm/kind")?,
            device: word("/device/kind")?,
            dtype: word("/device/dtype")?,
            run,
            name,
            weights,
        })
    }

    /// The same in PyTorch; gives the file of its lines.
    fn peer(&self, workspace: &Workspace, options: &Options) -> Result<PathBuf> {
        let python = options.python.clone().map_or_else(peer::python, Ok)?;
        let lines = self.run.with_extension("peer.jsonl");
        let best = if self.device == "cuda" {
            "graphs"
        } else {
            "compile"
        };
        let mut command = Command::new(python);
        command.arg(workspace.path("bench/run_peer.py")).arg("train");
        command
            .arg(self.run.join("run.json"))
            .arg("--weights")
            .arg(&self.weights);
        command.args([
            "--device",
            &self.device,
            "--dtype",
            &self.dtype,
            "--mode",
            options.mode.as_deref().unwrap_or(best),
        ]);
        if options.tuned {
            command.arg("--tuned");
        }
        run_command(command.arg("--to").arg(&lines))?;
        Ok(lines)
    }
}
