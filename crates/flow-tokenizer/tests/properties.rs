//! Whatever the text, there are tokens, and as many as asked for.

mod common;

use common::*;
use flow_tokenizer::{Length, Tokenizer, clean_for_wan, pipelines};
use proptest::prelude::*;
use std::sync::LazyLock;

static TOKENIZERS: LazyLock<Vec<(&str, Tokenizer)>> =
    LazyLock::new(|| NAMES.iter().map(|name| (*name, tokenizer(name))).collect());

/// Any letters, and texts that are likelier to hurt: specials, white space, marks that combine, parts of other alphabets.
fn text() -> impl Strategy<Value = String> {
    let awkward = prop_oneof![
        any::<char>().prop_map(String::from),
        "[a-zA-Z0-9 ,.!?'\"]{0,12}",
        "[\\u{0}-\\u{20}\\u{80}-\\u{a0}\\u{2000}-\\u{200f}\\u{2028}\\u{2029}\\u{3000}\\u{feff}]{1,4}",
        "[\\u{300}-\\u{36f}\\u{ff01}-\\u{ff5e}\\u{1f1e6}-\\u{1f1ff}\\u{fe0f}\\u{20e3}ßſİıK]{1,4}",
        prop::sample::select(vec![
            "<|endoftext|>",
            "<|startoftext|>",
            "<|im_start|>",
            "</s>",
            "<pad>",
            "<extra_id_0>",
            "▁",
            "'LL",
            "\r\n",
            "&amp;",
            "&#",
            "<|",
        ])
        .prop_map(String::from),
    ];
    prop::collection::vec(awkward, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text_has_tokens_of_the_vocabulary_and_rows_have_the_length_asked_for(text in text(), length in 2usize..90) {
        for (name, tokenizer) in TOKENIZERS.iter() {
            let whole = tokenizer.encode_one(&text).unwrap();
            prop_assert!(whole.iter().all(|id| (*id as usize) < tokenizer.vocabulary_size()), "{name}");
            prop_assert!(whole.len() <= text.len() * 3 + 2, "{name}: {} tokens", whole.len());
            let batch = tokenizer.encode(&[&text], Length::Exactly(length)).unwrap();
            prop_assert_eq!((batch.ids.len(), batch.mask.len()), (length, length));
            let tokens = batch.tokens(0);
            prop_assert_eq!(tokens, whole.len().min(length));
            // What is kept is the front of all of it, and the end token is kept whatever is cut.
            let room = tokens - usize::from(tokenizer.end_id().is_some());
            prop_assert_eq!(&batch.row_ids(0)[..room], &whole[..room]);
            if let Some(end) = tokenizer.end_id() {
                prop_assert_eq!(batch.row_ids(0)[tokens - 1], end);
            }
            prop_assert!(batch.row_ids(0)[tokens..].iter().all(|id| *id == tokenizer.pad_id()));
        }
    }

    #[test]
    fn cutting_twice_is_cutting_once_to_the_shorter_length(text in text(), first in 2usize..60, second in 2usize..60) {
        for (name, tokenizer) in TOKENIZERS.iter() {
            let end = usize::from(tokenizer.end_id().is_some());
            let longer = tokenizer.encode(&[&text], Length::LongestUpTo(first.max(second))).unwrap();
            let shorter = tokenizer.encode(&[&text], Length::LongestUpTo(first.min(second))).unwrap();
            let room = shorter.length - end;
            prop_assert_eq!(&shorter.row_ids(0)[..room], &longer.row_ids(0)[..room]);
            let padded = tokenizer.encode(&[&text], Length::Exactly(first)).unwrap();
            let bare = tokenizer.encode(&[&text], Length::LongestUpTo(first)).unwrap();
            prop_assert_eq!(bare.row_ids(0), &padded.row_ids(0)[..padded.tokens(0)]);
            if let Some(cut) = padded.cut[0] {
                prop_assert!(text.is_char_boundary(cut.at), "{name}");
                prop_assert!(cut.tokens > 0, "{name}");
            }
        }
    }

    #[test]
    fn batches_are_their_texts_one_by_one(texts in prop::collection::vec(text(), 1..4)) {
        for (_, tokenizer) in TOKENIZERS.iter() {
            let batch = tokenizer.encode(&texts, Length::LongestUpTo(50)).unwrap();
            for (row, text) in texts.iter().enumerate() {
                let alone = tokenizer.encode(&[text], Length::LongestUpTo(50)).unwrap();
                prop_assert_eq!(&batch.row_ids(row)[..batch.tokens(row)], alone.row_ids(0));
                prop_assert_eq!(batch.cut[row], alone.cut[0]);
            }
        }
    }

    #[test]
    fn any_prompt_can_be_cleaned_and_put_into_a_template(text in text()) {
        let cleaned = clean_for_wan(&text);
        prop_assert_eq!(cleaned.trim(), &cleaned);
        prop_assert!(!cleaned.contains("  "));
        let qwen = &TOKENIZERS[3].1;
        let batch = pipelines::qwen_image(qwen, &[&text]).unwrap();
        prop_assert!(batch.length > pipelines::QWEN_IMAGE_DROPPED);
    }
}
