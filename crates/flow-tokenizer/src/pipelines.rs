//! What each pipeline of diffusers 0.42.1 does with a prompt before its text encoders.

use crate::{Batch, Length, Tokenizer, TokenizerClass, TokenizerError, clean_for_wan};

/// Tokens of CLIP's rows, where the folder does not say otherwise.
pub const CLIP_LENGTH: usize = 77;
/// The longest rows of T5 that SD3 and FLUX take.
pub const LONGEST_T5: usize = 512;
/// Tokens of SD3's rows of T5, unless the user says otherwise.
pub const SD3_T5_LENGTH: usize = 256;
/// Tokens of FLUX's rows of T5, unless the user says otherwise. FLUX.1-schnell takes 256 at most.
pub const FLUX_T5_LENGTH: usize = 512;
/// Tokens of Wan's rows of UMT5, unless the user says otherwise.
pub const WAN_LENGTH: usize = 512;

/// What stands before a prompt of Qwen-Image.
pub const QWEN_IMAGE_BEFORE: &str = "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, \
     quantity, text, spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n";
/// What stands behind it.
pub const QWEN_IMAGE_BEHIND: &str = "<|im_end|>\n<|im_start|>assistant\n";
/// How many tokens of a row, padding aside, the encoder reads and the transformer does not: those of [`QWEN_IMAGE_BEFORE`].
pub const QWEN_IMAGE_DROPPED: usize = 34;
/// The longest row of Qwen-Image's encoder; what is dropped comes on top.
pub const QWEN_IMAGE_LENGTH: usize = 1024;

/// Rows for a CLIP text encoder of SD3 or FLUX: `[prompts, 77]`, begin and end kept when a prompt is cut.
///
/// Neither pipeline gives the mask to the encoder. The end of a text is at the first position of the largest id.
///
/// # Errors
/// [`TokenizerError::OtherClass`]; as [`Tokenizer::encode`].
pub fn clip(tokenizer: &Tokenizer, prompts: &[impl AsRef<str>]) -> Result<Batch, TokenizerError> {
    expect(tokenizer, TokenizerClass::Clip, "a CLIP text encoder")?;
    tokenizer.encode(
        prompts,
        Length::Exactly(tokenizer.longest_row().unwrap_or(CLIP_LENGTH)),
    )
}

/// Rows for the T5 encoder of SD3 or FLUX: `[prompts, length]`. Neither pipeline gives it the mask: padding is read.
///
/// # Errors
/// [`TokenizerError::OtherClass`]; [`TokenizerError::Length`] for more than [`LONGEST_T5`]; as [`Tokenizer::encode`].
pub fn t5(
    tokenizer: &Tokenizer,
    prompts: &[impl AsRef<str>],
    length: usize,
) -> Result<Batch, TokenizerError> {
    expect(tokenizer, TokenizerClass::T5, "a T5 text encoder")?;
    if length > LONGEST_T5 {
        return Err(TokenizerError::Length {
            length,
            problem: format!("SD3 and FLUX take at most {LONGEST_T5} tokens of T5"),
        });
    }
    tokenizer.encode(prompts, Length::Exactly(length))
}

/// Rows for the UMT5 encoder of Wan: `[prompts, length]`, of cleaned prompts. The encoder gets the mask, and zeros take the place
/// of what it makes of padding.
///
/// # Errors
/// [`TokenizerError::OtherClass`]; as [`Tokenizer::encode`].
pub fn wan(
    tokenizer: &Tokenizer,
    prompts: &[impl AsRef<str>],
    length: usize,
) -> Result<Batch, TokenizerError> {
    expect(tokenizer, TokenizerClass::T5, "Wan")?;
    let cleaned: Vec<String> = prompts
        .iter()
        .map(|prompt| clean_for_wan(prompt.as_ref()))
        .collect();
    tokenizer.encode(&cleaned, Length::Exactly(length))
}

/// Rows for the Qwen2.5-VL encoder of Qwen-Image: as long as the longest prompt in its template, cut at
/// [`QWEN_IMAGE_LENGTH`] + [`QWEN_IMAGE_DROPPED`] tokens, the template's end included.
///
/// Of what the encoder makes of a row, padding is taken out by the mask, and then the first [`QWEN_IMAGE_DROPPED`] rows are
/// dropped.
///
/// # Errors
/// [`TokenizerError::OtherClass`]; [`TokenizerError::Template`] if the vocabulary does not make [`QWEN_IMAGE_DROPPED`] tokens
/// of the template's front; as [`Tokenizer::encode`].
pub fn qwen_image(tokenizer: &Tokenizer, prompts: &[impl AsRef<str>]) -> Result<Batch, TokenizerError> {
    const NAME: &str = "Qwen-Image";
    expect(tokenizer, TokenizerClass::Qwen2, NAME)?;
    let dropped = tokenizer.encode_one(QWEN_IMAGE_BEFORE)?.len();
    if dropped != QWEN_IMAGE_DROPPED {
        return Err(TokenizerError::Template {
            pipeline: NAME,
            problem: format!(
                "this tokenizer makes {dropped} tokens of what stands before each prompt, and Qwen-Image drops \
                 {QWEN_IMAGE_DROPPED}; it is the tokenizer of another model"
            ),
        });
    }
    let texts: Vec<String> = prompts
        .iter()
        .map(|prompt| format!("{QWEN_IMAGE_BEFORE}{}{QWEN_IMAGE_BEHIND}", prompt.as_ref()))
        .collect();
    let mut batch = tokenizer.encode(
        &texts,
        Length::LongestUpTo(QWEN_IMAGE_LENGTH + QWEN_IMAGE_DROPPED),
    )?;
    // Places are those of the prompt, not of the template around it.
    for (cut, prompt) in batch.cut.iter_mut().zip(prompts) {
        if let Some(cut) = cut {
            let at = cut.at.saturating_sub(QWEN_IMAGE_BEFORE.len());
            cut.at = at.min(prompt.as_ref().len());
        }
    }
    Ok(batch)
}

fn expect(
    tokenizer: &Tokenizer,
    class: TokenizerClass,
    pipeline: &'static str,
) -> Result<(), TokenizerError> {
    if tokenizer.class() == class {
        return Ok(());
    }
    Err(TokenizerError::OtherClass {
        pipeline,
        expected: class.name(),
        found: tokenizer.class().name(),
    })
}
