//! From prompts to what the transformer reads: every encoder is loaded, used for all prompts, and dropped before the next.
//!
//! Source: diffusers 0.42.1, `encode_prompt` of `pipelines/{stable_diffusion_3,flux,qwenimage,wan}`.

use crate::{Pipeline, PipelineError};
use burn::tensor::Tensor;
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallContext, Exec, InferencePass, Stage};
use flow_core::tensors::plain;
use flow_core::{Backends, Condition, cpu};
use flow_diffusers::Family;
use flow_text_encoder::prompts::{self, QWEN_IMAGE_TEMPLATE_ROWS, T5Text};
use flow_text_encoder::{
    ClipOutput, ClipText, Padding, PromptEmbeds, QwenText, T5Encoder, TextEncoder, Tokens, load,
};
use flow_tokenizer::{Batch, Tokenizer, pipelines};
use std::sync::Arc;

/// How prompts are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptSettings {
    /// Tokens of T5's or UMT5's part; the most tokens that are kept of a prompt of Qwen-Image.
    pub text_tokens: usize,
    /// Prompts of one call of an encoder.
    pub micro_batch: usize,
}

/// What the transformer reads of one prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedPrompt {
    /// Rows.
    pub tokens: usize,
    /// Rows that are text, from the first on; the others are padding that nothing may attend to. Those of
    /// [`encode_prompts`](Pipeline::encode_prompts) are all of them: padding that a pipeline hides is left out.
    pub length: usize,
    /// Values of a row.
    pub channels: usize,
    /// `[tokens, channels]`.
    pub text: Vec<f32>,
    /// Pooled text, of pipelines with CLIP.
    pub pooled: Option<Vec<f32>>,
}

/// The condition of prompts, one row for each, with the guidance scale that a model embeds. Behind shorter texts are zeros up to the
/// longest, which [`Condition::text_lengths`] hides; where all are equally long, it is absent.
///
/// # Panics
/// If there are none, or they are of several pipelines.
pub fn conditions(prompts: &[&EncodedPrompt], guidance: Option<f32>, device: &ComputeDevice) -> Condition {
    let first = prompts[0];
    let longest = prompts.iter().map(|prompt| prompt.length).max().unwrap_or(0);
    let axes = [prompts.len(), longest, first.channels];
    let mut text = Vec::with_capacity(axes.iter().product());
    for (row, prompt) in prompts.iter().enumerate() {
        text.extend_from_slice(&prompt.text[..prompt.length * prompt.channels]);
        text.resize((row + 1) * longest * first.channels, 0.0);
    }
    let is_padded = prompts.iter().any(|prompt| prompt.length < longest);
    let lengths = prompts.iter().map(|prompt| prompt.length);
    let pooled = first.pooled.as_ref().map(|one| {
        let all = prompts
            .iter()
            .flat_map(|prompt| prompt.pooled.iter().flatten().copied());
        device.tensor(all.collect(), [prompts.len(), one.len()])
    });
    Condition {
        text: Some(device.tensor(text, axes)),
        text_lengths: is_padded.then(|| lengths.collect()),
        pooled,
        guidance: guidance.map(|scale| device.tensor(vec![scale; prompts.len()], [prompts.len()])),
        ..Condition::default()
    }
}

/// Tokens with the mask of their padding.
fn masked(batch: &Batch) -> Result<Tokens, PipelineError> {
    let ids = (0..batch.rows()).map(|row| batch.row_ids(row).to_vec());
    let mask = (0..batch.rows()).map(|row| batch.row_mask(row).to_vec());
    Ok(Tokens::with_mask(ids.collect(), mask.collect())?)
}

/// Prompts for which the encoders are loaded at a time. What CLIP made of them, 630 kB each for SD3, stays on the device until T5 is
/// through; loading T5-XXL again takes seconds, encoding so many prompts longer.
const LOADED_FOR: usize = 1024;

/// A loaded encoder's use.
struct Encoding<'a> {
    pipeline: &'a Pipeline,
    device: &'a ComputeDevice,
    plan: &'a Arc<Backends>,
    /// Prompts, so many at a time.
    batches: Vec<&'a [&'a str]>,
}

/// Takes what the transformer reads of a batch of prompts, by the batch's number.
type Done<'a> = dyn FnMut(usize, PromptEmbeds) -> Result<(), PipelineError> + 'a;

