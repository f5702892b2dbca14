//! The configuration of a run for TensorBoard: as a text, and as hyperparameters by which runs can be compared.
//!
//! Messages: tensorboard/plugins/hparams/plugin_data.proto and google/protobuf/struct.proto.

use serde_json::Value;
use std::time::SystemTime;

use super::{EventWriter, Message};
use crate::error::Result;
use crate::manifest::{Manifest, flatten};
use crate::probe::unix_s;
use crate::summary::RunStatus;

const PLUGIN: &str = "hparams";

impl EventWriter {
    /// Logs the configuration: `config` as text, what was set first, and every value as a hyperparameter.
    ///
    /// # Errors
    /// As [`EventWriter::scalar`].
    pub fn configuration(&mut self, manifest: &Manifest) -> Result<()> {
        self.text("config", 0, &table(manifest))?;
        // HParamsPluginData: session_start_info = 3; SessionStartInfo: hparams = 1 (map: key = 1, value = 2), group_name = 4,
        // start_time_secs = 5
        let mut start = Message::default();
        for (key, value) in flatten(&manifest.config) {
            // What names the run tells no runs apart.
            if key.starts_with("run.") && key != "run.seed" && key != "run.steps" {
                continue;
            }
            let Some(value) = number_or_text(&value) else {
                continue;
            };
            let mut entry = Message::default();
            entry.bytes(1, key.as_bytes());
            entry.bytes(2, &value.0);
            start.bytes(1, &entry.0);
        }
        start.bytes(4, manifest.run.as_bytes());
        start.double(5, unix_s(SystemTime::now()));
        let mut content = Message::default();
        content.bytes(3, &start.0);
        self.tensor("_hparams_/session_start_info", 0, PLUGIN, &content.0, None)
    }

    /// Logs how the run ended.
    ///
    /// # Errors
    /// As [`EventWriter::scalar`].
    pub fn ended(&mut self, status: &RunStatus) -> Result<()> {
        // HParamsPluginData: session_end_info = 4; SessionEndInfo: status = 1 (STATUS_SUCCESS is 1, STATUS_FAILURE 2,
        // STATUS_RUNNING 3), end_time_secs = 2
        let status = match status {
            RunStatus::Finished => 1,
            RunStatus::Failed { .. } => 2,
            RunStatus::Unfinished | RunStatus::Interrupted { .. } => 3,
        };
        let (mut end, mut content) = (Message::default(), Message::default());
        end.varint(1, status);
        end.double(2, unix_s(SystemTime::now()));
        content.bytes(4, &end.0);
        self.tensor("_hparams_/session_end_info", 0, PLUGIN, &content.0, None)
    }
}

/// google.protobuf.Value: number_value = 2, string_value = 3, bool_value = 4. Lists are text; what is not set is left out.
fn number_or_text(value: &Value) -> Option<Message> {
    let mut message = Message::default();
    match value {
        Value::Null => return None,
        Value::Bool(value) => message.varint(4, u64::from(*value)),
        Value::String(text) => message.bytes(3, text.as_bytes()),
        Value::Number(number) => message.double(2, number.as_f64()?),
        other => message.bytes(3, other.to_string().as_bytes()),
    }
    Some(message)
}

/// Settings with their sources as Markdown: those that were set, then the defaults.
fn table(manifest: &Manifest) -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let rows = |wanted: bool| {
        let settings = flatten(&manifest.config).into_iter();
        let rows = settings.filter_map(|(key, value)| {
            let source = manifest.source_of(&key).unwrap_or("not recorded");
            let value = value.as_str().map_or(value.to_string(), str::to_owned);
            let row = format!("| {} | {} | {} |\n", cell(&key), cell(&value), cell(source));
            (source.starts_with("default") != wanted).then_some(row)
        });
        rows.collect::<String>()
    };
    let head = "| key | value | source |\n|---|---|---|\n";
    format!(
        "**Set**\n\n{head}{}\n**Defaults**\n\n{head}{}",
        rows(true),
        rows(false)
    )
}
