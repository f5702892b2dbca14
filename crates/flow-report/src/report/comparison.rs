//! Several runs on one page: what differs between their settings, and what came out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::curves::write_chart;
use super::settings::is_default;
use super::{page, words};
use crate::atomic::atomic_write;
use crate::curve::{LineChart, Series};
use crate::error::{ReportError, Result};
use crate::escape::{escape, href};
use crate::manifest::{Manifest, flatten, read_json};
use crate::metrics::Metrics;
use crate::probe::human_duration;
use crate::summary::{RunStatus, RunSummary};

/// Title of the page, by which an earlier one is known.
const TITLE: &str = "Comparison of runs";
/// Where in a page its title stands.
const HEAD: usize = 4096;

/// A run beside others.
#[derive(Clone, Debug)]
pub struct ComparedRun {
    /// Name of its directory.
    pub name: String,
    /// Its manifest.
    pub manifest: Manifest,
    /// Its outcome, if it has written one.
    pub summary: Option<RunSummary>,
    /// Its records.
    pub metrics: Metrics,
    /// Relative link to its `report.html`, if it has one.
    pub report_href: Option<String>,
}

/// The runs of a folder on one page.
#[derive(Debug)]
pub struct Comparison {
    /// The page.
    pub path: PathBuf,
    /// The runs, in the order of their names.
    pub runs: Vec<ComparedRun>,
    /// Runs that are not on it, because something of them cannot be read: the name, and why.
    pub unreadable: Vec<(String, ReportError)>,
}

/// The directories in `root` that hold a `run.json`, sorted.
///
/// # Errors
/// If `root` cannot be read.
pub fn runs_in(root: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = |source| ReportError::read("directory", root, source);
    let mut runs = Vec::new();
    for entry in fs::read_dir(root).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.join("run.json").is_file() {
            runs.push(path);
        }
    }
    runs.sort();
    Ok(runs)
}

fn name_of(run: &Path) -> String {
    run.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl ComparedRun {
    /// Reads a run directory; it may be one that is being written.
    ///
    /// # Errors
    /// If there is no readable `run.json`, or a file that is there cannot be read.
    pub fn read(run: &Path) -> Result<Self> {
        let summary = run.join("summary.json");
        let metrics = run.join("metrics.jsonl");
        let folder = run.file_name().unwrap_or_default();
        Ok(Self {
            name: name_of(run),
            manifest: Manifest::read(&run.join("run.json"))?,
            summary: if summary.exists() {
                Some(read_json(&summary, "summary")?)
            } else {
                None
            },
            metrics: if metrics.exists() {
                Metrics::read(&metrics)?
            } else {
                Metrics::default()
            },
            report_href: (run.join("report.html").is_file())
                .then(|| href(&[folder.as_encoded_bytes(), b"report.html"])),
        })
    }
}

/// Writes `comparison.html` of the runs in `root` beside them. A run that cannot be read is named and left out.
///
/// # Errors
/// If `root` cannot be read, or as [`atomic_write`].
pub fn write_comparison(root: &Path) -> Result<Comparison> {
    let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
    for path in runs_in(root)? {
        match ComparedRun::read(&path) {
            Ok(run) => runs.push(run),
            Err(error) => unreadable.push((name_of(&path), error)),
        }
    }
    let path = root.join("comparison.html");
    keep_others(&path)?;
    let comparison = Comparison {
        path,
        runs,
        unreadable,
    };
    let mut body = String::new();
    // Writing to a String cannot fail.
    let _ = comparison.write(&mut body, root);
    let html = page::document(TITLE, &body);
    atomic_write(&comparison.path, "comparison", |out| {
        out.write_all(html.as_bytes())
    })?;
    Ok(comparison)
}

/// An earlier comparison is written over, and nothing else that has its name.
fn keep_others(path: &Path) -> Result<()> {
    let mut head = Vec::new();
    match fs::File::open(path).and_then(|file| file.take(HEAD as u64).read_to_end(&mut head)) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(ReportError::read("comparison", path, error)),
    }
    if String::from_utf8_lossy(&head).contains(&format!("<title>{TITLE}")) {
        return Ok(());
    }
    Err(ReportError::invalid(
        "comparison",
        path,
        "is another file, and is not written over",
        "move it away, or give it another name",
    ))
}

impl Comparison {
    fn write(&self, out: &mut String, root: &Path) -> std::fmt::Result {
        let runs = &self.runs;
        let count = words::counted(runs.len(), "run");
        let place = root.display().to_string();
        writeln!(
            out,
            "<header>\n<p class=\"kicker\">flow-train</p>\n<h1>{count}</h1>\n<p class=\"faint\">in {}</p>\n</header>",
            escape(&place)
        )?;
        page::write_navigation(
            out,
            &[
                ("outcomes", "Outcomes"),
                ("curves", "Curves"),
                ("config", "Settings"),
            ],
        )?;
        write_outcomes(out, runs)?;
        for (name, error) in &self.unreadable {
            writeln!(
                out,
                "<p class=\"warn\">{} is left out: {}</p>",
                escape(name),
                escape(&error.to_string())
            )?;
        }
        write_curves(out, runs)?;
        write_differences(out, runs)
    }
}