impl Pipeline {
    /// Encodes prompts, in their order; on `device`, by `plan`.
    ///
    /// # Errors
    /// Those of the tokenizers and encoders of the folder; [`PipelineError::Setting`] for settings out of range.
    pub fn encode_prompts(
        &self,
        prompts: &[&str],
        settings: PromptSettings,
        device: &ComputeDevice,
        plan: &Arc<Backends>,
    ) -> Result<Vec<EncodedPrompt>, PipelineError> {
        let mut all = Vec::with_capacity(prompts.len());
        self.encode_each_prompt(prompts, settings, (device, plan), &mut |_, encoded| {
            all.push(encoded);
            Ok(())
        })?;
        Ok(all)
    }

    /// As [`encode_prompts`](Self::encode_prompts), for more prompts than memory holds: `each` is given every prompt's number and what
    /// it became as soon as its batch is through, in order. Where it fails the rest is not encoded.
    ///
    /// # Errors
    /// As [`encode_prompts`](Self::encode_prompts), and those of `each`.
    pub fn encode_each_prompt(
        &self,
        prompts: &[&str],
        settings: PromptSettings,
        (device, plan): (&ComputeDevice, &Arc<Backends>),
        each: &mut dyn FnMut(usize, EncodedPrompt) -> Result<(), PipelineError>,
    ) -> Result<(), PipelineError> {
        if settings.micro_batch == 0 {
            return Err(PipelineError::Setting {
                setting: "micro_batch",
                problem: "is 0; it must be at least 1".into(),
            });
        }
        let at_once = LOADED_FOR.next_multiple_of(settings.micro_batch);
        for (part, prompts) in prompts.chunks(at_once).enumerate() {
            let encoding = Encoding {
                pipeline: self,
                device,
                plan,
                batches: prompts.chunks(settings.micro_batch).collect(),
            };
            let mut done = |batch: usize, embeds: PromptEmbeds| {
                let first = part * at_once + batch * settings.micro_batch;
                (first..)
                    .zip(split(embeds))
                    .try_for_each(|(number, encoded)| each(number, encoded))
            };
            match self.family() {
                Family::StableDiffusion3 => encoding.sd3(settings, &mut done)?,
                Family::Flux => encoding.flux(settings, &mut done)?,
                Family::Wan => encoding.wan(settings, &mut done)?,
                Family::QwenImage => encoding.qwen_image(settings, &mut done)?,
            }
        }
        Ok(())
    }
}

/// The prompts of a batch, each by itself on the host, without padding that is hidden from the transformer.
fn split(embeds: PromptEmbeds) -> Vec<EncodedPrompt> {
    let [batch, tokens, channels] = embeds.text.dims();
    let text = cpu::to_host(&plain(&embeds.text.into_dispatch()));
    let pooled = embeds
        .pooled
        .map(|pooled| cpu::to_host(&plain(&pooled.into_dispatch())));
    let row = |row: usize| {
        let length = embeds.lengths.as_ref().map_or(tokens, |lengths| lengths[row]);
        let first = row * tokens * channels;
        EncodedPrompt {
            tokens: length,
            length,
            channels,
            text: text[first..first + length * channels].to_vec(),
            pooled: pooled.as_ref().map(|pooled| {
                let width = pooled.len() / batch;
                pooled[row * width..(row + 1) * width].to_vec()
            }),
        }
    };
    (0..batch).map(row).collect()
}

