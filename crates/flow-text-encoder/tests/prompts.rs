//! Prompt embeddings against diffusers 0.42.1: what `encode_prompt` of each pipeline gives for two prompts and two negative ones.

mod common;

use burn::tensor::Tensor;
use common::*;
use flow_text_encoder::prompts::{self, QWEN_IMAGE_ROWS, QWEN_IMAGE_TEMPLATE_ROWS, T5Text};
use flow_text_encoder::{ClipOutput, EncoderError, Padding, PromptEmbeds, QwenText, Tokens};

/// Kinds of prompts, and what their tensors' names begin with.
const KINDS: [(&str, &str); 2] = [("prompt", ""), ("negative", "negative_")];

/// What diffusers recorded of a whole pipeline.
fn recorded(pipeline: &str) -> Recorded {
    let oracle = if pipeline == "wan" {
        "oracle_unipc"
    } else {
        "oracle"
    };
    Recorded::read(&format!(
        "../../../../tests/pipelines/{pipeline}/{oracle}.safetensors"
    ))
}

fn of_clip(pipeline: &str, kind: &str, number: &str) -> ClipOutput {
    let tokens = tokens(pipeline, kind, &format!("tokenizer{number}"));
    clip(&format!("pipelines/{pipeline}/text_encoder{number}"), &tokens)
}

fn of_t5(pipeline: &str, kind: &str, number: &str) -> Tensor<3> {
    let tokens = tokens(pipeline, kind, &format!("tokenizer{number}"));
    let folder = format!("pipelines/{pipeline}/text_encoder{number}");
    t5(&folder, &tokens, Padding::Attended, &plan())
}

fn qwen(kind: &str) -> (Tensor<3>, Tokens) {
    let folder = "pipelines/qwen-image/text_encoder";
    let encoder = QwenText::open(&fixture(folder)).unwrap();
    let weights = weights(&encoder, folder);
    let tokens = tokens("qwen-image", kind, "tokenizer");
    (encoder.encode(&exec(&weights, &plan()), &tokens).unwrap(), tokens)
}

#[test]
fn sd3_joins_both_clips_and_t5_and_both_projections() {
    let recorded = recorded("sd3");
    for (kind, prefix) in KINDS {
        let (l, g) = (of_clip("sd3", kind, ""), of_clip("sd3", kind, "_2"));
        let text = T5Text::Encoded(of_t5("sd3", kind, "_3"));
        let embeds = prompts::sd3(&l, &g, text, 48).unwrap();
        near(&embeds.text, &recorded, &format!("{prefix}prompt_embeds"), OF_T5);
        let pooled = embeds.pooled.expect("SD3 has pooled text");
        near(
            &pooled,
            &recorded,
            &format!("{prefix}pooled_prompt_embeds"),
            OF_CLIP_AND_QWEN,
        );
        assert_eq!(embeds.lengths, None, "no mask anywhere");
    }
}

#[test]
fn sd3_without_t5_reads_zeros_in_its_place() {
    let (l, g) = (of_clip("sd3", "prompt", ""), of_clip("sd3", "prompt", "_2"));
    let with = prompts::sd3(&l, &g, T5Text::Encoded(of_t5("sd3", "prompt", "_3")), 48).unwrap();
    let without = prompts::sd3(&l, &g, T5Text::Absent { rows: 160 }, 48).unwrap();
    assert_eq!(without.text.dims(), with.text.dims());
    let (with, without) = (host(&with.text), host(&without.text));
    for (prompt, (with, without)) in with.chunks(237 * 48).zip(without.chunks(237 * 48)).enumerate() {
        let (of_clips, of_t5) = without.split_at(77 * 48);
        assert!(of_clips == &with[..77 * 48], "prompt {prompt}: the CLIPs' part");
        assert!(
            of_t5.iter().all(|value| *value == 0.0),
            "prompt {prompt}: T5's part"
        );
        // The two CLIPs have 24 and 20 channels; the transformer reads 48.
        for (token, row) in of_clips.chunks(48).enumerate() {
            assert_eq!(row[44..], [0.0; 4], "token {token} of prompt {prompt}");
        }
    }
}

#[test]
fn flux_reads_t5_and_the_pooled_embedding_without_projection() {
    let recorded = recorded("flux-dev");
    for (kind, prefix) in KINDS {
        let clip = of_clip("flux-dev", kind, "");
        let embeds = prompts::flux(&clip, of_t5("flux-dev", kind, "_2")).unwrap();
        near(&embeds.text, &recorded, &format!("{prefix}prompt_embeds"), OF_T5);
        let pooled = embeds.pooled.expect("FLUX has pooled text");
        near(
            &pooled,
            &recorded,
            &format!("{prefix}pooled_prompt_embeds"),
            OF_CLIP_AND_QWEN,
        );
    }
}

