//! Prompts of the command line, encoded by a diffusers folder.

use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_config::{Config, TextConfig};
use flow_pipeline::{EncodedPrompt, Pipeline, PromptSettings};
use flow_trainer::encoded::cut_in_words;
use flow_trainer::setup::Environment;

/// The prompts, and the negative one: `negative`, or that of the config. Says what the encoders do not read of them, unless `quiet`.
pub fn encode(
    config: &Config,
    environment: &Environment<'_>,
    pipeline: &Pipeline,
    texts: &[&str],
    negative: Option<&str>,
    quiet: bool,
) -> Result<(Vec<EncodedPrompt>, EncodedPrompt), Failure> {
    let (tokens, micro_batch, of_config) = match &config.text {
        TextConfig::Encoders(text) => (text.tokens, text.micro_batch, text.negative_prompt.as_str()),
        TextConfig::Bert(text) => (None, text.micro_batch, text.negative_prompt.as_str()),
        TextConfig::Words(_) | TextConfig::File(_) => (None, 1, ""),
    };
    let settings = PromptSettings {
        text_tokens: tokens.unwrap_or(pipeline.defaults().text_tokens),
        micro_batch,
    };
    let all: Vec<&str> = texts
        .iter()
        .copied()
        .chain([negative.unwrap_or(of_config)])
        .collect();
    let mut encoded = pipeline
        .encode_prompts(&all, settings, &environment.device, &environment.plan)
        .or_bad_input()?;
    if !quiet && let Some(notice) = cut_in_words(pipeline, &all, settings).or_bad_input()? {
        terminal::note(&format!("note: {notice}"));
    }
    let negative = encoded
        .pop()
        .ok_or_else(|| Failure::Input("there is no prompt; pass `--prompt TEXT`".into()))?;
    Ok((encoded, negative))
}
