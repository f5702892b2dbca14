//! A job over several seeds: gains with intervals, written into the book.

use crate::process::{run as run_command, set_path};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use flow_report::{Audit, Interval, IntervalMethod, RewardChange, RunStatus, RunSummary, mean_interval};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A run with its seed.
struct Seeded {
    seed: u64,
    summary: RunSummary,
}

/// One reward over all seeds.
struct Gain {
    name: String,
    measured_on: String,
    before: Interval,
    after: Interval,
    gain: Interval,
}

/// Runs `job` with each seed and writes `docs/src/golden/JOB.md` and `.json`.
pub fn run(
    workspace: &Workspace,
    program: &Path,
    job: &str,
    seeds: &[u64],
    overrides: &[String],
) -> Result<()> {
    let config = format!("configs/{job}.toml");
    if !workspace.path(&config).exists() {
        bail!("there is no {config}");
    }
    let folder = tempfile::tempdir()?;
    let mut runs = Vec::new();
    for seed in seeds {
        let name = format!("{job}-seed-{seed}");
        let mut command = Command::new(program);
        command.current_dir(workspace.root()).arg("train").arg(&config);
        for value in overrides {
            command.arg("--set").arg(value);
        }
        command
            .arg("--set")
            .arg(format!("run.seed={seed}"))
            .arg("--set")
            .arg(format!("run.name={name}"));
        run_command(command.arg("--set").arg(set_path("run.dir", folder.path())))?;
        let file = folder.path().join(&name).join("summary.json");
        let text =
            fs::read_to_string(&file).with_context(|| format!("the run wrote no {}", file.display()))?;
        let summary: RunSummary = serde_json::from_str(&text).context("summary.json has an unknown form")?;
        if summary.status != RunStatus::Finished {
            bail!("the run with seed {seed} did not finish: {:?}", summary.status);
        }
        runs.push(Seeded { seed: *seed, summary });
    }
    let gains = gains(&runs)?;
    let page = page(workspace, job, &runs, &gains)?;
    say!("\n{page}");
    if !overrides.is_empty() {
        say!("nothing was written, since values were overridden");
        return Ok(());
    }
    let target = workspace.path("docs/src/golden");
    fs::create_dir_all(&target)?;
    fs::write(target.join(format!("{job}.md")), page)?;
    let document = serde_json::to_string_pretty(&record(job, &runs, &gains))?;
    fs::write(target.join(format!("{job}.json")), document + "\n")?;
    say!("wrote docs/src/golden/{job}.md and .json; list the page in docs/src/SUMMARY.md if it is new");
    Ok(())
}

fn gains(runs: &[Seeded]) -> Result<Vec<Gain>> {
    let first = runs.first().context("no seeds")?;
    let mut gains = Vec::new();
    for (index, reward) in first.summary.rewards.iter().enumerate() {
        let of = |value: &dyn Fn(&RewardChange) -> &Interval| -> Result<Interval> {
            let values: Option<Vec<f64>> = runs
                .iter()
                .map(|run| run.summary.rewards.get(index).map(|reward| value(reward).mean))
                .collect();
            let values = values.context("the runs have different rewards")?;
            Ok(mean_interval(&values, IntervalMethod::StudentT)?.within(value(reward).range))
        };
        gains.push(Gain {
            name: reward.name.clone(),
            measured_on: reward.measured_on.clone(),
            before: of(&|reward| &reward.before)?,
            after: of(&|reward| &reward.after)?,
            gain: of(&|reward| &reward.difference.interval)?,
        });
    }
    Ok(gains)
}

fn page(workspace: &Workspace, job: &str, runs: &[Seeded], gains: &[Gain]) -> Result<String> {
    let mut text = format!(
        "# {job} over {} seeds\n\nWritten by `cargo xtask golden --only runs {job}`, offline, at commit `{}`.\n\n\
         Rewards are means over held-out prompts. Intervals are 95 % intervals of Student's t: over the seeds in the \
         first table, over the prompts of one run in the second; they end where a reward's range ends.\n\n",
        runs.len(),
        commit(workspace)
    );
    writeln!(text, "| reward | before | after | gain |\n|---|---|---|---|")?;
    for gain in gains {
        let Gain {
            name,
            before,
            after,
            gain,
            ..
        } = gain;
        writeln!(
            text,
            "| {name} | {} | {} | **{}** |",
            before.text(3),
            after.text(3),
            gain.text(3)
        )?;
    }
    writeln!(
        text,
        "\n| seed | reward | before | after | gain by prompt | prompts up / same / down |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|")?;
    for run in runs {
        for reward in &run.summary.rewards {
            let RewardChange {
                name,
                before,
                after,
                difference,
                ..
            } = reward;
            writeln!(
                text,
                "| {} | {name} | {} | {} | {} | {} / {} / {} |",
                run.seed,
                before.text(3),
                after.text(3),
                difference.interval.text(3),
                difference.improved,
                difference.unchanged,
                difference.worsened
            )?;
        }
    }
    writeln!(
        text,
        "\n| seed | iterations | images | seconds | peak memory (GiB) | on-policy audit |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|")?;
    for Seeded { seed, summary } in runs {
        let peaks: Vec<String> = summary
            .peak_memory_gib
            .iter()
            .map(|(place, gib)| format!("{gib:.2} ({place})"))
            .collect();
        let audit = audit(&summary.audit);
        let (steps, images, wall_s) = (summary.steps, summary.images, summary.wall_s);
        writeln!(
            text,
            "| {seed} | {steps} | {images} | {wall_s:.0} | {} | {audit} |",
            peaks.join(", ")
        )?;
    }
    let places: Vec<&str> = gains.iter().map(|gain| &*gain.measured_on).collect();
    if let Some(place) = places.first().filter(|place| !place.is_empty()) {
        writeln!(
            text,
            "\nMeasured on {place}, with the same noise before and after."
        )?;
    }
    Ok(text)
}

fn audit(audit: &Audit) -> String {
    match audit {
        Audit::NotRun { why } => format!("not run: {why}"),
        Audit::Pending => "pending".into(),
        Audit::Exact { rollouts, elements } => {
            format!("exact: {elements} ratios of {rollouts} rollouts are 1")
        }
        Audit::Deviated { largest, place, .. } => format!("up to {largest:.1e} off at {place}"),
    }
}

fn record(job: &str, runs: &[Seeded], gains: &[Gain]) -> Value {
    let gains: Vec<Value> = gains
        .iter()
        .map(|gain| {
            json!({
                "reward": gain.name,
                "measured_on": gain.measured_on,
                "before": gain.before,
                "after": gain.after,
                "gain": gain.gain,
            })
        })
        .collect();
    let runs: Vec<Value> = runs
        .iter()
        .map(|run| json!({ "seed": run.seed, "summary": run.summary }))
        .collect();
    json!({ "job": job, "gains_over_seeds": gains, "runs": runs })
}

fn commit(workspace: &Workspace) -> String {
    let done = Command::new("git")
        .current_dir(workspace.root())
        .args(["rev-parse", "--short", "HEAD"])
        .output();
    match done {
        Ok(done) if done.status.success() => String::from_utf8_lossy(&done.stdout).trim().to_owned(),
        _ => "unknown".into(),
    }
}
