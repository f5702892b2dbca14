//! From prompts to what a model reads.

use crate::encoded::PromptEncoders;
use crate::error::TrainError;
use crate::policy::{ConditionKeys, Conditions};
use crate::sentences::Sentences;
use crate::text::EncodedText;
use flow_core::device::ComputeDevice;
use flow_core::stopped::Stopped;
use flow_core::{Condition, ModelSpec};
use flow_data::{Dataset, Prompt};
use flow_pipeline::PipelineError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Turns prompts into conditions: tokens, or encoded text.
#[derive(Clone, Debug)]
pub struct Conditioner {
    device: ComputeDevice,
    source: Source,
    guided: bool,
    /// The guidance scale that the model embeds, if it does.
    embedded_guidance: Option<f32>,
    /// The empty condition by its number of rows, where it lies on the device.
    empty: Arc<Mutex<BTreeMap<usize, Condition>>>,
}

/// Numbers of rows for which the empty condition stays on the device. A run has that of its micro-batch, and those of what is left over.
const KEPT: usize = 4;

/// Where conditions come from.
#[derive(Clone, Debug)]
enum Source {
    /// The prompts' own tokens; those of the empty prompt.
    Tokens(Vec<u32>),
    /// Text that was made up, or read from a file.
    Text(Box<EncodedText>),
    /// Text encoders.
    Encoders(Arc<PromptEncoders>),
    /// A sentence encoder.
    Sentences(Arc<Sentences>),
}

impl Conditioner {
    /// For `dataset`'s prompts and a model of `spec` that reads tokens.
    ///
    /// # Errors
    /// A message if the model reads no tokens, or if its vocabulary or prompt length is too small for the data.
    pub fn new(
        dataset: &dyn Dataset,
        spec: &ModelSpec,
        guided: bool,
        device: &ComputeDevice,
    ) -> Result<Self, String> {
        let Some(vocabulary) = spec.vocabulary else {
            return Err(format!(
                "model `{}` reads no tokens; `Conditioner::encoded` is for models that read text",
                spec.architecture,
            ));
        };
        let Some(prompts) = dataset.tokenized() else {
            return Err(format!(
                "the model reads tokens of a small vocabulary, and the prompts of `{}` are free text; take a model that reads \
                 encoded text (`model.path` names a diffusers folder), or other data; of `data.kind = \"images\"`, `data.words = true` makes \
                 tokens of the captions' words",
                dataset.name()
            ));
        };
        let (words, length) = (prompts.vocabulary().len(), prompts.prompt_length());
        if vocabulary.size < words || vocabulary.length != length {
            return Err(format!(
                "the model reads {} tokens out of {}, but prompts of `{}` have {length} tokens out of {words}; set \
                 `model.dit.conditioning = {{ kind = \"tokens\", vocabulary = {words}, max_tokens = {length} }}`",
                vocabulary.length,
                vocabulary.size,
                dataset.name()
            ));
        }
        Ok(Self::of(Source::Tokens(prompts.null_tokens()), guided, device))
    }

    /// For prompts that are encoded as `text`.
    pub fn encoded(text: EncodedText, guided: bool, device: &ComputeDevice) -> Self {
        Self::of(Source::Text(Box::new(text)), guided, device)
    }

    /// For prompts that text encoders read.
    pub fn encoders(encoders: PromptEncoders, guided: bool, device: &ComputeDevice) -> Self {
        Self::of(Source::Encoders(Arc::new(encoders)), guided, device)
    }

    /// For prompts that a sentence encoder reads.
    pub fn sentences(sentences: Sentences, guided: bool, device: &ComputeDevice) -> Self {
        Self::of(Source::Sentences(Arc::new(sentences)), guided, device)
    }

    fn of(source: Source, guided: bool, device: &ComputeDevice) -> Self {
        Self {
            device: device.clone(),
            source,
            guided,
            embedded_guidance: None,
            empty: Arc::default(),
        }
    }

    /// With the guidance scale that a model embeds ([`ModelSpec::guidance`]); none for other models.
    pub fn with_embedded_guidance(self, scale: Option<f32>) -> Self {
        Self {
            embedded_guidance: scale,
            // Its scale is another one.
            empty: Arc::default(),
            ..self
        }
    }

    /// Tokens of a prompt's encoded text; 0 without.
    pub fn text_tokens(&self) -> usize {
        match &self.source {
            Source::Tokens(_) => 0,
            Source::Text(text) => text.tokens(),
            Source::Encoders(encoders) => encoders.tokens(),
            Source::Sentences(sentences) => sentences.tokens(),
        }
    }

