//! Prompts that a sentence encoder reads, in memory once they are encoded.

use flow_core::device::ComputeDevice;
use flow_core::{Backends, Condition};
use flow_pipeline::{EncodedPrompt, PipelineError, SentenceEncoder, conditions};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// A sentence encoder, which is loaded for as long as it encodes, and what it has encoded: of 4,000 prompts of 16 tokens in 384 channels
/// 100 MB.
#[derive(Debug)]
pub struct Sentences {
    encoder: SentenceEncoder,
    tokens: usize,
    micro_batch: usize,
    negative: String,
    is_pooled: bool,
    device: ComputeDevice,
    plan: Arc<Backends>,
    encoded: Mutex<HashMap<String, Arc<EncodedPrompt>>>,
}

impl Sentences {
    /// Of `encoder`, for a model that reads `tokens` rows of text; `plan` computes on `device`, `micro_batch` prompts at a time.
    pub fn new(
        encoder: SentenceEncoder,
        (tokens, micro_batch): (usize, usize),
        device: &ComputeDevice,
        plan: &Arc<Backends>,
    ) -> Self {
        Self {
            encoder,
            tokens,
            micro_batch,
            negative: String::new(),
            is_pooled: true,
            device: device.clone(),
            plan: plan.clone(),
            encoded: Mutex::default(),
        }
    }

    /// With a negative prompt other than the empty one.
    pub fn with_negative_prompt(self, negative: impl Into<String>) -> Self {
        Self {
            negative: negative.into(),
            ..self
        }
    }

    /// For a model that reads no pooled text.
    pub fn without_pooled(self) -> Self {
        Self {
            is_pooled: false,
            ..self
        }
    }

    /// Rows of text that the model reads of a prompt.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Encodes prompts and the negative prompt, as far as they are not encoded; says what a person may want to know.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn prepare<'a>(&self, prompts: impl Iterator<Item = &'a str>) -> Result<Vec<String>, PipelineError> {
        let mut encoded = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        // Collected first: their lifetime is theirs, and that of the negative prompt ours.
        let prompts: Vec<&str> = prompts.collect();
        let mut seen = HashSet::new();
        let all = prompts.into_iter().chain([self.negative.as_str()]);
        let missing: Vec<&str> = all
            .filter(|text| !encoded.contains_key(*text) && seen.insert(*text))
            .collect();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let sizes = (self.tokens, self.micro_batch);
        let (found, cut) = self.encoder.encode(&missing, sizes, &self.device, &self.plan)?;
        for (text, mut prompt) in missing.iter().zip(found) {
            if !self.is_pooled {
                prompt.pooled = None;
            }
            encoded.insert((*text).to_owned(), Arc::new(prompt));
        }
        Ok(match cut {
            0 => Vec::new(),
            cut => vec![format!(
                "prompts: {cut} of {} have more than {} tokens and were cut; raise `text.tokens`",
                missing.len(),
                self.tokens
            )],
        })
    }

    /// What the model reads of prompts, of the negative one where `None`.
    ///
    /// # Errors
    /// Those of [`prepare`](Self::prepare), which encodes those that are not yet.
    pub fn condition(
        &self,
        rows: &[Option<&str>],
        device: &ComputeDevice,
    ) -> Result<Condition, PipelineError> {
        self.prepare(rows.iter().copied().flatten())?;
        let encoded = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        let found = rows.iter().map(|text| {
            let text = text.unwrap_or(&self.negative);
            encoded
                .get(text)
                .cloned()
                .ok_or_else(|| PipelineError::NotEncoded {
                    prompt: text.to_owned(),
                })
        });
        let found: Vec<Arc<EncodedPrompt>> = found.collect::<Result<_, _>>()?;
        drop(encoded);
        let found: Vec<&EncodedPrompt> = found.iter().map(|prompt| &**prompt).collect();
        Ok(conditions(&found, None, device))
    }
}
