//! TensorBoard event files: TFRecord framing and the few protocol-buffer messages that scalars, images, text, hyperparameters and
//! the layout of custom scalars need.
//!
//! A record is `length u64 | masked CRC32C of the length | data | masked CRC32C of the data`, little-endian
//! (tensorflow/core/lib/io/record_writer.h). The data are `Event` messages (tensorflow/core/util/event.proto,
//! summary.proto); only the fields named in the code are written.

mod custom_scalars;
mod hyperparameters;
mod message;

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{ReportError, Result};
use crate::grid::Picture;
use crate::metrics::{MetricRecord, MetricValue};
use crate::probe::unix_s;
use message::Message;

/// Prompts whose values get a scalar each; a page with more charts than this is not looked at.
const CHARTED_PROMPTS: usize = 64;

/// Writes one event file. Every event is one write of a whole record.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl EventWriter {
    /// Makes `events.out.tfevents.SECONDS.HOST.PID.COUNT` in `directory`. If the run goes on after step
    /// `resumed_from`, a session start is logged for the step after it, on which viewers drop what earlier files
    /// hold for that step and later ones.
    ///
    /// # Errors
    /// If the file cannot be made or written.
    pub fn create(directory: &Path, resumed_from: Option<u64>) -> Result<Self> {
        let seconds = unix_s(SystemTime::now()) as u64;
        let host = crate::environment::host_name();
        let stem = format!("events.out.tfevents.{seconds:010}.{host}.{}", std::process::id());
        let path = crate::aside::first_free(|number| directory.join(format!("{stem}.{}", number - 1)));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|e| {
                ReportError::write("TensorBoard events", &path, "the run's other files are intact", e)
            })?;
        let mut writer = Self { path, file, bytes: 0 };
        // Event.file_version = 3
        writer.event(0, |event| event.bytes(3, b"brain.Event:2"))?;
        if let Some(step) = resumed_from {
            // Event.session_log = 7; SessionLog.status = 1, START = 1
            let mut start = Message::default();
            start.varint(1, 1);
            writer.event(step + 1, |event| event.bytes(7, &start.0))?;
        }
        Ok(writer)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Logs a number.
    ///
    /// # Errors
    /// If it cannot be written; the events before it are intact.
    pub fn scalar(&mut self, tag: &str, step: u64, value: f32) -> Result<()> {
        // Value.simple_value = 2
        self.value(tag, step, |message| message.float(2, value))
    }

    /// Logs every number of a record as `kind/key`, and the ends of an interval (`key/low`, `key/high`) as `intervals/kind/key/…`: the
    /// layout of custom scalars draws them around the value.
    ///
    /// # Errors
    /// As [`EventWriter::scalar`].
    pub fn record(&mut self, record: &MetricRecord) -> Result<()> {
        let (step, kind, values) = record.parts();
        for (key, value) in values {
            let number = match value {
                MetricValue::F32(value) => *value,
                MetricValue::F64(value) => *value as f32,
                MetricValue::U64(value) => *value as f32,
                MetricValue::I64(value) => *value as f32,
                MetricValue::Bool(value) => f32::from(u8::from(*value)),
                // TensorBoard's scalar view has no place for text and lists; metrics.jsonl has them.
                MetricValue::Text(_) | MetricValue::F32s(_) | MetricValue::F64s(_) => continue,
            };
            let of = key.strip_suffix("/low").or_else(|| key.strip_suffix("/high"));
            let is_end = of.is_some_and(|of| values.iter().any(|(other, _)| other == of));
            let group = if is_end { "intervals/" } else { "" };
            self.scalar(&format!("{group}{kind}/{key}"), step, number)?;
        }
        Ok(())
    }

    /// Logs the value of each of the first prompts as `prompts/REWARD/NUMBER TEXT`.
    ///
    /// # Errors
    /// As [`EventWriter::scalar`].
    pub fn by_prompt(&mut self, reward: &str, step: u64, prompts: &[&str], values: &[f64]) -> Result<()> {
        let numbered = prompts.iter().zip(values).zip(1_usize..);
        for ((prompt, value), number) in numbered.take(CHARTED_PROMPTS) {
            // A slash would begin a group.
            let text = prompt.replace('/', "-");
            self.scalar(
                &format!("prompts/{reward}/{number:02} {text}"),
                step,
                *value as f32,
            )?;
        }
        Ok(())
    }

    /// Logs a picture.
    ///
    /// # Errors
    /// As [`EventWriter::scalar`].
    pub fn image(&mut self, tag: &str, step: u64, picture: &Picture) -> Result<()> {
        // Summary.Image: height = 1, width = 2, colorspace = 3 (RGB is 3), encoded_image_string = 4
        let mut image = Message::default();
        image.varint(1, picture.height.into());
        image.varint(2, picture.width.into());
        image.varint(3, 3);
        image.bytes(4, &picture.png);
        // Value.image = 4
        self.value(tag, step, |message| message.bytes(4, &image.0))
    }

    /// Logs a text (Markdown), for example the configuration.
    ///
    /// # Errors
    /// As [`EventWriter::scalar`].
    pub fn text(&mut self, tag: &str, step: u64, text: &str) -> Result<()> {
        self.tensor(tag, step, "text", &[], Some(text.as_bytes()))
    }

    /// Makes what was logged durable.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn sync(&mut self) -> Result<()> {
        let state = "the events are written, but may not survive a power failure";
        self.file
            .sync_data()
            .map_err(|e| ReportError::write("TensorBoard events", &self.path, state, e))
    }

    /// A value for a plugin: what it calls its content in the metadata, and one string or, without one, the number 0.
    fn tensor(
        &mut self,
        tag: &str,
        step: u64,
        plugin_name: &str,
        content: &[u8],
        text: Option<&[u8]>,
    ) -> Result<()> {
        // TensorProto: dtype = 1 (DT_STRING is 7, DT_FLOAT is 1), tensor_shape = 2 { dim = 2 { size = 1 } }, float_val = 5,
        // string_val = 8
        let (mut dimension, mut shape, mut tensor) =
            (Message::default(), Message::default(), Message::default());
        if let Some(text) = text {
            dimension.varint(1, 1);
            shape.bytes(2, &dimension.0);
            tensor.varint(1, 7);
            tensor.bytes(2, &shape.0);
            tensor.bytes(8, text);
        } else {
            tensor.varint(1, 1);
            tensor.bytes(2, &shape.0);
            tensor.float(5, 0.0);
        }
        // SummaryMetadata.plugin_data = 1 { plugin_name = 1, content = 2 }
        let (mut plugin, mut metadata) = (Message::default(), Message::default());
        plugin.bytes(1, plugin_name.as_bytes());
        if !content.is_empty() {
            plugin.bytes(2, content);
        }
        metadata.bytes(1, &plugin.0);
        // Value.tensor = 8, Value.metadata = 9
        self.value(tag, step, |message| {
            message.bytes(8, &tensor.0);
            message.bytes(9, &metadata.0);
        })
    }

    fn value(&mut self, tag: &str, step: u64, content: impl FnOnce(&mut Message)) -> Result<()> {
        // Event.summary = 5; Summary.value = 1; Value.tag = 1
        let (mut value, mut summary) = (Message::default(), Message::default());
        value.bytes(1, tag.as_bytes());
        content(&mut value);
        summary.bytes(1, &value.0);
        self.event(step, |event| event.bytes(5, &summary.0))
    }

    fn event(&mut self, step: u64, content: impl FnOnce(&mut Message)) -> Result<()> {
        // Event: wall_time = 1 (double), step = 2 (int64)
        let mut event = Message::default();
        event.double(1, unix_s(SystemTime::now()));
        event.varint(2, step);
        content(&mut event);
        let record = framed(&event.0);
        self.write(&record).map_err(|e| {
            ReportError::write(
                "TensorBoard events",
                &self.path,
                "the events before this one are intact",
                e,
            )
        })
    }

    fn write(&mut self, record: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(record) {
            // A reader stops at a record that is not whole, so what was begun must go.
            self.file.set_len(self.bytes)?;
            self.file.seek(SeekFrom::Start(self.bytes))?;
            return Err(error);
        }
        self.bytes += record.len() as u64;
        Ok(())
    }
}

fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked_crc32c(&length).to_le_bytes());
    record.extend_from_slice(data);
    record.extend_from_slice(&masked_crc32c(data).to_le_bytes());
    record
}

/// TFRecord's checksum: CRC32C, rotated and shifted so that the checksum of data that hold checksums is no trivial
/// one (tensorflow/core/lib/hash/crc32c.h, `Mask`).
pub fn masked_crc32c(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xA282_EAD8)
}
