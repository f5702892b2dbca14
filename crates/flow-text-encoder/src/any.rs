//! The encoder of a folder, whichever it is.

use crate::{
    ClipConfig, ClipText, EncoderError, QwenConfig, QwenText, T5Config, T5Encoder, TextEncoder, config,
};
use serde_json::Value;
use std::path::Path;

/// Any of the encoders here.
#[derive(Debug)]
pub enum AnyTextEncoder {
    /// `CLIPTextModel`, `CLIPTextModelWithProjection`.
    Clip(ClipText),
    /// `T5EncoderModel`, `UMT5EncoderModel`.
    T5(T5Encoder),
    /// `Qwen2_5_VLForConditionalGeneration`.
    Qwen(QwenText),
}

/// Values of `model_type` that are known here.
const KINDS: &str = "\"clip_text_model\", \"clip\", \"t5\", \"umt5\", \"qwen2_5_vl\"";

impl AnyTextEncoder {
    /// The encoder whose `config.json` lies in `folder`.
    ///
    /// # Errors
    /// [`EncoderError::Folder`] for a folder of something else, [`EncoderError::Config`].
    pub fn open(folder: &Path) -> Result<Self, EncoderError> {
        let (from, config) = config::of_folder(folder)?;
        Self::read(&from, &config, None)
    }

    /// The encoder that `config` describes, read from the file `from`: as `class`, transformers' name of one, if given.
    ///
    /// # Errors
    /// [`EncoderError::Config`].
    pub fn read(from: &Path, config: &Value, class: Option<&str>) -> Result<Self, EncoderError> {
        let reader = config::Reader::new(from, config)?;
        let kind = reader.get("model_type").and_then(Value::as_str);
        match kind {
            Some("clip_text_model" | "clip") => {
                Ok(Self::Clip(ClipText::new(ClipConfig::read(from, config, class)?)))
            }
            Some("t5" | "umt5") => Ok(Self::T5(T5Encoder::new(T5Config::read(from, config)?))),
            Some("qwen2_5_vl" | "qwen2_5_vl_text") => {
                Ok(Self::Qwen(QwenText::new(QwenConfig::read(from, config)?)))
            }
            _ => {
                let other = reader.get("_class_name").and_then(Value::as_str);
                Err(match (kind, other) {
                    (None, Some(class)) => {
                        reader.wrong("_class_name", format!("is \"{class}\", which is no text encoder"))
                    }
                    (None, None) => reader.wrong("model_type", format!("is missing; allowed: {KINDS}")),
                    (Some(kind), _) => reader.wrong("model_type", format!("is \"{kind}\"; allowed: {KINDS}")),
                })
            }
        }
    }

    /// What all encoders have in common.
    pub fn encoder(&self) -> &dyn TextEncoder {
        match self {
            Self::Clip(encoder) => encoder,
            Self::T5(encoder) => encoder,
            Self::Qwen(encoder) => encoder,
        }
    }
}
