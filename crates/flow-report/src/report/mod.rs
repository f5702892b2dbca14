//! `report.html`: the whole run on one page that needs nothing but itself.

mod charts;
mod comparison;
mod curves;
mod environment;
mod page;
mod pictures;
mod prompts;
mod settings;
mod summary;
mod words;

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::atomic::atomic_write;
use crate::error::{ReportError, Result};
use crate::escape::escape;
use crate::manifest::{Manifest, read_json};
use crate::metrics::Metrics;
use crate::summary::RunSummary;

pub use charts::{ChartGroup, RunChart, run_charts};
pub use comparison::{ComparedRun, Comparison, runs_in, write_comparison};

/// What goes into a report. [`ReportData::read`] collects it from a run directory.
#[derive(Clone, Debug)]
pub struct ReportData {
    /// The manifest.
    pub manifest: Manifest,
    /// The outcome; without one, the report says so.
    pub summary: Option<RunSummary>,
    /// The records of `metrics.jsonl`.
    pub metrics: Metrics,
    /// The records of `timing.jsonl`.
    pub timing: Metrics,
    /// Name and SVG document of each curve in `curves/`, in the order shown. Those that [`run_charts`] draws are not shown again.
    pub curves: Vec<(String, String)>,
    /// Image grids in the order shown.
    pub grids: Vec<GridFigure>,
}

/// One picture of the report.
#[derive(Clone, Debug)]
pub struct GridFigure {
    /// The kind of picture, for example "eval"; figures of one kind are shown together.
    pub kind: String,
    /// The step it was made after.
    pub step: u64,
    /// PNG bytes.
    pub png: Vec<u8>,
}

impl ReportData {
    /// Reads a run directory; it may be one that is being written.
    ///
    /// # Errors
    /// If there is no readable `run.json`, or a file that is there cannot be read.
    pub fn read(run: &Path) -> Result<Self> {
        let manifest = Manifest::read(&run.join("run.json"))?;
        let summary_path = run.join("summary.json");
        let summary = if summary_path.exists() {
            Some(read_json(&summary_path, "summary")?)
        } else {
            None
        };
        let records = |name: &str| {
            let path = run.join(name);
            if path.exists() {
                Metrics::read(&path)
            } else {
                Ok(Metrics::default())
            }
        };
        let mut curves = Vec::new();
        for path in files(&run.join("curves"), "svg")? {
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            curves.push((
                name,
                fs::read_to_string(&path).map_err(|e| ReportError::read("curve", &path, e))?,
            ));
        }
        let mut grids = Vec::new();
        for path in files(&run.join("images"), "png")? {
            let Some((kind, step)) = grid_of(&path) else {
                continue;
            };
            let png = fs::read(&path).map_err(|e| ReportError::read("image grid", &path, e))?;
            grids.push(GridFigure { kind, step, png });
        }
        grids.sort_by(|a, b| (&a.kind, a.step).cmp(&(&b.kind, b.step)));
        Ok(Self {
            manifest,
            summary,
            metrics: records("metrics.jsonl")?,
            timing: records("timing.jsonl")?,
            curves,
            grids,
        })
    }

    /// The page. The same data give the same bytes.
    pub fn html(&self) -> String {
        let mut body = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut body);
        page::document(&self.manifest.run, &body)
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let manifest = &self.manifest;
        let prompts = (self.summary.as_ref()).map_or(&[][..], |summary| &summary.prompts);
        let groups = run_charts(&self.metrics, &self.timing, self.summary.as_ref());
        self.write_header(out)?;
        page::write_navigation(
            out,
            &[
                ("summary", "Summary"),
                ("curves", "Curves"),
                ("images", "Images"),
                ("config", "Configuration"),
                ("fallbacks", "Fallbacks"),
                ("environment", "Environment"),
            ],
        )?;
        summary::write_summary(out, self.summary.as_ref(), manifest)?;
        curves::write_curves(out, &groups, &self.curves)?;
        pictures::write_pictures(out, &self.grids, prompts)?;
        prompts::write_prompts(out, &self.metrics, prompts)?;
        settings::write_settings(out, manifest)?;
        environment::write_fallbacks(out, manifest)?;
        environment::write_environment(out, manifest)
    }

    fn write_header(&self, out: &mut String) -> std::fmt::Result {
        let manifest = &self.manifest;
        let (name, host) = (escape(&manifest.run), escape(&manifest.host.name));
        let started = words::moment(&manifest.started_at);
        writeln!(
            out,
            "<header>\n<p class=\"kicker\">flow-train run</p>\n<h1>{name}</h1>"
        )?;
        write!(
            out,
            "<p class=\"faint\">started <time datetime=\"{}\">{}</time> on {host}",
            escape(&manifest.started_at),
            escape(&started)
        )?;
        if !manifest.resumes.is_empty() {
            let times = words::times(manifest.resumes.len());
            write!(out, ", <a href=\"#resumes\">resumed {times}</a>")?;
        }
        writeln!(out, "</p>")?;
        let command = words::command_line(&manifest.command);
        writeln!(
            out,
            "<pre class=\"command\" tabindex=\"0\">{}</pre>\n</header>",
            escape(&command)
        )
    }
}

/// Writes `report.html` of a run directory from the files in it and returns its path.
///
/// # Errors
/// As [`ReportData::read`] and [`atomic_write`].
pub fn write_report(run: &Path) -> Result<PathBuf> {
    let html = ReportData::read(run)?.html();
    let path = run.join("report.html");
    atomic_write(&path, "report", |out| out.write_all(html.as_bytes()))?;
    Ok(path)
}

/// Kind and step of the grid in a file called `KIND-step-NUMBER.png`.
pub(crate) fn grid_of(path: &Path) -> Option<(String, u64)> {
    let stem = path.file_stem()?.to_string_lossy();
    let (kind, step) = stem.rsplit_once("-step-")?;
    Some((kind.to_owned(), step.parse().ok()?))
}

/// The files of an extension in a directory, by name; none if there is no such directory.
pub(crate) fn files(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(ReportError::read("directory", directory, error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|e| ReportError::read("directory", directory, e))?
            .path();
        if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
