//! Prompts that the text encoders of a diffusers folder read, on disk until a batch needs them.

use flow_core::device::ComputeDevice;
use flow_core::{Backends, Condition};
use flow_pipeline::{
    EncodedPrompt, EncodedPrompts, Pipeline, PipelineError, PromptCache, PromptSettings, conditions,
};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The text encoders of a pipeline, which are loaded for as long as they encode, and what they have encoded.
#[derive(Debug)]
pub struct PromptEncoders {
    pipeline: Pipeline,
    cache: PromptCache,
    settings: PromptSettings,
    negative: String,
    device: ComputeDevice,
    plan: Arc<Backends>,
    encoded: Mutex<Option<EncodedPrompts>>,
}

/// What a person may want to know of `prompts` that are longer than their encoders read; nothing if none is.
///
/// # Errors
/// Those of the folder's tokenizer.
pub fn cut_in_words(
    pipeline: &Pipeline,
    prompts: &[&str],
    settings: PromptSettings,
) -> Result<Option<String>, PipelineError> {
    /// Letters of a prompt that are shown.
    const SHOWN: usize = 40;
    let cut = pipeline.cut_prompts(prompts, settings)?;
    let (Some(first), Some(most)) = (cut.first(), cut.iter().map(|one| one.tokens).max()) else {
        return Ok(None);
    };
    let beginning: String = prompts[first.number].chars().take(SHOWN).collect();
    Ok(Some(format!(
        "prompts: {} of {} are longer than their encoder reads (`text.tokens` is {}), by {most} tokens at most, which change nothing; the first \
         begins with {beginning:?}",
        cut.len(),
        prompts.len(),
        settings.text_tokens
    )))
}

impl PromptEncoders {
    /// Of `pipeline`, which keeps what it encodes in `cache`; `plan` computes on `device`.
    pub fn new(
        pipeline: Pipeline,
        cache: PromptCache,
        settings: PromptSettings,
        device: &ComputeDevice,
        plan: &Arc<Backends>,
    ) -> Self {
        Self {
            pipeline,
            cache,
            settings,
            negative: String::new(),
            device: device.clone(),
            plan: plan.clone(),
            encoded: Mutex::new(None),
        }
    }

    /// With a negative prompt other than the empty one.
    pub fn with_negative_prompt(self, negative: impl Into<String>) -> Self {
        Self {
            negative: negative.into(),
            ..self
        }
    }

    /// Rows of text that the model reads of a prompt.
    pub fn tokens(&self) -> usize {
        self.pipeline.text_rows(self.settings.text_tokens)
    }

    /// Encodes prompts and the negative prompt, as far as they are not encoded; says what a person may want to know. The encoders are
    /// loaded once for all of them.
    ///
    /// # Errors
    /// Those of the encoders and of the cache.
    pub fn prepare<'a>(&self, prompts: impl Iterator<Item = &'a str>) -> Result<Vec<String>, PipelineError> {
        let mut encoded = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |text: &str| encoded.as_ref().is_some_and(|encoded| encoded.contains(text));
        // Collected first: their lifetime is theirs, and that of the negative prompt ours.
        let prompts: Vec<&str> = prompts.collect();
        let all = prompts.into_iter().chain([self.negative.as_str()]);
        let mut seen = HashSet::new();
        let missing: Vec<&str> = all.filter(|text| !known(text) && seen.insert(*text)).collect();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let (found, used) =
            self.cache
                .encode(&self.pipeline, &missing, self.settings, &self.device, &self.plan)?;
        match &mut *encoded {
            Some(encoded) => encoded.extend(found),
            none => *none = Some(found),
        }
        let place = self.cache.folder().display();
        let mut notices = vec![format!(
            "prompts: {} encoded, {} found encoded in {place}",
            used.encoded, used.found
        )];
        notices.extend(cut_in_words(&self.pipeline, &missing, self.settings)?);
        if !used.damaged.is_empty() {
            notices.push(format!(
                "prompts: {} damaged entries of {place} were made again, the first of them {}",
                used.damaged.len(),
                used.damaged[0].display()
            ));
        }
        Ok(notices)
    }

    /// What the model reads of prompts, of the negative one where `None`.
    ///
    /// # Errors
    /// Those of [`prepare`](Self::prepare), which encodes those that are not yet, and of entries that are damaged.
    pub fn condition(
        &self,
        rows: &[Option<&str>],
        device: &ComputeDevice,
    ) -> Result<Condition, PipelineError> {
        self.prepare(rows.iter().copied().flatten())?;
        let guard = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = || PipelineError::NotEncoded {
            prompt: self.negative.clone(),
        };
        let encoded = guard.as_ref().ok_or_else(missing)?;
        let found: Vec<Arc<EncodedPrompt>> = rows
            .iter()
            .map(|text| encoded.get(text.unwrap_or(&self.negative)))
            .collect::<Result<_, _>>()?;
        let found: Vec<&EncodedPrompt> = found.iter().map(|prompt| &**prompt).collect();
        Ok(conditions(&found, None, device))
    }
}
