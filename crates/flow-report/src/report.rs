//! `report.html`: the whole run on one page that needs nothing but itself.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::atomic::atomic_write;
use crate::error::{ReportError, Result};
use crate::escape::escape;
use crate::manifest::{Manifest, flatten, read_json};
use crate::report_summary::write_summary;
use crate::summary::RunSummary;

const STYLE: &str = include_str!("report.css");

/// Grids of one kind that are shown; of more, the first, the last and evenly spaced ones between.
const SHOWN_GRIDS: usize = 6;

/// What goes into a report. [`ReportData::read`] collects it from a run directory.
#[derive(Clone, Debug)]
pub struct ReportData {
    /// The manifest.
    pub manifest: Manifest,
    /// The outcome; without one, the report says so.
    pub summary: Option<RunSummary>,
    /// Name and SVG document of each curve in the order shown.
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
            curves,
            grids,
        })
    }

    /// The page. The same data give the same bytes.
    pub fn html(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let name = escape(&self.manifest.run);
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{name} · flow-train</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        )?;
        let started = escape(&self.manifest.started_at);
        writeln!(
            out,
            "<header>\n<p class=\"kicker\">flow-train run</p>\n<h1>{name}</h1>"
        )?;
        writeln!(
            out,
            "<p class=\"faint\">started {started} on {}</p>",
            escape(&self.manifest.host.name)
        )?;
        writeln!(
            out,
            "<pre class=\"command\">{}</pre>\n</header>",
            escape(&command_line(&self.manifest.command))
        )?;
        self.write_navigation(out)?;
        write_summary(out, self.summary.as_ref())?;
        self.write_curves(out)?;
        self.write_grids(out)?;
        self.write_config(out)?;
        self.write_fallbacks(out)?;
        self.write_environment(out)?;
        writeln!(out, "</main>\n</body>\n</html>")
    }

    fn write_navigation(&self, out: &mut String) -> std::fmt::Result {
        let sections = [
            ("summary", "Summary"),
            ("curves", "Curves"),
            ("images", "Images"),
            ("config", "Configuration"),
            ("fallbacks", "Fallbacks"),
            ("environment", "Environment"),
        ];
        write!(out, "<nav>")?;
        for (id, title) in sections {
            write!(out, "<a href=\"#{id}\">{title}</a>")?;
        }
        writeln!(out, "</nav>")
    }

    fn write_curves(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "<section id=\"curves\">\n<h2>Curves</h2>")?;
        if self.curves.is_empty() {
            writeln!(out, "<p class=\"faint\">The run has written no curves.</p>")?;
        }
        writeln!(out, "<div class=\"curves\">")?;
        for (name, svg) in &self.curves {
            // As an image and not as markup: whatever a file in `curves/` contains, it cannot run or load anything.
            let (name, data) = (escape(name), STANDARD.encode(svg));
            writeln!(
                out,
                "<figure><img alt=\"{name}\" src=\"data:image/svg+xml;base64,{data}\"></figure>"
            )?;
        }
        writeln!(out, "</div>\n</section>")
    }

    fn write_grids(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "<section id=\"images\">\n<h2>Images over time</h2>")?;
        if self.grids.is_empty() {
            writeln!(out, "<p class=\"faint\">The run has written no image grids.</p>")?;
        }
        for figures in self.grids.chunk_by(|a, b| a.kind == b.kind) {
            writeln!(out, "<h3>{}</h3>", escape(&figures[0].kind))?;
            let shown = spread(figures.len());
            if shown.len() < figures.len() {
                let (shown, all) = (shown.len(), figures.len());
                writeln!(
                    out,
                    "<p class=\"faint\">{shown} of {all} grids; the others are in <code>images/</code>.</p>"
                )?;
            }
            writeln!(out, "<div class=\"grids\">")?;
            for figure in shown.into_iter().map(|index| &figures[index]) {
                let (kind, step) = (escape(&figure.kind), figure.step);
                let data = STANDARD.encode(&figure.png);
                // A picture shrunk to a phone's width could not be read: a wide one scrolls instead.
                let wide = if png_width(&figure.png) > 600 {
                    " class=\"wide\""
                } else {
                    ""
                };
                writeln!(
                    out,
                    "<figure><figcaption>after step {step}</figcaption>\
                     <img{wide} alt=\"{kind}, step {step}\" src=\"data:image/png;base64,{data}\"></figure>"
                )?;
            }
            writeln!(out, "</div>")?;
        }
        writeln!(out, "</section>")
    }

    fn write_config(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "<section id=\"config\">\n<h2>Configuration</h2>\n<div class=\"scroll\"><table class=\"config\">"
        )?;
        writeln!(
            out,
            "<thead><tr><th>Key</th><th>Value</th><th>Source</th></tr></thead>\n<tbody>"
        )?;
        let mut section = String::new();
        for (key, value) in flatten(&self.manifest.config) {
            let (above, leaf) = key.rsplit_once('.').unwrap_or(("", &key));
            if above != section {
                section = above.to_owned();
                writeln!(
                    out,
                    "<tr class=\"section\"><th colspan=\"3\">{}</th></tr>",
                    escape(above)
                )?;
            }
            let source = self.manifest.source_of(&key).unwrap_or("not recorded");
            let class = if source.starts_with("default") {
                " class=\"faint\""
            } else {
                ""
            };
            let (leaf, text, source) = (escape(leaf), value_text(&value), escape(source));
            writeln!(
                out,
                "<tr{class}><td>{leaf}</td><td><code>{}</code></td><td>{source}</td></tr>",
                escape(&text)
            )?;
        }
        writeln!(out, "</tbody></table></div>\n</section>")
    }

    fn write_fallbacks(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "<section id=\"fallbacks\">\n<h2>Fallbacks</h2>")?;
        if self.manifest.fallbacks.is_empty() {
            writeln!(out, "<p class=\"ok\">None: everything ran as configured.</p>")?;
        } else {
            writeln!(
                out,
                "<div class=\"scroll\"><table><thead><tr><th>What</th><th>Wanted</th><th>Used</th><th>Why</th></tr></thead><tbody>"
            )?;
            for fallback in &self.manifest.fallbacks {
                let cells = [&fallback.what, &fallback.wanted, &fallback.used, &fallback.why];
                write!(out, "<tr>")?;
                for cell in cells {
                    write!(out, "<td>{}</td>", escape(cell))?;
                }
                writeln!(out, "</tr>")?;
            }
            writeln!(out, "</tbody></table></div>")?;
        }
        writeln!(out, "</section>")
    }

    fn write_environment(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "<section id=\"environment\">\n<h2>Environment</h2>\n<dl>")?;
        let manifest = &self.manifest;
        let host = &manifest.host;
        let mut rows: Vec<(String, String)> = Vec::new();
        rows.extend(
            manifest
                .device
                .iter()
                .map(|(key, value)| (format!("device {key}"), value_text(value))),
        );
        rows.push((
            "host".into(),
            format!("{} ({} {})", host.name, host.os, host.arch),
        ));
        rows.extend(host.cpu.iter().map(|cpu| ("processor".into(), cpu.clone())));
        rows.push(("CPU threads".into(), host.cpu_threads.to_string()));
        rows.extend(
            host.memory_gib
                .map(|gib| ("memory".into(), format!("{gib:.2} GiB"))),
        );
        rows.extend(
            manifest
                .versions
                .iter()
                .map(|(name, version)| (name.clone(), version.clone())),
        );
        rows.push(("git".into(), manifest.git.text()));
        for (key, value) in rows {
            writeln!(
                out,
                "<div><dt>{}</dt><dd>{}</dd></div>",
                escape(&key),
                escape(&value)
            )?;
        }
        writeln!(out, "</dl>")?;
        if !manifest.resumes.is_empty() {
            writeln!(out, "<h3>Resumed {} time(s)</h3>\n<ul>", manifest.resumes.len())?;
            for resume in &manifest.resumes {
                let (at, step, checkpoint) =
                    (escape(&resume.at), resume.from_step, escape(&resume.checkpoint));
                write!(out, "<li>{at}: after step {step} from <code>{checkpoint}</code>")?;
                for change in &resume.config_changes {
                    let (before, after) = (value_text(&change.before), value_text(&change.after));
                    let (key, before, after) = (escape(&change.key), escape(&before), escape(&after));
                    write!(
                        out,
                        "<br><code>{key}</code> changed from <code>{before}</code> to <code>{after}</code>"
                    )?;
                }
                for notice in &resume.notices {
                    write!(out, "<br><span class=\"faint\">{}</span>", escape(notice))?;
                }
                writeln!(out, "</li>")?;
            }
            writeln!(out, "</ul>")?;
        }
        writeln!(out, "</section>")
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

/// The width in a PNG's header (bytes 16 to 19, big-endian), 0 if there is none.
fn png_width(png: &[u8]) -> u32 {
    png.get(16..20).map_or(0, |bytes| {
        bytes.iter().fold(0, |width, byte| width << 8 | u32::from(*byte))
    })
}

/// Indices of at most [`SHOWN_GRIDS`] of `count` figures, the first and the last among them.
fn spread(count: usize) -> Vec<usize> {
    if count <= SHOWN_GRIDS {
        return (0..count).collect();
    }
    (0..SHOWN_GRIDS)
        .map(|index| index * (count - 1) / (SHOWN_GRIDS - 1))
        .collect()
}

/// A value as TOML would write it, near enough to be read.
fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "not set".into(),
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(value_text).collect::<Vec<_>>().join(", ")
        ),
        other => other.to_string(),
    }
}

/// A command line that can be pasted into a POSIX shell.
fn command_line(words: &[String]) -> String {
    let plain = |word: &String| {
        !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_alphanumeric() || "-_./=:,+@".contains(c))
    };
    let quoted = |word: &String| {
        if plain(word) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