impl Encoding<'_> {
    /// Loads `encoder`, has `each` batch of prompts encoded, and drops it.
    fn each<E: TextEncoder>(
        &self,
        encoder: &E,
        folder: &str,
        mut each: impl FnMut(usize, &Exec<'_>, &[&str]) -> Result<(), PipelineError>,
    ) -> Result<(), PipelineError> {
        let variant = self.pipeline.variant_of(folder)?;
        let (mut weights, _) = load(encoder, &self.pipeline.part(folder), variant, self.device)?;
        // On a device that computes in bf16 nothing else is kept of them: of T5-XXL that is 9.5 GB instead of 28.
        weights.freeze(&vec![false; weights.layout().len()]);
        let pass = InferencePass::new(&weights, self.plan.clone());
        let exec = pass.exec(CallContext::single(Stage::Evaluation));
        let mut batches = self.batches.iter().enumerate();
        let all = batches.try_for_each(|(batch, prompts)| each(batch, &exec, prompts));
        drop(exec);
        drop(pass);
        drop(weights);
        self.device.release_unused();
        all
    }

    fn clip(&self, tokenizer: &str, encoder: &str) -> Result<Vec<ClipOutput>, PipelineError> {
        let tokenizer = Tokenizer::open(&self.pipeline.part(tokenizer))?;
        let clip = ClipText::open(&self.pipeline.part(encoder))?;
        let mut all = Vec::with_capacity(self.batches.len());
        self.each(&clip, encoder, |_, exec, prompts| {
            // The encoder reads padding like text; of the mask it wants nothing.
            let batch = pipelines::clip(&tokenizer, prompts)?;
            let ids = (0..batch.rows()).map(|row| batch.row_ids(row).to_vec());
            all.push(clip.encode(exec, &Tokens::new(ids.collect())?)?);
            Ok(())
        })?;
        Ok(all)
    }

    fn t5(
        &self,
        (tokenizer, encoder): (&str, &str),
        length: usize,
        mut each: impl FnMut(usize, Tensor<3>) -> Result<(), PipelineError>,
    ) -> Result<(), PipelineError> {
        let tokenizer = Tokenizer::open(&self.pipeline.part(tokenizer))?;
        let t5 = T5Encoder::open(&self.pipeline.part(encoder))?;
        self.each(&t5, encoder, |batch, exec, prompts| {
            let tokens = masked(&pipelines::t5(&tokenizer, prompts, length)?)?;
            each(batch, t5.encode(exec, &tokens, Padding::Attended)?)
        })
    }

    fn sd3(&self, settings: PromptSettings, done: &mut Done<'_>) -> Result<(), PipelineError> {
        let l = self.clip("tokenizer", "text_encoder")?;
        let g = self.clip("tokenizer_2", "text_encoder_2")?;
        let (width, rows) = (self.pipeline.text_channels(), settings.text_tokens);
        let mut join = |batch: usize, t5: T5Text| done(batch, prompts::sd3(&l[batch], &g[batch], t5, width)?);
        match self.pipeline.find("text_encoder_3") {
            Some(_) => self.t5(("tokenizer_3", "text_encoder_3"), rows, |batch, encoded| {
                join(batch, T5Text::Encoded(encoded))
            }),
            None => (0..l.len()).try_for_each(|batch| join(batch, T5Text::Absent { rows })),
        }
    }

    fn flux(&self, settings: PromptSettings, done: &mut Done<'_>) -> Result<(), PipelineError> {
        let clip = self.clip("tokenizer", "text_encoder")?;
        self.t5(
            ("tokenizer_2", "text_encoder_2"),
            settings.text_tokens,
            |batch, t5| done(batch, prompts::flux(&clip[batch], t5)?),
        )
    }

    fn qwen_image(&self, settings: PromptSettings, done: &mut Done<'_>) -> Result<(), PipelineError> {
        let most = settings.text_tokens;
        if !(1..=pipelines::QWEN_IMAGE_LENGTH).contains(&most) {
            return Err(PipelineError::Setting {
                setting: "text_tokens",
                problem: format!(
                    "is {most}, the most tokens that Qwen-Image reads of a prompt; it must be between 1 and {}",
                    pipelines::QWEN_IMAGE_LENGTH
                ),
            });
        }
        let tokenizer = Tokenizer::open(&self.pipeline.part("tokenizer"))?;
        let qwen = QwenText::open(&self.pipeline.part("text_encoder"))?;
        self.each(&qwen, "text_encoder", |batch, exec, prompts| {
            let tokens = masked(&pipelines::qwen_image(&tokenizer, prompts)?)?;
            let encoded = qwen.encode(exec, &tokens)?;
            let embeds = prompts::qwen_image(&encoded, &tokens, QWEN_IMAGE_TEMPLATE_ROWS, most)?;
            done(batch, embeds)
        })
    }

    fn wan(&self, settings: PromptSettings, done: &mut Done<'_>) -> Result<(), PipelineError> {
        let tokenizer = Tokenizer::open(&self.pipeline.part("tokenizer"))?;
        let umt5 = T5Encoder::open(&self.pipeline.part("text_encoder"))?;
        self.each(&umt5, "text_encoder", |batch, exec, prompts| {
            let tokens = masked(&pipelines::wan(&tokenizer, prompts, settings.text_tokens)?)?;
            let encoded = umt5.encode(exec, &tokens, Padding::Masked)?;
            done(batch, prompts::wan(&encoded, &tokens)?)
        })
    }
}
