//! `cargo xtask bench options`: what each option of the runtimes does to a run, in processes of its own.
//!
//! Every setting trains the same iterations from every seed, in turns. Seconds are the median of the last half of the
//! iterations, when all is compiled; what comes before counts as the start. A setting has an effect if it shows with every
//! seed, in one direction, by more than runs without options differ from each other: "no effect" is an answer. Options must not
//! change what is computed, so the metrics of a setting have to be those without options, byte for byte.

mod outcome;
#[cfg(test)]
mod tests;

use super::job::{Asked, Job};
use crate::process::words;
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use clap::Args;
use flow_config::DeviceKind;
use outcome::{Measured, Outcome, document, table};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

/// Settings that are tried on a GPU where none are named: all that act on how kernels are launched, stored and given memory.
const ON_A_GPU: [(&str, &str); 9] = [
    ("cubecl.memory.cuda.allocator", "\"async\""),
    ("cubecl.memory.persistent_memory", "\"size-match\""),
    ("cubecl.memory.persistent_memory", "\"disabled\""),
    ("cubecl.streaming.policy", "\"single\""),
    ("cubecl.streaming.max_streams", "1"),
    ("cubecl.streaming.priority", "\"high\""),
    ("cubecl.compilation.check_mode", "\"enforce\""),
    ("cubecl.compilation.cache", "true"),
    ("burn.autodiff.logger.level", "\"full\""),
];

/// On a processor the runtimes read nothing but the log of backward passes.
const ON_A_PROCESSOR: [(&str, &str); 1] = [("burn.autodiff.logger.level", "\"full\"")];

/// How to sweep.
#[derive(Debug, Args)]
pub struct Options {
    /// The config whose training is measured.
    #[arg(default_value = "configs/digits-grpo.toml")]
    config: String,
    #[command(flatten)]
    asked: Asked,
    /// A setting to try, as `OPTION=VALUE` with the value as TOML; may be given several times. Without any, those that may
    /// act on the config's device.
    #[arg(long = "option")]
    settings: Vec<String>,
    /// Seeds; each setting is run with each.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    seeds: Vec<u64>,
    /// Iterations of each run. The first half is not measured.
    #[arg(long, default_value_t = 12)]
    iterations: usize,
    /// Files for the table and the measurements, less `.md` and `.json`.
    #[arg(long)]
    to: Option<PathBuf>,
}

/// A setting of one option, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting(Option<(String, String)>);

impl Setting {
    fn parse(text: &str) -> Result<Self> {
        let (option, value) =
            (text.split_once('=')).with_context(|| format!("`--option {text}` is not OPTION=VALUE"))?;
        Ok(Self::of(option.trim(), value.trim()))
    }

    fn of(option: &str, value: &str) -> Self {
        Self(Some((option.to_owned(), value.to_owned())))
    }

    fn name(&self) -> String {
        match &self.0 {
            None => "no option".into(),
            Some((option, value)) => format!("{option} = {value}"),
        }
    }

    /// What `--set` takes: the options that the config has anyway, `base`, with this one over them; logs and caches that it
    /// asks for are in `folder`.
    fn arguments(&self, base: &BTreeMap<String, Value>, folder: &Path) -> Result<Vec<String>> {
        let mut options = base.clone();
        if let Some((option, value)) = &self.0 {
            let read: toml::Table = format!("value = {value}")
                .parse()
                .with_context(|| format!("`--option {option}={value}`: the value is not TOML"))?;
            options.insert(option.clone(), serde_json::to_value(&read["value"])?);
            let place = folder.display();
            if let Some(log) = option.strip_suffix(".logger.level") {
                options.insert(format!("{log}.logger.file"), format!("{place}/log").into());
            }
            if option == "cubecl.compilation.cache" {
                options.insert(
                    "cubecl.environment.path".into(),
                    json!({ "directory": format!("{place}/cache") }),
                );
            }
        }
        if options.is_empty() {
            return Ok(Vec::new());
        }
        let table = toml::Value::try_from(options)?;
        Ok(vec!["--set".into(), format!("runtime.options={table}")])
    }
}