#[test]
fn qwen_image_drops_padding_and_template_and_says_what_is_text() {
    let recorded = recorded("qwen-image");
    for (kind, prefix) in KINDS {
        let (encoded, tokens) = qwen(kind);
        let PromptEmbeds {
            text,
            pooled,
            lengths,
        } = prompts::qwen_image(&encoded, &tokens, QWEN_IMAGE_TEMPLATE_ROWS, QWEN_IMAGE_ROWS).unwrap();
        near(
            &text,
            &recorded,
            &format!("{prefix}prompt_embeds"),
            OF_CLIP_AND_QWEN,
        );
        assert!(pooled.is_none());
        let (shape, mask) = &recorded.ints[&format!("{prefix}prompt_embeds_mask")];
        let lengths = lengths.expect("one prompt is longer than the other");
        for (mask, length) in mask.chunks(shape[1]).zip(lengths) {
            assert!(
                mask.iter()
                    .enumerate()
                    .all(|(at, kept)| (*kept != 0) == (at < length))
            );
        }
    }
}

#[test]
fn qwen_image_has_no_mask_where_all_prompts_are_as_long_and_cuts_long_ones() {
    let (encoded, tokens) = qwen("prompt");
    let longest = prompts::qwen_image(&encoded, &tokens, 34, 512).unwrap();
    // Of 17 and 46 rows, 10 are kept of each.
    let cut = prompts::qwen_image(&encoded, &tokens, 34, 10).unwrap();
    assert_eq!(cut.text.dims(), [2, 10, 32]);
    assert_eq!(cut.lengths, None);
    let whole = host(&longest.text);
    for (cut, whole) in host(&cut.text).chunks(10 * 32).zip(whole.chunks(46 * 32)) {
        assert!(cut == &whole[..10 * 32]);
    }
    let empty = prompts::qwen_image(&encoded, &tokens, 60, 512).expect_err("shorter than the template");
    let empty = empty.to_string();
    assert!(
        empty.contains("prompt 0 has 51 tokens, and the first 60 are those of the template"),
        "{empty}"
    );
}

#[test]
fn wan_puts_zeros_in_the_place_of_padding() {
    let recorded = recorded("wan");
    let folder = "pipelines/wan/text_encoder";
    for (kind, prefix) in KINDS {
        let tokens = tokens("wan", kind, "tokenizer");
        let encoded = t5(folder, &tokens, Padding::Masked, &plan());
        let embeds = prompts::wan(&encoded, &tokens).unwrap();
        near(&embeds.text, &recorded, &format!("{prefix}prompt_embeds"), OF_T5);
        assert_eq!(embeds.lengths, None, "the transformer attends to zeros");
        let (values, width) = (host(&embeds.text), 32);
        for (row, values) in values.chunks(width).enumerate() {
            let is_text = row % tokens.length() < tokens.kept(row / tokens.length()).len();
            assert_eq!(values.iter().any(|value| *value != 0.0), is_text, "row {row}");
        }
        let unmasked = Tokens::new(tokens.ids().to_vec()).unwrap();
        let error = prompts::wan(&encoded, &unmasked)
            .expect_err("refused")
            .to_string();
        assert!(error.contains("give the tokenizer's attention mask"), "{error}");
    }
}

#[test]
fn outputs_that_do_not_go_together_are_refused_with_the_reason() {
    let plain = of_clip("flux-dev", "prompt", "");
    let projected = of_clip("sd3", "prompt", "_2");
    let absent = || T5Text::Absent { rows: 4 };
    let refused =
        |result: Result<PromptEmbeds, EncoderError>| result.map(drop).expect_err("refused").to_string();
    let without = refused(prompts::sd3(&plain, &projected, absent(), 48));
    assert!(without.contains("a CLIP has no projection"), "{without}");
    let narrow = refused(prompts::sd3(&projected, &projected, absent(), 39));
    assert!(
        narrow.contains("20 and 20 channels, together more than the 39"),
        "{narrow}"
    );
    let one = of_t5("sd3", "prompt", "_3").narrow(0, 0, 1);
    let one = refused(prompts::sd3(&projected, &projected, T5Text::Encoded(one), 48));
    assert!(one.contains("it must be [2, tokens, 48]"), "{one}");
    let (encoded, _) = qwen("prompt");
    let other = refused(prompts::qwen_image(
        &encoded,
        &tokens("qwen-image", "negative", "tokenizer"),
        34,
        512,
    ));
    assert!(
        other.contains("given are the tokens of 2 prompts of 47"),
        "{other}"
    );
    let flux = refused(prompts::flux(
        &plain,
        of_t5("flux-dev", "prompt", "_2").narrow(0, 0, 1),
    ));
    assert!(flux.contains("CLIP encoded 2 prompts and T5 1"), "{flux}");
}
