//! `metrics.jsonl`: one JSON object per line, appended as the run goes, read back for curves.
//!
//! A record is `{"step": 12, "kind": "train", …values}`. Steps never fall, so that a resumed run can cut the file
//! after its checkpoint and go on with the very bytes that an uninterrupted run would have written; values that
//! depend on the clock therefore go to `timing.jsonl`. JSON has no NaN: a value that is not finite is the string
//! `"NaN"`, `"Infinity"` or `"-Infinity"`, which [`Record::number`] gives back as the number.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{ReportError, Result};
use crate::hash::ContentHash;

/// A value of a record. `f32` is written with the shortest decimal that reads back to the same `f32`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum MetricValue {
    F32(f32),
    F64(f64),
    U64(u64),
    I64(i64),
    Bool(bool),
    Text(String),
    F32s(Vec<f32>),
    F64s(Vec<f64>),
}

macro_rules! metric_value_from {
    ($($from:ty => $variant:ident),* $(,)?) => {
        $(impl From<$from> for MetricValue {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}
metric_value_from!(
    f32 => F32, f64 => F64, u64 => U64, u32 => U64, i64 => I64, i32 => I64, bool => Bool,
    String => Text, &str => Text, Vec<f32> => F32s, Vec<f64> => F64s, &[f32] => F32s, &[f64] => F64s,
);

impl From<usize> for MetricValue {
    fn from(value: usize) -> Self {
        Self::U64(value as u64)
    }
}

impl MetricValue {
    fn json(&self) -> serde_json::Result<String> {
        fn number<T: Copy + Serialize + Into<f64>>(value: T) -> serde_json::Result<String> {
            let wide: f64 = value.into();
            Ok(if wide.is_nan() {
                "\"NaN\"".into()
            } else if wide.is_infinite() {
                if wide > 0.0 {
                    "\"Infinity\"".into()
                } else {
                    "\"-Infinity\"".into()
                }
            } else {
                serde_json::to_string(&value)?
            })
        }
        fn list<T: Copy + Serialize + Into<f64>>(values: &[T]) -> serde_json::Result<String> {
            let numbers: serde_json::Result<Vec<_>> = values.iter().map(|value| number(*value)).collect();
            Ok(format!("[{}]", numbers?.join(",")))
        }
        match self {
            Self::F32(value) => number(*value),
            Self::F64(value) => number(*value),
            Self::F32s(values) => list(values),
            Self::F64s(values) => list(values),
            other => serde_json::to_string(other),
        }
    }
}

/// A record to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricRecord {
    step: u64,
    kind: String,
    values: Vec<(String, MetricValue)>,
}

impl MetricRecord {
    /// A record of `kind` ("train", "eval", …) after `step` steps.
    pub fn new(step: u64, kind: &str) -> Self {
        Self {
            step,
            kind: kind.into(),
            values: Vec::new(),
        }
    }

    /// Adds a value.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<MetricValue>) -> Self {
        self.values.push((key.into(), value.into()));
        self
    }

    /// Step, kind and values.
    pub fn parts(&self) -> (u64, &str, &[(String, MetricValue)]) {
        (self.step, &self.kind, &self.values)
    }

    fn line(&self) -> Result<String> {
        let refuse = |problem: String| ReportError::Record {
            step: self.step,
            kind: self.kind.clone(),
            problem,
        };
        let text = |text: &str| serde_json::to_string(text).map_err(|e| refuse(e.to_string()));
        let mut line = format!("{{\"step\":{},\"kind\":{}", self.step, text(&self.kind)?);
        for (index, (key, value)) in self.values.iter().enumerate() {
            let taken = self.values[..index].iter().any(|(earlier, _)| earlier == key);
            if taken || key == "step" || key == "kind" {
                return Err(refuse(format!("the key {key:?} is there twice")));
            }
            line += &format!(
                ",{}:{}",
                text(key)?,
                value.json().map_err(|e| refuse(e.to_string()))?
            );
        }
        line += "}\n";
        Ok(line)
    }
}

/// A place between two records, to be stored in a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsPosition {
    /// Bytes before it.
    pub bytes: u64,
    /// Records before it.
    pub records: u64,
    /// Step of the record before it.
    pub last_step: Option<u64>,
    /// BLAKE3 of the bytes before it. Older checkpoints have none: there the counts decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<ContentHash>,
}

