//! Prompts to what a transformer reads of a sentence encoder: the states of a BERT's tokens, and their mean.

use crate::{EncodedPrompt, ModelSize, PipelineError};
use flow_core::Backends;
use flow_core::cpu;
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallContext, InferencePass, Stage};
use flow_core::tensors::plain;
use flow_text_encoder::{BertText, TextEncoder, Tokens, load, mean_of_tokens, weights};
use flow_tokenizer::{Batch, Length, Tokenizer, TokenizerClass};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A BERT of a folder and its tokenizer. Its weights are loaded for as long as it encodes.
#[derive(Debug)]
pub struct SentenceEncoder {
    folder: PathBuf,
    tokenizer: Tokenizer,
    encoder: BertText,
}

impl SentenceEncoder {
    /// The encoder in `folder`, which has `config.json`, weights, and a tokenizer's vocabulary. No weight is read.
    ///
    /// # Errors
    /// [`PipelineError::Encoder`], [`PipelineError::Tokenizer`]; [`PipelineError::Setting`] for a tokenizer with more tokens than the
    /// encoder has rows.
    pub fn open(folder: &Path) -> Result<Self, PipelineError> {
        let encoder = BertText::open(folder)?;
        let tokenizer = Tokenizer::open_as(folder, TokenizerClass::Bert)?;
        let (tokens, rows) = (tokenizer.vocabulary_size(), encoder.vocabulary());
        if tokens > rows {
            return Err(PipelineError::Setting {
                setting: "text.path",
                problem: format!(
                    "names `{}`, whose tokenizer has {tokens} tokens and whose encoder has rows for {rows}: they are of different models",
                    folder.display()
                ),
            });
        }
        Ok(Self {
            folder: folder.to_owned(),
            tokenizer,
            encoder,
        })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Channels of a token's state, and of the mean.
    pub fn channels(&self) -> usize {
        self.encoder.config().width
    }

    /// The longest text in tokens: one less than there are positions.
    pub fn longest(&self) -> usize {
        self.encoder.config().positions - 1
    }

    /// How large it is, by its `config.json` and the headers of its files.
    ///
    /// # Errors
    /// [`PipelineError::Encoder`] for weights that are not there, [`PipelineError::Model`] for damaged ones.
    pub fn size(&self) -> Result<ModelSize, PipelineError> {
        let source = weights::open(&self.folder, None)?;
        let names = ("text_encoder", self.encoder.class_name());
        Ok(ModelSize::of_files(names, self.encoder.layout(), &source.files)?)
    }

    /// Tokens with their mask, and one more token of padding: so attention hides padding in every batch, and computes a text in the same
    /// way whatever is beside it.
    fn padded(&self, batch: &Batch) -> Result<Tokens, PipelineError> {
        let pad = [self.tokenizer.pad_id()];
        let ids = (0..batch.rows()).map(|row| [batch.row_ids(row), &pad[..]].concat());
        let mask = (0..batch.rows()).map(|row| [batch.row_mask(row), &[false][..]].concat());
        Ok(Tokens::with_mask(ids.collect(), mask.collect())?)
    }

    /// Encodes texts, in their order, as `tokens` rows each, zeros behind those of the text, with the mean of those of the text as pooled
    /// text; `micro_batch` at a time, on `device`, by `plan`. A text is the same values in any batch. Also gives how many texts were cut
    /// to `tokens`.
    ///
    /// # Errors
    /// [`PipelineError::Setting`] for more tokens than [`longest`](Self::longest), and for a batch of none; those of tokenizer and weights.
    pub fn encode(
        &self,
        texts: &[&str],
        (tokens, micro_batch): (usize, usize),
        device: &ComputeDevice,
        plan: &Arc<Backends>,
    ) -> Result<(Vec<EncodedPrompt>, usize), PipelineError> {
        let setting = |setting, problem| Err(PipelineError::Setting { setting, problem });
        if tokens > self.longest() {
            let problem = format!("is {tokens}; the encoder reads at most {}", self.longest());
            return setting("text.tokens", problem);
        }
        if micro_batch == 0 {
            return setting("text.micro_batch", "is 0; it must be at least 1".into());
        }
        let (mut weights, _) = load(&self.encoder, &self.folder, None, device)?;
        weights.freeze(&vec![false; weights.layout().len()]);
        let pass = InferencePass::new(&weights, plan.clone());
        let exec = pass.exec(CallContext::single(Stage::Evaluation));
        let (mut encoded, mut cut) = (Vec::with_capacity(texts.len()), 0);
        let channels = self.channels();
        for texts in texts.chunks(micro_batch) {
            let batch = self.tokenizer.encode(texts, Length::Exactly(tokens))?;
            cut += batch.cut.iter().flatten().count();
            let rows = self.padded(&batch)?;
            let states = self.encoder.encode(&exec, &rows)?;
            let means = mean_of_tokens(&states, &rows)?;
            let mut states = cpu::to_host(&plain(&states.into_dispatch()));
            let of_each = states
                .chunks_exact_mut((tokens + 1) * channels)
                .zip(means.chunks_exact(channels));
            for (row, (text, mean)) in of_each.enumerate() {
                for at in (0..tokens).filter(|at| !batch.row_mask(row)[*at]) {
                    text[at * channels..(at + 1) * channels].fill(0.0);
                }
                encoded.push(EncodedPrompt {
                    tokens,
                    length: tokens,
                    channels,
                    text: text[..tokens * channels].to_vec(),
                    pooled: Some(mean.to_vec()),
                });
            }
        }
        drop(exec);
        drop(pass);
        drop(weights);
        device.release_unused();
        Ok((encoded, cut))
    }
}
