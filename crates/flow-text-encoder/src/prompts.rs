//! Prompt embeddings: from what encoders give to what each pipeline's transformer reads.
//!
//! A pipeline loads one encoder, encodes all prompts (and the negative ones, which take the same path), drops it, and goes on to
//! the next; so these are functions of outputs, not of encoders. Source: diffusers 0.42.1, `encode_prompt` of
//! `pipelines/{stable_diffusion_3,flux,qwenimage,wan}`.
//!
//! Legend: `B` prompts, `L` tokens of text, `D` channels that the transformer reads.

use crate::{ClipOutput, EncoderError, Tokens};
use burn::tensor::{Int, Tensor, TensorData};

/// Rows of Qwen-Image's template before the prompt, which are dropped: 34 tokens, up to and including `user\n`.
pub const QWEN_IMAGE_TEMPLATE_ROWS: usize = 34;

/// The most rows that Qwen-Image's pipeline keeps of a prompt.
pub const QWEN_IMAGE_ROWS: usize = 512;

/// What a transformer reads of some prompts.
#[derive(Clone, Debug)]
pub struct PromptEmbeds {
    /// `[B, L, D]`.
    pub text: Tensor<3>,
    /// `[B, pooled]`, of pipelines with CLIP.
    pub pooled: Option<Tensor<2>>,
    /// How many rows of each prompt are text, where the others are padding that nothing may attend to; `None` if all are text.
    pub lengths: Option<Vec<usize>>,
}

/// T5's part of SD3's text.
// Passed once for many prompts, so its size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum T5Text {
    /// `[B, L, D]`, encoded with [`Padding::Attended`](crate::Padding::Attended).
    Encoded(Tensor<3>),
    /// The pipeline has no T5: that many rows of zeros.
    Absent {
        /// Rows, `max_sequence_length` in diffusers.
        rows: usize,
    },
}

/// SD3 and SD3.5: the tokens of both CLIPs side by side in channels, filled up with zeros to `width` (the transformer's
/// `joint_attention_dim`), and T5's after them; the projected embeddings of both CLIPs side by side.
///
/// # Errors
/// [`EncoderError::Embeds`] if a CLIP has no projection, prompts differ in number or length, or channels do not fit.
pub fn sd3(
    clip_l: &ClipOutput,
    clip_g: &ClipOutput,
    t5: T5Text,
    width: usize,
) -> Result<PromptEmbeds, EncoderError> {
    let clips = [clip_l, clip_g];
    let [l, g] = clips.map(|clip| clip.penultimate.dims());
    if l[..2] != g[..2] {
        return Err(EncoderError::Embeds(format!(
            "the two CLIPs encoded {l:?} and {g:?} [prompts, tokens, channels]; SD3 reads the same prompts of both, padded to \
             the same length (77)"
        )));
    }
    let ([batch, tokens, _], of_clips) = (l, l[2] + g[2]);
    if of_clips > width {
        return Err(EncoderError::Embeds(format!(
            "the two CLIPs have {} and {} channels, together more than the {width} that the transformer reads \
             (`joint_attention_dim`)",
            l[2], g[2]
        )));
    }
    let device = clip_l.penultimate.device();
    let like = |shape: [usize; 3]| Tensor::<3>::zeros(shape, (&device, clip_l.penultimate.dtype()));
    let mut channels: Vec<Tensor<3>> = clips.map(|clip| clip.penultimate.clone()).into();
    if of_clips < width {
        channels.push(like([batch, tokens, width - of_clips]));
    }
    let t5 = match t5 {
        T5Text::Encoded(text) => text,
        T5Text::Absent { rows } => like([batch, rows, width]),
    };
    let [prompts, rows, of_t5] = t5.dims();
    if prompts != batch || of_t5 != width {
        return Err(EncoderError::Embeds(format!(
            "T5 encoded {:?} [prompts, tokens, channels]; with {batch} prompts at the CLIPs and a transformer that reads {width} \
             channels it must be [{batch}, tokens, {width}]",
            [prompts, rows, of_t5]
        )));
    }
    let of_clips = Tensor::cat(channels, 2);
    let text = if rows == 0 {
        of_clips
    } else {
        Tensor::cat(vec![of_clips, t5], 1)
    };
    let pooled: Option<Vec<Tensor<2>>> = clips.iter().map(|clip| clip.projected.clone()).collect();
    let pooled = pooled.ok_or_else(|| {
        EncoderError::Embeds(
            "a CLIP has no projection (`CLIPTextModel`); SD3 reads that of both (`CLIPTextModelWithProjection`)".into(),
        )
    })?;
    Ok(PromptEmbeds {
        text,
        pooled: Some(Tensor::cat(pooled, 1)),
        lengths: None,
    })
}