    /// Encodes what text encoders are to read, before it is needed: `prompts` and the negative prompt. Says what a person may want to
    /// know of it.
    ///
    /// # Errors
    /// Those of the encoders, and of the folder that keeps what they make.
    pub fn prepare<'a>(&self, prompts: impl Iterator<Item = &'a Prompt>) -> Result<Vec<String>, TrainError> {
        match &self.source {
            Source::Tokens(_) | Source::Text(_) => Ok(Vec::new()),
            Source::Encoders(encoders) => Ok(encoders.prepare(prompts.map(|prompt| prompt.text.as_str()))?),
            Source::Sentences(sentences) => {
                Ok(sentences.prepare(prompts.map(|prompt| prompt.text.as_str()))?)
            }
        }
    }

    /// Conditions of a batch of prompts, with the empty condition beside them under guidance.
    pub fn conditions<'a>(&self, prompts: impl Iterator<Item = &'a Prompt>) -> Conditions {
        let rows: Vec<Option<&Prompt>> = prompts.map(Some).collect();
        let unconditional = self.guided.then(|| self.empty(rows.len()));
        let conditional = self.rows(&rows);
        // What is computed for a text in a longer row has more rows: another value to whoever keeps it for the next batch.
        let longest = [Some(&conditional), unconditional.as_ref()].into_iter().flatten();
        let longest = longest.filter_map(|condition| Some(condition.text.as_ref()?.dims()[1]));
        let length = (longest.max().unwrap_or(0) as u64).to_le_bytes();
        // No prompt has the bytes of the empty condition.
        let key = |row: &Option<&Prompt>| match row {
            Some(prompt) => [b"p", &length[..], prompt.text.as_bytes()].concat().into(),
            None => [b"n", &length[..]].concat().into(),
        };
        let keys = ConditionKeys {
            conditional: rows.iter().map(key).collect(),
            unconditional: key(&None),
        };
        Conditions {
            conditional,
            unconditional,
            keys: Some(keys),
        }
    }

    /// The empty condition of `rows` rows. It is the same for every batch, so that it goes to the device once.
    fn empty(&self, rows: usize) -> Condition {
        // Encoders, if they are still to be loaded, want no memory that lasts; if they fail, the rows below say so.
        let _ = self.prepare(std::iter::empty());
        let mut kept = self.empty.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.get(&rows) {
            return known.clone();
        }
        let none = vec![None; rows];
        let made = self.device.with_persistent_allocation(|| self.rows(&none));
        if kept.len() == KEPT {
            kept.clear();
        }
        kept.insert(rows, made.clone());
        made
    }

    /// A condition of prompts, the empty one where `None`.
    pub fn rows(&self, rows: &[Option<&Prompt>]) -> Condition {
        let condition = match &self.source {
            Source::Tokens(null) => {
                let tokens = rows
                    .iter()
                    .flat_map(|row| row.map_or(null, |prompt| &prompt.tokens));
                let tokens = tokens.map(|token| i64::from(*token)).collect();
                Condition {
                    tokens: Some(self.device.int_tensor(tokens, [rows.len(), null.len()])),
                    ..Condition::default()
                }
            }
            Source::Text(text) => text.condition(rows, &self.device),
            // Prompts and encoders lie on disk, and a disk can fail at any time.
            Source::Encoders(encoders) => or_stop(encoders.condition(&texts_of(rows), &self.device)),
            Source::Sentences(sentences) => or_stop(sentences.condition(&texts_of(rows), &self.device)),
        };
        let scale = |scale: f32| self.device.tensor(vec![scale; rows.len()], [rows.len()]);
        Condition {
            guidance: self.embedded_guidance.map(scale),
            ..condition
        }
    }
}

/// The texts of prompts, none of the empty one.
fn texts_of<'a>(rows: &[Option<&'a Prompt>]) -> Vec<Option<&'a str>> {
    let texts = rows.iter().map(|row| row.map(|prompt| prompt.text.as_str()));
    texts.collect()
}

/// What was encoded; where it cannot be had, the run stops with the reason.
fn or_stop(found: Result<Condition, PipelineError>) -> Condition {
    found.unwrap_or_else(|error| {
        Stopped::Prompts {
            why: error.to_string(),
        }
        .stop()
    })
}