/// Where writing starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsStart {
    /// A new file; it is an error if there are records in it.
    Fresh,
    /// A new file of a run that has done this many steps; it is an error if there are records in it.
    FreshAfter(u64),
    /// After the last record whose step is not above this one. Later records are cut.
    AfterStep(u64),
    /// At a stored position. Later records are cut. The exact choice when records of the checkpoint's own step may
    /// be written after the checkpoint.
    At(MetricsPosition),
    /// After everything there is; steps may start again lower (`timing.jsonl`).
    Append,
}

/// Appends records to a file. Each record is one write, so that a killed process leaves whole records, or one torn
/// last line, which is cut when the file is opened again.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
    position: MetricsPosition,
    hasher: blake3::Hasher,
    notices: Vec<String>,
}

/// What [`MetricsWriter::compare`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsFound {
    /// The file begins with what the position was stored of.
    Same,
    /// There is no file.
    Missing,
    /// Another file; in which way, as the end of a sentence that begins with its path.
    Other(String),
}

impl MetricsWriter {
    /// Opens `path`, cuts a torn last line, and cuts what lies after `start`. What is cut as later records is
    /// appended to `NAME.superseded.jsonl`, so nothing is lost.
    ///
    /// # Errors
    /// A file with records under [`MetricsStart::Fresh`], a stored position that is not between two records of this
    /// file, a line that is no record, or an input or output error.
    pub fn open(path: &Path, start: MetricsStart) -> Result<Self> {
        let reading = |source| ReportError::read("metrics", path, source);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|e| ReportError::write("metrics", path, "nothing was changed", e))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(reading)?;
        let whole = whole_lines(&bytes);
        let mut notices = Vec::new();
        if whole < bytes.len() {
            notices.push(torn_notice(path, bytes.len() - whole));
        }
        let position = match start {
            MetricsStart::Fresh | MetricsStart::FreshAfter(_) if whole > 0 => {
                let help = "resume the run, or use another run name";
                return Err(ReportError::invalid(
                    "metrics",
                    path,
                    "already holds records",
                    help,
                ));
            }
            MetricsStart::Fresh => MetricsPosition::default(),
            MetricsStart::FreshAfter(step) => MetricsPosition {
                last_step: Some(step),
                ..MetricsPosition::default()
            },
            MetricsStart::AfterStep(step) => position_where(path, &bytes[..whole], |_, found| found <= step)?,
            MetricsStart::Append => MetricsPosition {
                last_step: None,
                ..position_where(path, &bytes[..whole], |_, _| true)?
            },
            MetricsStart::At(position) => {
                let help = "put back the run's own metrics, or resume from another checkpoint";
                found_at(path, &bytes[..whole], position)
                    .map_err(|problem| ReportError::invalid("metrics", path, problem, help))?;
                position
            }
        };
        let kept = position.bytes as usize;
        if kept < whole {
            let cut = &bytes[kept..whole];
            let aside = path.with_extension("superseded.jsonl");
            append(&aside, cut)
                .map_err(|e| ReportError::write("superseded metrics", &aside, "no record was cut", e))?;
            notices.push(format!(
                "cut {} record(s) of `{}` after step {} (kept in `{}`)",
                cut.iter().filter(|byte| **byte == b'\n').count(),
                path.display(),
                position.last_step.unwrap_or(0),
                aside.display()
            ));
        }
        let writing = |source| ReportError::write("metrics", path, "the records are intact", source);
        file.set_len(position.bytes).map_err(writing)?;
        file.seek(SeekFrom::Start(position.bytes)).map_err(writing)?;
        file.sync_all().map_err(writing)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes[..kept]);
        Ok(Self {
            path: path.into(),
            file,
            position,
            hasher,
            notices,
        })
    }

    /// Whether the file at `path` is the one that `position` was stored of, nothing being changed.
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    pub fn compare(path: &Path, position: MetricsPosition) -> Result<MetricsFound> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(MetricsFound::Missing),
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                return Ok(MetricsFound::Other("is a folder".into()));
            }
            Err(error) => return Err(ReportError::read("metrics", path, error)),
        };
        Ok(match found_at(path, &bytes[..whole_lines(&bytes)], position) {
            Ok(()) => MetricsFound::Same,
            Err(problem) => MetricsFound::Other(problem),
        })
    }

    /// What opening the file did: a torn line or later records cut.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Appends a record.
    ///
    /// # Errors
    /// A step below the last one, a repeated key, or an output error; the records before it are then intact and
    /// the file ends with them.
    pub fn append(&mut self, record: &MetricRecord) -> Result<()> {
        if let Some(last) = self.position.last_step.filter(|last| *last > record.step) {
            let problem =
                format!("its step is below the last one, {last}; records are written in the order of steps");
            return Err(ReportError::Record {
                step: record.step,
                kind: record.kind.clone(),
                problem,
            });
        }
        let line = record.line()?;
        if let Err(source) = self.file.write_all(line.as_bytes()) {
            let restored = self.file.set_len(self.position.bytes);
            let sought = self.file.seek(SeekFrom::Start(self.position.bytes));
            let state = if restored.is_ok() && sought.is_ok() {
                "all earlier records are intact"
            } else {
                "all earlier records are intact; the line that was begun is cut at the next start"
            };
            return Err(ReportError::write("metrics", &self.path, state, source));
        }
        self.hasher.update(line.as_bytes());
        self.position.bytes += line.len() as u64;
        self.position.records += 1;
        self.position.last_step = Some(record.step);
        Ok(())
    }

    /// The place after the last record.
    pub fn position(&self) -> MetricsPosition {
        MetricsPosition {
            blake3: Some(ContentHash::from(&self.hasher)),
            ..self.position
        }
    }

    /// Makes what was appended durable. Call it before the checkpoint that stores [`MetricsWriter::position`].
    ///
    /// # Errors
    /// If the device refuses.
    pub fn sync(&mut self) -> Result<()> {
        let state = "the records are written, but may not survive a power failure";
        self.file
            .sync_data()
            .map_err(|source| ReportError::write("metrics", &self.path, state, source))
    }
}

fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn torn_notice(path: &Path, bytes: usize) -> String {
    format!(
        "cut the last line of `{}` ({bytes} bytes), which a killed process left unfinished",
        path.display()
    )
}

/// Bytes up to the end of the last line that has one.
fn whole_lines(bytes: &[u8]) -> usize {
    let last = bytes.iter().rposition(|byte| *byte == b'\n');
    last.map_or(0, |last| last + 1)
}

/// That `position` was stored of a file that began with these bytes; else in which way not.
fn found_at(path: &Path, whole: &[u8], position: MetricsPosition) -> Result<(), String> {
    if let Some(expected) = position.blake3 {
        let prefix = usize::try_from(position.bytes)
            .ok()
            .and_then(|end| whole.get(..end));
        return match prefix {
            Some(prefix) if ContentHash::of(prefix) == expected => Ok(()),
            Some(_) => Err(format!(
                "is not the file that the checkpoint was saved with: its first {} bytes are not those that had been \
                 written then",
                position.bytes
            )),
            None => Err(format!(
                "is not the file that the checkpoint was saved with, or a part of it is lost: it has {} bytes, and had \
                 {} then",
                whole.len(),
                position.bytes
            )),
        };
    }
    let found = position_where(path, whole, |end, _| end <= position.bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if found.bytes == position.bytes && found.records == position.records {
        return Ok(());
    }
    Err(format!(
        "is not the file that the checkpoint was saved with: the checkpoint was saved after record {} (byte {}), here is \
         record {} at byte {}",
        position.records, position.bytes, found.records, found.bytes
    ))
}

/// The position after the longest run of records from the start for which `keep(end in bytes, step)` holds.
fn position_where(path: &Path, bytes: &[u8], keep: impl Fn(u64, u64) -> bool) -> Result<MetricsPosition> {
    let mut position = MetricsPosition::default();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let record = parse(path, position.records + 1, line)?;
        let end = position.bytes + line.len() as u64;
        if !keep(end, record.step) {
            break;
        }
        position = MetricsPosition {
            bytes: end,
            records: position.records + 1,
            last_step: Some(record.step),
            blake3: None,
        };
    }
    Ok(position)
}

