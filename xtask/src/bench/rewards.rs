//! `cargo xtask bench rewards`: images a second of each reward that is computed in the process, on the processor, and what it holds in
//! memory. Networks have random weights at the shapes of the published ones; the OCR reward is timed where its files are.

use super::built::Built;
use super::{date, processor};
use crate::process::output;
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is timed without further files, the fast ones first.
const REWARDS: [&str; 7] = [
    "jpeg-compressibility",
    "target-colour",
    "clip-score",
    "aesthetic",
    "imagereward",
    "pickscore",
    "hpsv2",
];

/// How to time rewards.
#[derive(Debug, Args)]
pub struct Options {
    /// Rewards to time; without any, all of them. `pickscore` and `hpsv2` take a minute for 16 images on two cores, and 8 GB.
    rewards: Vec<String>,
    /// Images of one call.
    #[arg(long, default_value_t = 16)]
    images: usize,
    /// Calls that are timed.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Threads of the processor.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// A folder with PP-OCR's ONNX files, as `flow-train fetch ocr` makes it: `ocr` is timed, too.
    #[arg(long)]
    ocr: Option<PathBuf>,
    /// The folder that results are written to; without it none are.
    #[arg(long)]
    to: Option<PathBuf>,
}

/// Times and prints.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.images == 0 || options.repeats == 0 || options.threads == 0 {
        bail!("--images, --repeats and --threads must be at least 1");
    }
    for name in &options.rewards {
        if !REWARDS.contains(&name.as_str()) {
            bail!(
                "`{name}` is not timed here; choose from {}, or name a folder by --ocr",
                REWARDS.join(", ")
            );
        }
    }
    let all = REWARDS.map(str::to_owned);
    // A folder of PP-OCR's alone asks for nothing else.
    let chosen: &[String] = match (options.rewards.is_empty(), &options.ocr) {
        (true, None) => &all[..],
        _ => &options.rewards[..],
    };
    let mut found = Vec::new();
    if !chosen.is_empty() {
        let program = Built::example("flow-rewards-models", "reward_speed").or_given(workspace, &None)?;
        for name in chosen {
            found.push(timed(&program, Path::new(name), options)?);
        }
    }
    if let Some(folder) = &options.ocr {
        let program = Built::example("flow-rewards-ocr", "ocr_speed").or_given(workspace, &None)?;
        found.push(timed(&program, folder, options)?);
    }
    say!("\n| reward | weights, millions | memory in f32, GiB | images a second |\n|---|---|---|---|");
    for each in &found {
        say!("{}", row(each)?);
    }
    let Some(folder) = &options.to else {
        return Ok(());
    };
    fs::create_dir_all(folder)?;
    let about = json!({ "date": date()?, "processor": processor(), "threads": options.threads });
    let document = serde_json::to_string_pretty(&json!({ "about": about, "rewards": found }))?;
    let path = folder.join(format!(
        "rewards-cpu-{}.json",
        about["date"].as_str().unwrap_or_default()
    ));
    fs::write(&path, document + "\n")?;
    say!("wrote {}", path.display());
    Ok(())
}

/// What `program` prints of a reward, or of a folder with its files.
fn timed(program: &Path, what: &Path, options: &Options) -> Result<Value> {
    let mut command = Command::new(program);
    command
        .arg(what)
        .arg(options.images.to_string())
        .arg(options.repeats.to_string())
        .env("RAYON_NUM_THREADS", options.threads.to_string());
    let text = output(&mut command)?;
    let found: Value = serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))?;
    say!("{found}");
    Ok(found)
}

/// A row of the table: the fastest call counts, for whatever else the machine does makes calls slower and none faster.
fn row(found: &Value) -> Result<String> {
    let name = found["reward"].as_str().context("a reward has a name")?;
    let values = found["values"].as_f64().context("a reward has so many weights")?;
    let rates = found["images_per_s"].as_array().context("a reward has times")?;
    let best = rates.iter().filter_map(Value::as_f64).fold(0.0, f64::max);
    let (millions, gib) = (values / 1e6, values * 4.0 / f64::from(1 << 30));
    Ok(match values > 0.0 {
        true => format!("| `{name}` | {millions:.0} | {gib:.2} | {best:.3} |"),
        false => format!("| `{name}` | – | – | {best:.1} |"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_fastest_call_and_the_memory_of_the_weights() {
        let found =
            json!({ "reward": "pickscore", "values": 986_109_441, "images_per_s": [0.25, 0.264, 0.2] });
        assert_eq!(row(&found).unwrap(), "| `pickscore` | 986 | 3.67 | 0.264 |");
        let found = json!({ "reward": "target-colour", "values": 0, "images_per_s": [1200.04] });
        assert_eq!(row(&found).unwrap(), "| `target-colour` | – | – | 1200.0 |");
        assert!(row(&json!({ "reward": "x", "values": 1 })).is_err());
    }
}
