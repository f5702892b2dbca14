//! The two logs of a run, opened to go on after a checkpoint.
//!
//! A checkpoint says how long each log was when it was saved, and the hash of that part. A log that is lost, or another one,
//! stops nobody from going on: it is moved aside, and a new one begins.

use std::fs;
use std::path::Path;

use crate::aside::supersede;
use crate::atomic::atomic_write;
use crate::directory::RunDirectory;
use crate::error::{ReportError, Result};
use crate::metrics::{Metrics, MetricsFound, MetricsPosition, MetricsStart, MetricsWriter, Record};

/// `metrics.jsonl`, opened to go on.
#[derive(Debug)]
pub struct ContinuedMetrics {
    /// Where the next records go.
    pub writer: MetricsWriter,
    /// Whether the records before the checkpoint are gone from it.
    pub lost: bool,
    /// What was done, for people.
    pub notices: Vec<String>,
}

/// `timing.jsonl`, opened to go on.
#[derive(Debug)]
pub struct ContinuedTiming {
    /// Where the next records go.
    pub writer: MetricsWriter,
    /// Records after the checkpoint's: of work that is done again, or left. Without a position, all there are.
    pub after: Vec<Record>,
    /// What was done, for people.
    pub notices: Vec<String>,
}

impl ContinuedTiming {
    /// A log that begins.
    pub fn begun(writer: MetricsWriter) -> Self {
        Self {
            writer,
            after: Vec::new(),
            notices: Vec::new(),
        }
    }
}

impl RunDirectory {
    /// Begins `metrics.jsonl` with the records before `position` of the run that the checkpoint at `checkpoint` lies in, if that
    /// run's metrics are those of the checkpoint, and this one has none.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn copy_metrics(&self, checkpoint: &Path, position: MetricsPosition) -> Result<()> {
        let to = self.path().join("metrics.jsonl");
        let Some(from) = checkpoint
            .parent()
            .and_then(Path::parent)
            .map(|run| run.join("metrics.jsonl"))
        else {
            return Ok(());
        };
        if to.exists() || MetricsWriter::compare(&from, position)? != MetricsFound::Same {
            return Ok(());
        }
        let bytes = fs::read(&from).map_err(|e| ReportError::read("metrics", &from, e))?;
        let part = &bytes[..(position.bytes as usize).min(bytes.len())];
        atomic_write(&to, "metrics", |out| out.write_all(part))
    }

    /// Opens `metrics.jsonl` after the `position` of a checkpoint that was saved after `step` steps; what lies behind is cut and kept
    /// in `metrics.superseded.jsonl`. A file that is not the one of the checkpoint goes to `superseded/`.
    ///
    /// # Errors
    /// If a file cannot be read, written or moved.
    pub fn continue_metrics(&self, position: MetricsPosition, step: u64) -> Result<ContinuedMetrics> {
        let path = self.path().join("metrics.jsonl");
        let mut notices = Vec::new();
        let lost = match MetricsWriter::compare(&path, position)? {
            MetricsFound::Same => false,
            MetricsFound::Missing => {
                notices.push(format!(
                    "there is no `{}`: metrics and curves begin after iteration {step}, and there is no comparison with \
                     evaluations before",
                    path.display()
                ));
                true
            }
            MetricsFound::Other(problem) => {
                let moved = move_aside(&path)?;
                notices.push(format!(
                    "`{}` {problem}. It was moved to `{moved}`; metrics and curves begin after iteration {step}",
                    path.display()
                ));
                true
            }
        };
        let start = if lost {
            MetricsStart::FreshAfter(step)
        } else {
            MetricsStart::At(position)
        };
        let writer = MetricsWriter::open(&path, start)?;
        notices.extend(writer.notices().iter().cloned());
        Ok(ContinuedMetrics {
            writer,
            lost,
            notices,
        })
    }

    /// Opens `timing.jsonl` to append to it, and reads what it holds behind the `position` of a checkpoint; older checkpoints have
    /// none. A file that is not the one of the checkpoint goes to `superseded/`.
    ///
    /// # Errors
    /// If a file cannot be read, written or moved.
    pub fn continue_timing(&self, position: Option<MetricsPosition>) -> Result<ContinuedTiming> {
        let path = self.path().join("timing.jsonl");
        let mut notices = Vec::new();
        let found = match position {
            Some(position) => MetricsWriter::compare(&path, position)?,
            None if path.exists() => MetricsFound::Same,
            None => MetricsFound::Missing,
        };
        let mut after = Vec::new();
        match found {
            MetricsFound::Same => {
                let bytes = fs::read(&path).map_err(|e| ReportError::read("timing", &path, e))?;
                let start = position.map_or(0, |position| position.bytes as usize);
                after = Metrics::records_after(&bytes, start);
            }
            MetricsFound::Missing => {
                if position.is_some_and(|position| position.bytes > 0) {
                    notices.push(format!(
                        "there is no `{}`: seconds by iteration begin anew; their sums are those of the checkpoint",
                        path.display()
                    ));
                }
            }
            MetricsFound::Other(problem) => {
                let moved = move_aside(&path)?;
                notices.push(format!(
                    "`{}` {problem}. It was moved to `{moved}`; the sums of seconds are those of the checkpoint",
                    path.display()
                ));
            }
        }
        let writer = self.timing()?;
        Ok(ContinuedTiming {
            writer,
            after,
            notices,
        })
    }
}

fn move_aside(path: &Path) -> Result<String> {
    let moved = supersede(path, "log", |from, to| fs::rename(from, to))?;
    Ok(moved.display().to_string())
}
