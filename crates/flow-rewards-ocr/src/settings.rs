//! The parameters of `ocr`, and what is wrong with them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use flow_registry::Refusal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the OCR reward is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OcrMode {
    /// Flow-GRPO's: 1 where the text is contained in what was read, else 1 minus the edits as a share of the text's length, at
    /// least 0.
    #[default]
    Distance,
    /// 1 where exactly the text was read, else 0.
    Exact,
    /// The natural logarithm of the probability of the text by the recogniser's outputs (CTC), divided by its number of letters,
    /// at least -23.03.
    LogProbability,
}

/// Where the text is that an image should show.
///
/// As text: `quotes`, `prompt`, or `metadata:KEY`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum OcrTarget {
    /// Between the first two double quotes of the prompt, as in Flow-GRPO.
    #[default]
    Quotes,
    /// The whole prompt.
    Prompt,
    /// A key of the prompt's metadata.
    Metadata(String),
}

impl TryFrom<String> for OcrTarget {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match (text.as_str(), text.strip_prefix("metadata:")) {
            ("quotes", _) => Ok(Self::Quotes),
            ("prompt", _) => Ok(Self::Prompt),
            (_, Some(key)) if !key.is_empty() => Ok(Self::Metadata(key.to_owned())),
            _ => Err(format!(
                "\"{text}\" is no target; allowed are \"quotes\", \"prompt\" and \"metadata:KEY\" with a key of the prompts' metadata"
            )),
        }
    }
}

impl From<OcrTarget> for String {
    fn from(target: OcrTarget) -> Self {
        target.to_string()
    }
}

impl fmt::Display for OcrTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quotes => f.write_str("quotes"),
            Self::Prompt => f.write_str("prompt"),
            Self::Metadata(key) => write!(f, "metadata:{key}"),
        }
    }
}

/// Settings of [`OcrReward`](crate::OcrReward).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OcrSettings {
    /// The folder with PP-OCR's ONNX files, relative to the config file: one file with `rec` in its name, and one with `det`. Or
    /// the recogniser's file itself.
    pub path: PathBuf,
    /// The detector's file, relative to the config file. Without it, the file with `det` in its name beside the recogniser.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detector: Option<PathBuf>,
    /// The recogniser's characters, one a line, relative to the config file. Without it, those in the recogniser's metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dictionary: Option<PathBuf>,
    /// SHA-256 of files by their names: `{ "rec.onnx" = "6f32…" }`. A file with another content is refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sha256: BTreeMap<String, String>,
    /// Whether text is looked for in the image. Without it, the whole image is one line of text.
    #[serde(default = "usual_detect")]
    pub detect: bool,
    /// What the reward is.
    #[serde(default)]
    pub mode: OcrMode,
    /// Where the text is that the image should show: `quotes` (between the first two double quotes of the prompt), `prompt` (the
    /// whole prompt), or `metadata:KEY`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub target: OcrTarget,
    /// Lines that are read with less confidence are left out, as by PaddleOCR's `drop_score`; `log-probability` leaves none out.
    /// Without it, 0.5 where text is looked for, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_confidence: Option<f32>,
    /// Columns that a line has for the recogniser, at least, where its height is 48: a shorter one is padded. 320 is PaddleOCR's. Lines of a few letters
    /// are read several times as fast with fewer; scores depend on it.
    #[serde(default = "usual_min_width")]
    #[schemars(range(min = 8, max = 320))]
    pub min_width: usize,
    /// Images that are read at once by one thread, at most, and lines that the recogniser takes at once. Scores do not depend on it.
    #[serde(default = "usual_batch")]
    #[schemars(range(min = 1, max = 256))]
    pub batch: usize,
}

const fn usual_detect() -> bool {
    true
}

const fn usual_min_width() -> usize {
    320
}

const fn usual_batch() -> usize {
    8
}

impl OcrSettings {
    /// The files of this folder, and the usual rest.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            detector: None,
            dictionary: None,
            sha256: BTreeMap::new(),
            detect: usual_detect(),
            mode: OcrMode::default(),
            target: OcrTarget::default(),
            min_confidence: None,
            min_width: usual_min_width(),
            batch: usual_batch(),
        }
    }

    /// Confidence below which a line is left out.
    pub(crate) fn confidence(&self) -> f32 {
        let usual = if self.detect { 0.5 } else { 0.0 };
        self.min_confidence.unwrap_or(usual)
    }

    /// What is wrong with them, with the name of the parameter.
    pub(crate) fn problem(&self) -> Option<Refusal> {
        let not_hex =
            |hash: &String| hash.len() != 64 || !hash.bytes().all(|digit| digit.is_ascii_hexdigit());
        if let Some((name, hash)) = self.sha256.iter().find(|(_, hash)| not_hex(hash)) {
            Some(Refusal::new(
                format!("`sha256`: \"{hash}\" of \"{name}\" is no SHA-256"),
                "it has 64 hexadecimal digits, as `sha256sum` prints",
            ))
        } else if !(0.0..=1.0).contains(&self.confidence()) {
            Some(format!("`min_confidence`: {} is not from 0 to 1", self.confidence()).into())
        } else if !(8..=usual_min_width()).contains(&self.min_width) {
            Some(format!("`min_width`: {} is not from 8 to 320", self.min_width).into())
        } else if !(1..=256).contains(&self.batch) {
            Some(format!("`batch`: {} is not from 1 to 256", self.batch).into())
        } else {
            None
        }
    }
}
