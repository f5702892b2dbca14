//! Prompts that are longer than what a pipeline's text encoders read of them. diffusers says so of each, too.

use crate::{Pipeline, PipelineError, PromptSettings};
use flow_diffusers::Family;
use flow_tokenizer::{Batch, Tokenizer, TokenizerError, pipelines};

/// Prompts that are tokenised at a time: rows of padding are held for all of them.
const AT_ONCE: usize = 256;

/// A prompt that no text encoder reads all of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutPrompt {
    /// Its number among the prompts.
    pub number: usize,
    /// Tokens that are not read.
    pub tokens: usize,
}

/// Tokens of a batch of prompts.
type Tokenize = Box<dyn Fn(&[&str]) -> Result<Batch, TokenizerError>>;

impl Pipeline {
    /// Those of `prompts` of which the encoder with the longest rows does not read all: T5's, UMT5's or Qwen2.5-VL's, and CLIP's where a
    /// folder of Stable Diffusion 3 has no T5. That CLIP reads only the first 77 tokens beside T5 is how these models were trained.
    ///
    /// # Errors
    /// Those of the folder's tokenizer; of `settings` that it does not take.
    pub fn cut_prompts(
        &self,
        prompts: &[&str],
        settings: PromptSettings,
    ) -> Result<Vec<CutPrompt>, PipelineError> {
        let open = |name: &str| Tokenizer::open(&self.part(name));
        let most = settings.text_tokens;
        // Tokens of a row that are no prompt's: those of a template.
        let (mut template, mut room) = (0, usize::MAX);
        let tokenize: Tokenize = match self.family() {
            Family::StableDiffusion3 if self.find("text_encoder_3").is_none() => {
                let tokenizer = open("tokenizer")?;
                Box::new(move |prompts: &[&str]| pipelines::clip(&tokenizer, prompts))
            }
            family @ (Family::StableDiffusion3 | Family::Flux) => {
                let tokenizer = open(match family {
                    Family::Flux => "tokenizer_2",
                    _ => "tokenizer_3",
                })?;
                Box::new(move |prompts: &[&str]| pipelines::t5(&tokenizer, prompts, most))
            }
            Family::Wan => {
                let tokenizer = open("tokenizer")?;
                Box::new(move |prompts: &[&str]| pipelines::wan(&tokenizer, prompts, most))
            }
            Family::QwenImage => {
                let tokenizer = open("tokenizer")?;
                // Rows are cut behind the encoder, the template's end with them.
                let behind = tokenizer.encode_one(pipelines::QWEN_IMAGE_BEHIND)?.len();
                (template, room) = (pipelines::QWEN_IMAGE_DROPPED + behind, most);
                Box::new(move |prompts: &[&str]| pipelines::qwen_image(&tokenizer, prompts))
            }
        };
        let mut found = Vec::new();
        for (part, prompts) in prompts.chunks(AT_ONCE).enumerate() {
            let batch = tokenize(prompts)?;
            for row in 0..batch.rows() {
                let cut = batch.cut[row].map_or(0, |cut| cut.tokens);
                let tokens = match template {
                    0 => cut,
                    template => (batch.tokens(row) + cut)
                        .saturating_sub(template)
                        .saturating_sub(room),
                };
                if tokens > 0 {
                    found.push(CutPrompt {
                        number: part * AT_ONCE + row,
                        tokens,
                    });
                }
            }
        }
        Ok(found)
    }
}
