//! `cargo xtask bench cache`: what each policy of the feature cache saves and changes on trained toy models, with DiffusionNFT.
//!
//! Everything is measured by `flow-train drift`: each rollout is sampled with the cache and once more without, from the same
//! noise. Block evaluations and everything that is compared are exact numbers; processor time is that of the process, and wall
//! time is what the clock says while others may use the machine.

mod curve;

use super::built::Built;
use super::{date, processor};
use crate::process::output;
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use curve::{Job, Row};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How to measure the feature cache.
#[derive(Debug, Args)]
pub struct Options {
    /// Rollouts that are compared per row on the digits; the shapes, whose images are larger, get a quarter.
    #[arg(long, default_value_t = 8)]
    rollouts: u64,
    /// The built program; without it, it is built.
    #[arg(long)]
    program: Option<PathBuf>,
    /// A JSON of results: writes its report and pictures again, and measures nothing.
    #[arg(long)]
    from: Option<PathBuf>,
    /// Where the results go.
    #[arg(long, default_value = "bench/results")]
    to: PathBuf,
}

/// Name, config, what makes it DiffusionNFT of 28 steps, and by what the number of rollouts is divided.
const JOBS: [(&str, &str, &[&str], u64); 2] = [
    ("digits", "configs/digits-nft.toml", &["scheduler.steps=28"], 1),
    (
        "shapes",
        "configs/shapes-grpo.toml",
        &[
            "algorithm={ kind = \"nft\" }",
            "scheduler={ dynamics = \"ode\", steps = 28 }",
        ],
        4,
    ),
];

/// Policies in the order of the table: name of the curve, parameters, and the values of the parameter that is swept.
const POLICIES: [(&str, &str, &[&str]); 12] = [
    (
        "first_block",
        "policy = \"first_block\", threshold = @",
        &["0.04", "0.08", "0.12", "0.16", "0.24"],
    ),
    (
        "db_cache",
        "policy = \"db_cache\", front_blocks = 2, order = 1, threshold = @",
        &["0.04", "0.08", "0.16", "0.24"],
    ),
    (
        "step_mask",
        "policy = \"step_mask\", mask = \"@\"",
        &["slow", "medium", "fast", "ultra"],
    ),
    (
        "taylorseer, attention",
        "policy = \"taylorseer\", interval = @",
        &["2", "3", "5"],
    ),
    (
        "taylorseer, velocity",
        "policy = \"taylorseer\", target = \"velocity\", interval = @",
        &["2", "3", "4", "6"],
    ),
    (
        "newton, velocity",
        "policy = \"taylorseer\", target = \"velocity\", basis = \"newton\", interval = @",
        &["2", "3", "4", "6"],
    ),
    (
        "newton of order 2, velocity",
        "policy = \"taylorseer\", target = \"velocity\", basis = \"newton\", order = 2, interval = @",
        &["2", "3", "4", "6"],
    ),
    (
        "magcache",
        "policy = \"magcache\", $magcache, threshold = @",
        &["0.03", "0.06", "0.12", "0.24"],
    ),
    (
        "teacache",
        "policy = \"teacache\", $teacache, threshold = @",
        &["0.1", "0.2", "0.4", "0.6"],
    ),
    (
        "easycache",
        "policy = \"easycache\", threshold = @",
        &["0.025", "0.05", "0.1", "0.2"],
    ),
    (
        "pyramid",
        "policy = \"pyramid\", spatial_every = @",
        &["2", "3", "5"],
    ),
    (
        "auto",
        "policy = \"auto\", target_error = @",
        &["0.002", "0.005", "0.01", "0.02", "0.04"],
    ),
];

/// What `drift` and `calibrate` are asked on.
struct Program<'a> {
    path: PathBuf,
    workspace: &'a Workspace,
}

impl Program<'_> {
    fn ask(&self, command: &str, config: &str, more: &[&str], set: &[&str]) -> Result<String> {
        let mut program = Command::new(&self.path);
        program
            .args(["--quiet", command])
            .arg(self.workspace.path(config))
            .args(more);
        for setting in set {
            program.args(["--set", setting]);
        }
        output(&mut program)
    }

    fn drift(&self, config: &str, rollouts: u64, set: &[&str]) -> Result<Value> {
        let count = rollouts.max(1).to_string();
        let text = self.ask("drift", config, &["--json", "--rollouts", &count], set)?;
        serde_json::from_str(&text).with_context(|| format!("`drift` wrote no JSON: {text}"))
    }

    /// `key = […]` as `calibrate` measures it.
    fn calibrated(&self, config: &str, policy: &str, key: &str, set: &[&str]) -> Result<String> {
        let text = self.ask("calibrate", config, &["--policy", policy], set)?;
        let line = text.lines().find(|line| line.starts_with(key));
        Ok(line
            .with_context(|| format!("`calibrate` wrote no {key}"))?
            .to_owned())
    }
}

