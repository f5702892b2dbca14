//! Reading a `config.json`, with errors that name file, key and what is allowed.

use crate::EncoderError;
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};

/// The file that describes an encoder.
pub(crate) const FILE: &str = "config.json";
/// The file of a pipeline's folder that says what is in it.
const PIPELINE_FILE: &str = "model_index.json";

/// Reads the keys of a config, or of a table in it.
pub(crate) struct Reader<'a> {
    from: &'a Path,
    values: &'a Map<String, Value>,
    prefix: &'static str,
}

impl<'a> Reader<'a> {
    /// Of `config`, read from the file `from`.
    pub fn new(from: &'a Path, config: &'a Value) -> Result<Self, EncoderError> {
        let values = config.as_object().ok_or_else(|| EncoderError::Config {
            from: from.to_owned(),
            key: ".".into(),
            problem: "is no JSON object".into(),
        })?;
        Ok(Self {
            from,
            values,
            prefix: "",
        })
    }

    /// The keys of the table `key` if there is one, else these: newer configs nest what older ones had at the top.
    pub fn nested(&self, key: &'static str) -> Reader<'a> {
        let table = self.values.get(key).and_then(Value::as_object);
        Reader {
            from: self.from,
            values: table.unwrap_or(self.values),
            prefix: if table.is_some() { key } else { self.prefix },
        }
    }

    /// The value of `key`; nothing if it is absent or null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// That the value of `key` is wrong.
    pub fn wrong(&self, key: &str, problem: impl Into<String>) -> EncoderError {
        let key = match self.prefix {
            "" => key.to_owned(),
            prefix => format!("{prefix}.{key}"),
        };
        EncoderError::Config {
            from: self.from.to_owned(),
            key,
            problem: problem.into(),
        }
    }

    /// A number of things, from 1 to `limit`.
    pub fn count(&self, key: &str, limit: usize) -> Result<usize, EncoderError> {
        let Some(value) = self.get(key) else {
            return Err(self.wrong(key, format!("is missing; it must be a number from 1 to {limit}")));
        };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        count
            .filter(|count| (1..=limit).contains(count))
            .ok_or_else(|| self.wrong(key, format!("is {value}; it must be a number from 1 to {limit}")))
    }

    /// As [`count`](Self::count), `default` if it is absent.
    pub fn count_or(&self, key: &str, default: usize, limit: usize) -> Result<usize, EncoderError> {
        match self.get(key) {
            Some(_) => self.count(key, limit),
            None => Ok(default),
        }
    }

    /// A positive number, `default` if it is absent.
    pub fn positive_or(&self, key: &str, default: f64) -> Result<f64, EncoderError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        value
            .as_f64()
            .filter(|number| *number > 0.0 && number.is_finite())
            .ok_or_else(|| self.wrong(key, format!("is {value}; it must be a number above 0")))
    }

    /// One of some words, `default` if it is absent.
    pub fn word_or(
        &self,
        key: &str,
        default: &'static str,
        allowed: &[&'static str],
    ) -> Result<&'static str, EncoderError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        let found = allowed.iter().find(|word| value.as_str() == Some(**word));
        found.copied().ok_or_else(|| {
            let allowed: Vec<String> = allowed.iter().map(|word| format!("\"{word}\"")).collect();
            self.wrong(key, format!("is {value}; allowed: {}", allowed.join(", ")))
        })
    }

    /// Refuses a switch that is on.
    pub fn off(&self, key: &str) -> Result<(), EncoderError> {
        match self.get(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(value) => Err(self.wrong(
                key,
                format!("is {value}; this is not computed here, only `false`"),
            )),
        }
    }
}

/// The `config.json` of `folder`, and where it is.
///
/// # Errors
/// [`EncoderError::Folder`] for a folder without one, [`EncoderError::Config`] for one that is no JSON.
pub fn of_folder(folder: &Path) -> Result<(PathBuf, Value), EncoderError> {
    let path = folder.join(FILE);
    let text = fs::read_to_string(&path).map_err(|error| EncoderError::Folder {
        path: folder.to_owned(),
        problem: no_config(folder, &error),
    })?;
    let value = serde_json::from_str(&text).map_err(|error| EncoderError::Config {
        from: path.clone(),
        key: ".".into(),
        problem: format!("is no JSON: {error}"),
    })?;
    Ok((path, value))
}

/// What to do about a folder without a `config.json`.
fn no_config(folder: &Path, error: &std::io::Error) -> String {
    if !folder.exists() {
        return "there is no such folder".into();
    }
    if folder.is_file() {
        return format!("it is a file; name the folder of a text encoder, with {FILE} and weights in it");
    }
    if folder.join(PIPELINE_FILE).is_file() {
        let mut parts: Vec<String> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .filter(|name| name.starts_with("text_encoder"))
            .collect();
        parts.sort();
        return match parts.as_slice() {
            [] => {
                "it is the folder of a pipeline, and there is no `text_encoder` in it; fetch it whole".into()
            }
            parts => format!(
                "it is the folder of a whole pipeline; name the text encoder in it: {}",
                parts.join(", ")
            ),
        };
    }
    format!(
        "cannot read `{FILE}` in it ({error}); name a folder that `save_pretrained` wrote, such as `text_encoder`"
    )
}
