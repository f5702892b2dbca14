//! `[text]`: where models that read encoded text get it from.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[text]`: what encodes the prompts for models that read encoded text; a `dit` reads tokens itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum TextConfig {
    /// Every word stands for a fixed vector of random numbers. For models that are trained from the start, and for audits
    /// and benchmarks; a published model was trained with its own encoders and does not know these words.
    Words(WordsText),
    /// Prompts that were encoded beforehand.
    File(FileText),
    /// The text encoders of the diffusers folder that `model.path` names. It is the default there.
    Encoders(EncodersText),
    /// A BERT of a folder, such as the sentence encoder all-MiniLM-L6-v2: for models that are trained from the start and read any text.
    Bert(BertText),
}

impl Default for TextConfig {
    fn default() -> Self {
        Self::Words(WordsText::default())
    }
}

/// `kind = "words"`: random vectors of unit variance in the place of words, zeros in that of padding, and their sum as pooled
/// text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WordsText {
    /// Tokens of the text, padding included; at least as many as the prompts of `[data]` have.
    #[schemars(range(min = 1, max = 65_536))]
    pub tokens: usize,
    /// Seed of the vectors. Part of what a model is trained on: with another seed it no longer understands.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
}

impl Default for WordsText {
    fn default() -> Self {
        Self { tokens: 16, seed: 0 }
    }
}

/// `kind = "file"`: a safetensors file in f32, bf16 or f16 with `prompt_embeds` `[prompts, tokens, channels]` in the order of
/// `flow-train list prompts`, `negative_prompt_embeds` `[1, tokens, channels]`, and for `mmdit` `pooled_prompt_embeds`
/// `[prompts, channels]` and `negative_pooled_prompt_embeds` `[1, channels]`: the names of diffusers' pipelines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileText {
    /// The file, relative to the config file.
    #[serde(serialize_with = "crate::path_text::path")]
    pub path: PathBuf,
}

/// `kind = "encoders"`: every encoder of `model.path` is loaded, used for all prompts and dropped, before training begins. What they
/// made is kept on disk, by content: the next run with these prompts and encoders loads none of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EncodersText {
    /// Tokens of the T5 or UMT5 part of a text; without it as the pipeline has it: 256 for SD3, 512 for FLUX.1-dev and Wan, 256 for
    /// FLUX.1-schnell. Of Qwen-Image, whose texts are as long as they are, the most: 512. Longer prompts are cut.
    #[schemars(range(min = 1, max = 4096))]
    pub tokens: Option<usize>,
    /// Prompts of one call of an encoder.
    #[schemars(range(min = 1, max = 4096))]
    pub micro_batch: usize,
    /// What the second branch of classifier-free guidance is told.
    pub negative_prompt: String,
    /// Folder of the encoded prompts, relative to the config file; without it `prompt-cache` in `run.dir`.
    #[serde(serialize_with = "crate::path_text::option")]
    pub cache: Option<PathBuf>,
}

impl Default for EncodersText {
    fn default() -> Self {
        Self {
            tokens: None,
            micro_batch: 16,
            negative_prompt: String::new(),
            cache: None,
        }
    }
}

/// `kind = "bert"`: the model reads the states of the tokens of a BERT, and as pooled text their mean. The encoder is loaded for
/// prompts that it has not encoded yet in this process, and dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BertText {
    /// The encoder's folder, relative to the config file: `config.json`, `model.safetensors`, and the tokenizer's `vocab.txt` or
    /// `tokenizer.json`.
    #[serde(serialize_with = "crate::path_text::path")]
    pub path: PathBuf,
    /// Tokens of every text, begin and end included: zeros stand behind shorter ones, longer ones are cut.
    #[serde(default = "bert_tokens")]
    #[schemars(range(min = 2, max = 4096))]
    pub tokens: usize,
    /// Prompts of one call of the encoder.
    #[serde(default = "bert_micro_batch")]
    #[schemars(range(min = 1, max = 4096))]
    pub micro_batch: usize,
    /// What the second branch of classifier-free guidance is told.
    #[serde(default)]
    pub negative_prompt: String,
}

const fn bert_tokens() -> usize {
    32
}

const fn bert_micro_batch() -> usize {
    64
}