fn write_outcomes(out: &mut String, runs: &[ComparedRun]) -> std::fmt::Result {
    let rewards = reward_names(runs);
    write!(
        out,
        "<section id=\"outcomes\">\n<h2>Outcomes</h2>\n<div class=\"scroll\"><table><thead><tr><th>Run</th><th>State</th>"
    )?;
    for reward in &rewards {
        write!(out, "<th>{}, last evaluation</th><th>gain</th>", escape(reward))?;
    }
    writeln!(
        out,
        "<th>Trained on, first → last</th><th>Time</th></tr></thead><tbody>"
    )?;
    for run in runs {
        let name = escape(&run.name);
        if let Some(href) = &run.report_href {
            write!(out, "<tr><td><a href=\"{href}\">{name}</a></td>")?;
        } else {
            write!(out, "<tr><td>{name}</td>")?;
        }
        let summary = run.summary.as_ref();
        write!(out, "<td>{}</td>", summary.map_or("no summary yet".into(), state))?;
        for reward in &rewards {
            let found = summary.and_then(|summary| summary.rewards.iter().find(|r| r.name == **reward));
            match found {
                Some(found) => write!(
                    out,
                    "<td>{}</td><td>{}</td>",
                    found.after.text(3),
                    found.difference.interval.text(3)
                )?,
                None => write!(out, "<td></td><td></td>")?,
            }
        }
        let trained = summary.and_then(|summary| summary.trained.as_ref());
        let trained = trained.map_or(String::new(), |it| {
            format!("{}: {:.3} → {:.3}", it.name(), it.first.mean, it.last.mean)
        });
        let time = summary.map_or(String::new(), |summary| human_duration(summary.wall_s));
        writeln!(out, "<td>{}</td><td>{time}</td></tr>", escape(&trained))?;
    }
    writeln!(out, "</tbody></table></div>\n</section>")
}

fn state(summary: &RunSummary) -> String {
    let steps = words::counted(summary.steps as usize, "step");
    match summary.status {
        RunStatus::Finished => format!("finished, {steps}"),
        RunStatus::Unfinished => format!("under way or killed, {steps}"),
        RunStatus::Interrupted { .. } => format!("stopped, {steps}"),
        RunStatus::Failed { .. } => format!("failed, {steps}"),
    }
}

fn reward_names(runs: &[ComparedRun]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for reward in runs
        .iter()
        .filter_map(|run| run.summary.as_ref())
        .flat_map(|s| &s.rewards)
    {
        if !names.contains(&reward.name.as_str()) {
            names.push(&reward.name);
        }
    }
    names
}

/// Rewards of all runs over each other: on held-out prompts, and of the rollouts.
fn write_curves(out: &mut String, runs: &[ComparedRun]) -> std::fmt::Result {
    writeln!(
        out,
        "<section id=\"curves\">\n<h2>Curves</h2>\n<div class=\"curves\">"
    )?;
    let mut keys: Vec<(&str, String, String)> = reward_names(runs)
        .into_iter()
        .map(|name| {
            (
                "eval",
                format!("reward/{name}"),
                format!("{name} on held-out prompts"),
            )
        })
        .collect();
    keys.push(("train", "reward".into(), "Reward of the rollouts".into()));
    for (kind, key, title) in keys {
        let chart = runs
            .iter()
            .fold(LineChart::new(&title, "step", "reward"), |chart, run| {
                let series = Series::from_metrics(&run.metrics, &run.name, kind, &key, None);
                if series.points.is_empty() {
                    chart
                } else {
                    chart.with(series)
                }
            });
        if !chart.is_empty() {
            write_chart(out, &chart, None)?;
        }
    }
    writeln!(out, "</div>\n</section>")
}

/// Settings whose values differ between runs, a row for each.
fn write_differences(out: &mut String, runs: &[ComparedRun]) -> std::fmt::Result {
    let configs: Vec<BTreeMap<String, Value>> = runs
        .iter()
        .map(|run| flatten(&run.manifest.config).into_iter().collect())
        .collect();
    let mut keys: Vec<&String> = Vec::new();
    let all = runs.iter().flat_map(|run| flatten(&run.manifest.config));
    let order: Vec<String> = all.map(|(key, _)| key).collect();
    for key in &order {
        let differs = configs
            .windows(2)
            .any(|pair| pair[0].get(key) != pair[1].get(key));
        if differs && !keys.contains(&key) && key != "run.name" {
            keys.push(key);
        }
    }
    writeln!(out, "<section id=\"config\">\n<h2>Settings that differ</h2>")?;
    if keys.is_empty() {
        return writeln!(out, "<p class=\"faint\">None.</p>\n</section>");
    }
    write!(out, "<div class=\"scroll\"><table><thead><tr><th>Key</th>")?;
    for run in runs {
        write!(out, "<th>{}</th>", escape(&run.name))?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    for key in keys {
        write!(out, "<tr><td>{}</td>", escape(key))?;
        for (run, config) in runs.iter().zip(&configs) {
            let text = config.get(key).map_or("–".into(), words::value);
            let is_default = run.manifest.source_of(key).is_some_and(is_default);
            let class = if is_default { " class=\"faint\"" } else { "" };
            write!(out, "<td{class}><code>{}</code></td>", escape(&text))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody></table></div>\n</section>")
}