fn parse(path: &Path, line: u64, bytes: &[u8]) -> Result<Record> {
    serde_json::from_slice(bytes).map_err(|error| {
        let problem = format!("has a line {line} that is no record: {error}");
        ReportError::invalid(
            "metrics",
            path,
            problem,
            "the file was damaged or edited: mend or delete that line",
        )
    })
}

/// A record as read.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Record {
    /// Step.
    pub step: u64,
    /// Kind.
    pub kind: String,
    /// Values in the order written.
    #[serde(flatten)]
    pub values: Map<String, Value>,
}

impl Record {
    /// A number, finite or not; `None` if the key is missing or no number.
    pub fn number(&self, key: &str) -> Option<f64> {
        number(self.values.get(key)?)
    }

    /// A list of numbers.
    pub fn numbers(&self, key: &str) -> Option<Vec<f64>> {
        self.values.get(key)?.as_array()?.iter().map(number).collect()
    }
}

fn number(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        _ => value.as_f64(),
    }
}

/// All records of a file.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// The records in file order.
    pub records: Vec<Record>,
    /// A torn last line that was passed over.
    pub notices: Vec<String>,
}

impl Metrics {
    /// The records after the byte `start` of whole lines; lines that are no record are passed over.
    pub(crate) fn records_after(bytes: &[u8], start: usize) -> Vec<Record> {
        let lines = bytes.get(start..whole_lines(bytes)).unwrap_or_default();
        lines
            .split_inclusive(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }

    /// The records of `step` and later ones.
    #[must_use]
    pub fn since(&self, step: u64) -> Self {
        let records = self.records.iter().filter(|record| record.step >= step);
        Self {
            records: records.cloned().collect(),
            notices: self.notices.clone(),
        }
    }

    /// Reads a file without changing it; it may be one that is being written.
    ///
    /// # Errors
    /// If it cannot be read or a line other than an unfinished last one is no record.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).map_err(|source| ReportError::read("metrics", path, source))?;
        let whole = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        let mut notices = Vec::new();
        if whole < bytes.len() {
            notices.push(format!(
                "passed over an unfinished last line of `{}`",
                path.display()
            ));
        }
        let lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n');
        let records: Result<Vec<_>> = lines
            .zip(1..)
            .map(|(line, number)| parse(path, number, line))
            .collect();
        Ok(Self {
            records: records?,
            notices,
        })
    }

    /// `(step, value)` of every record of `kind` that has `key`.
    pub fn series(&self, kind: &str, key: &str) -> Vec<(u64, f64)> {
        self.of_kind(kind)
            .filter_map(|record| Some((record.step, record.number(key)?)))
            .collect()
    }

    /// `(step, low, high)` of every record of `kind` that has both keys.
    pub fn band(&self, kind: &str, low_key: &str, high_key: &str) -> Vec<(u64, f64, f64)> {
        let ends = |record: &Record| Some((record.step, record.number(low_key)?, record.number(high_key)?));
        self.of_kind(kind).filter_map(ends).collect()
    }

    /// The kinds in order of first appearance.
    pub fn kinds(&self) -> Vec<&str> {
        let mut kinds = Vec::new();
        for record in &self.records {
            if !kinds.contains(&record.kind.as_str()) {
                kinds.push(&record.kind);
            }
        }
        kinds
    }

    /// The keys that hold a number in records of `kind`, in order of first appearance.
    pub fn keys(&self, kind: &str) -> Vec<&str> {
        let mut keys: Vec<&str> = Vec::new();
        for record in self.of_kind(kind) {
            for (key, value) in &record.values {
                if number(value).is_some() && !keys.contains(&key.as_str()) {
                    keys.push(key);
                }
            }
        }
        keys
    }

    /// The records of `kind`, in order.
    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| record.kind == kind)
    }
}