/// Sweeps, and tells.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.iterations < 2 || options.seeds.is_empty() {
        bail!("--iterations must be at least 2, and there must be a seed");
    }
    let job = Job::new(workspace, &options.config, &options.asked)?.found()?;
    let named: Vec<Setting> = (options.settings.iter())
        .map(|text| Setting::parse(text))
        .collect::<Result<_>>()?;
    let kind = job.config.device.kind;
    let built_in = match kind {
        DeviceKind::Cuda => &ON_A_GPU[..],
        _ => &ON_A_PROCESSOR,
    };
    let tried = match named.is_empty() {
        true => built_in
            .iter()
            .map(|(option, value)| Setting::of(option, value))
            .collect(),
        false => named,
    };
    // Twice without options: how far two runs of the same lie apart.
    let settings: Vec<Setting> = [Setting(None), Setting(None)].into_iter().chain(tried).collect();
    let sweep = Sweep {
        job,
        iterations: options.iterations,
    };
    let mut outcomes: Vec<Outcome> = settings
        .iter()
        .map(|setting| Outcome::new(&setting.name()))
        .collect();
    for (round, seed) in options.seeds.iter().enumerate() {
        for turn in 0..settings.len() {
            let index = (turn + round) % settings.len();
            let measured = sweep.measure(&settings[index], *seed)?;
            say!("seed {seed}, {}: {measured}", settings[index].name());
            outcomes[index].add(measured);
        }
    }
    let text = table(&outcomes);
    say!("\n{text}");
    if let Some(stem) = &options.to {
        let about = json!({
            "config": options.config, "set": options.asked.set, "seeds": options.seeds, "iterations": options.iterations,
            "device": kind.name(),
        });
        fs::write(stem.with_extension("md"), &text)?;
        let written = serde_json::to_string_pretty(&document(&about, &outcomes))?;
        fs::write(stem.with_extension("json"), written + "\n")?;
    }
    Ok(())
}

struct Sweep<'a> {
    job: Job<'a>,
    iterations: usize,
}

impl Sweep<'_> {
    /// Trains in a process and a folder of its own.
    fn measure(&self, setting: &Setting, seed: u64) -> Result<Measured> {
        let folder = tempfile::tempdir()?;
        let fixed = [
            format!("run.seed={seed}"),
            format!("run.steps={}", self.iterations),
            format!("run.dir=\"{}\"", folder.path().display()),
            "run.name=\"swept\"".into(),
            "evaluation.every=0".into(),
            "checkpoints.every=0".into(),
            "logging.html_report=false".into(),
        ];
        let mut command = self.job.command("train", &fixed);
        command.args(setting.arguments(&self.job.config.runtime.options, folder.path())?);
        let words = words(&command);
        let start = Instant::now();
        let done = (command.stdout(Stdio::null()).stderr(Stdio::piped()).output())
            .with_context(|| format!("cannot start `{words}`"))?;
        let wall_s = start.elapsed().as_secs_f64();
        if done.status.success() {
            return Measured::read(&folder.path().join("swept"), wall_s);
        }
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        match (done.status.code(), &setting.0) {
            // Bad input: this build or this run has nothing that reads the option, and says so.
            (Some(2), Some(_)) => Ok(Measured::Refused(first_line(&said))),
            _ => bail!("`{words}` failed: {}\n{said}", done.status),
        }
    }
}

/// The line that says what is wrong.
fn first_line(said: &str) -> String {
    let lines = said
        .lines()
        .map(|line| line.trim().trim_start_matches("×").trim());
    let mut worded = lines.filter(|line| line.contains(' '));
    worded.next().unwrap_or("it did not say why").to_owned()
}