/// FLUX.1: T5's tokens, encoded with [`Padding::Attended`](crate::Padding::Attended), and CLIP's pooled embedding without
/// projection.
///
/// # Errors
/// [`EncoderError::Embeds`] if the two encoded different numbers of prompts.
pub fn flux(clip: &ClipOutput, t5: Tensor<3>) -> Result<PromptEmbeds, EncoderError> {
    let ([of_clip, _], [of_t5, _, _]) = (clip.pooled.dims(), t5.dims());
    if of_clip != of_t5 {
        return Err(EncoderError::Embeds(format!(
            "CLIP encoded {of_clip} prompts and T5 {of_t5}; FLUX reads the same of both"
        )));
    }
    Ok(PromptEmbeds {
        text: t5,
        pooled: Some(clip.pooled.clone()),
        lengths: None,
    })
}

/// Qwen-Image: of each prompt the rows of `encoded` that are no padding, without the first `template_rows`
/// ([`QWEN_IMAGE_TEMPLATE_ROWS`]), filled up with zeros behind to the longest, and at most `most_rows`
/// ([`QWEN_IMAGE_ROWS`]).
///
/// # Errors
/// [`EncoderError::Embeds`] if `encoded` is not of `tokens`, or a prompt is no longer than the template.
pub fn qwen_image(
    encoded: &Tensor<3>,
    tokens: &Tokens,
    template_rows: usize,
    most_rows: usize,
) -> Result<PromptEmbeds, EncoderError> {
    check_encoded(encoded, tokens)?;
    let mut kept = Vec::with_capacity(tokens.batch());
    for row in 0..tokens.batch() {
        let positions = tokens.kept(row);
        if positions.len() <= template_rows {
            return Err(EncoderError::Embeds(format!(
                "prompt {row} has {} tokens, and the first {template_rows} are those of the template, which is before every \
                 prompt of Qwen-Image; was it tokenized without?",
                positions.len()
            )));
        }
        kept.push(positions[template_rows..].to_vec());
    }
    let longest = kept.iter().map(Vec::len).max().unwrap_or(0).min(most_rows);
    Ok(masked(encoded, &kept, longest))
}

/// Wan: rows of `encoded` (UMT5, encoded with [`Padding::Masked`](crate::Padding::Masked)) that are padding become zeros; the
/// transformer attends to those like to text.
///
/// # Errors
/// [`EncoderError::Embeds`] if `encoded` is not of `tokens`; [`EncoderError::Tokens`] if these have no mask.
pub fn wan(encoded: &Tensor<3>, tokens: &Tokens) -> Result<PromptEmbeds, EncoderError> {
    check_encoded(encoded, tokens)?;
    if !tokens.has_mask() {
        return Err(EncoderError::Tokens(
            "they have no mask; Wan's pipeline puts zeros in the place of padding, so give the tokenizer's attention mask".into(),
        ));
    }
    // As many rows as there is text, from the first on: padding is behind.
    let kept: Vec<Vec<usize>> = (0..tokens.batch())
        .map(|row| (0..tokens.kept(row).len()).collect())
        .collect();
    let embeds = masked(encoded, &kept, tokens.length());
    Ok(PromptEmbeds {
        lengths: None,
        ..embeds
    })
}

fn check_encoded(encoded: &Tensor<3>, tokens: &Tokens) -> Result<(), EncoderError> {
    let [batch, length, _] = encoded.dims();
    if [batch, length] == [tokens.batch(), tokens.length()] {
        return Ok(());
    }
    Err(EncoderError::Embeds(format!(
        "encoded are {batch} prompts of {length} tokens, given are the tokens of {} prompts of {}",
        tokens.batch(),
        tokens.length()
    )))
}

/// Of each prompt the rows at the positions `kept`, then zeros, `rows` in all.
fn masked(encoded: &Tensor<3>, kept: &[Vec<usize>], rows: usize) -> PromptEmbeds {
    let [batch, length, width] = encoded.dims();
    let device = encoded.device();
    // One row of zeros behind all others, which padding points to.
    let zeros = Tensor::<2>::zeros([1, width], (&device, encoded.dtype()));
    let all = Tensor::cat(vec![encoded.clone().reshape([batch * length, width]), zeros], 0);
    let index = kept.iter().enumerate().flat_map(|(prompt, kept)| {
        let of_text = kept
            .iter()
            .map(move |position| (prompt * length + position) as i64);
        of_text
            .chain(std::iter::repeat((batch * length) as i64))
            .take(rows)
    });
    let index: Vec<i64> = index.collect();
    let index = Tensor::<1, Int>::from_data(TensorData::new(index, [batch * rows]), &device);
    let lengths: Vec<usize> = kept.iter().map(|kept| kept.len().min(rows)).collect();
    let is_full = lengths.iter().all(|length| *length == rows);
    PromptEmbeds {
        text: all.select(0, index).reshape([batch, rows, width]),
        pooled: None,
        lengths: (!is_full).then_some(lengths),
    }
}