/// Measures, checks, and writes the report.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let to = workspace.path(&options.to.to_string_lossy());
    if let Some(from) = &options.from {
        let document: Value =
            serde_json::from_str(&fs::read_to_string(workspace.path(&from.to_string_lossy()))?)?;
        return write(&to, &document);
    }
    let path = Built::program("flow-train").or_given(workspace, &options.program)?;
    let program = Program { path, workspace };
    let mut jobs = Vec::new();
    for (name, config, set, _) in JOBS {
        let magcache = program.calibrated(config, "magcache", "ratios", set)?;
        let teacache = program.calibrated(config, "teacache", "coefficients", set)?;
        let mut rows = Vec::new();
        for (policy, template, values) in POLICIES {
            for value in values {
                let params = template
                    .replace("$magcache", &magcache)
                    .replace("$teacache", &teacache)
                    .replace('@', value);
                let entry = entry(&params);
                let settings: Vec<&str> = set.iter().copied().chain([&*entry]).collect();
                let found = program.drift(config, rollouts_of(name, options.rollouts), &settings)?;
                let row = Row {
                    policy: policy.into(),
                    value: (*value).into(),
                    found,
                };
                say!("{name}: {}", row.line()?);
                rows.push(row);
            }
        }
        jobs.push(Job {
            name: name.into(),
            config: config.into(),
            rows,
        });
    }
    let eight = eight_steps(&program)?;
    let coupled = coupled(&program, options.rollouts)?;
    let about = json!({
        "date": date()?,
        "processor": processor(),
        "rollouts": options.rollouts,
        "rustc": output(Command::new("rustc").arg("--version"))?.trim(),
    });
    let document = json!({
        "about": about,
        "jobs": jobs.iter().map(Job::json).collect::<Vec<_>>(),
        "eight_steps": eight,
        "coupled": coupled,
    });
    write(&to, &document)?;
    curve::goal(&jobs)
}

/// Rollouts per row of the job called `name` if the first job has `rollouts`: at least one.
fn rollouts_of(name: &str, rollouts: u64) -> u64 {
    let divisor = JOBS.iter().find(|(job, ..)| *job == name);
    (rollouts / divisor.map_or(1, |(.., divisor)| *divisor)).max(1)
}

fn entry(params: &str) -> String {
    format!("acceleration.rollout={{ name = \"feature_cache\", params = {{ {params} }} }}")
}

/// With 8 steps and the defaults nothing is reused, and no bit differs.
fn eight_steps(program: &Program<'_>) -> Result<Value> {
    let entry = entry("policy = \"first_block\"");
    let found = program.drift(JOBS[0].1, 1, &["scheduler.steps=8", &entry])?;
    let blocks = &found["block_evaluations"];
    ensure!(
        blocks["with"] == blocks["without"] && found["psnr_db"].is_null() && found["latent_l1"] == 0.0,
        "with 8 steps and the default threshold something was reused: {found}"
    );
    Ok(found)
}

/// Coupled GRPO, whose random steps are computed: the rollout, and the audit of a short run.
fn coupled(program: &Program<'_>, rollouts: u64) -> Result<Value> {
    let config = "configs/digits-grpo.toml";
    let params = "policy = \"taylorseer\", target = \"velocity\", basis = \"newton\", interval = 3, scope = \
                  \"outside_sde_window\"";
    let entry = entry(params);
    let set = [
        "scheduler.steps=28",
        "scheduler.window={ kind = \"list\", steps = [4, 5, 6] }",
        &entry,
    ];
    let found = program.drift(config, rollouts, &set)?;
    let folder = tempfile::tempdir()?;
    let directory = format!("run.dir=\"{}\"", folder.path().display());
    let short = [
        &directory,
        "run.steps=2",
        "evaluation.every=0",
        "logging.html_report=false",
    ];
    let set: Vec<&str> = set.iter().copied().chain(short).collect();
    program.ask("train", config, &[], &set)?;
    let metrics = find(folder.path(), "metrics.jsonl")?;
    let mut largest = 0.0f64;
    let mut audited = 0;
    for line in fs::read_to_string(metrics)?.lines() {
        let record: Value = serde_json::from_str(line)?;
        if let Some(deviation) = record["on_policy/max_ratio_deviation"].as_f64() {
            largest = largest.max(deviation);
            audited += 1;
        }
    }
    let blocks = &found["block_evaluations"];
    ensure!(
        audited > 0 && largest == 0.0,
        "the audit of a coupled run reads {largest}"
    );
    ensure!(
        blocks["with"].as_f64() < blocks["without"].as_f64(),
        "nothing was left out outside of the window: {blocks}"
    );
    Ok(
        json!({ "params": params, "found": found, "audited_rollouts": audited, "max_ratio_deviation": largest }),
    )
}

fn find(folder: &Path, name: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if let Ok(found) = find(&path, name) {
                return Ok(found);
            }
        } else if path.file_name().is_some_and(|file| file == name) {
            return Ok(path);
        }
    }
    bail!("no {name} in {}", folder.display())
}

/// Writes everything that is told of a document of results.
fn write(to: &Path, document: &Value) -> Result<()> {
    fs::create_dir_all(to)?;
    let about = &document["about"];
    let stem = format!("feature-cache-{}", about["date"].as_str().unwrap_or_default());
    let jobs = document["jobs"].as_array().context("results have jobs")?;
    let jobs: Vec<Job> = jobs.iter().map(Job::read).collect::<Result<_>>()?;
    for job in &jobs {
        for (name, picture) in curve::pictures(job)? {
            fs::write(to.join(format!("{stem}-{}-{name}.svg", job.name)), picture)?;
        }
    }
    let report = curve::report(about, &jobs, &stem, document)?;
    fs::write(to.join(format!("{stem}.md")), report)?;
    fs::write(
        to.join(format!("{stem}.json")),
        serde_json::to_string_pretty(document)? + "\n",
    )?;
    say!("wrote {}/{stem}.md, .json and pictures", to.display());
    Ok(())
}
