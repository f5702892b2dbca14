//! Rows are those that diffusers' pipelines give to their encoders.

mod common;

use common::*;
use flow_tokenizer::pipelines::*;
use flow_tokenizer::{TokenizerError, clean_for_wan};

#[test]
fn qwen_images_template_has_the_tokens_of_transformers() {
    let tokenizer = tokenizer("qwen");
    let oracle = json(&fixture("qwen/template.json"));
    let prompts: Vec<&str> = oracle["prompts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_str().unwrap())
        .collect();
    let batch = qwen_image(&tokenizer, &prompts).unwrap();
    // The longest is cut, and with it the end of the template.
    assert_eq!(batch.length, 1024 + 34);
    for row in 0..prompts.len() {
        let ids = numbers(&oracle["ids"][row]);
        assert_eq!(batch.row_ids(row)[..batch.tokens(row)], ids, "{:?}", prompts[row]);
    }
    let first = qwen_image(&tokenizer, &prompts[..7]).unwrap();
    assert_eq!(first.length as u64, oracle["length_of_the_first_seven"]);
}

#[test]
fn the_first_34_tokens_of_a_row_are_the_templates_and_five_stand_at_its_end() {
    let tokenizer = tokenizer("qwen");
    let front = common::oracle("qwen")["template_prefix_ids"].clone();
    let batch = qwen_image(&tokenizer, &["", "a cat"]).unwrap();
    for row in 0..2 {
        assert_eq!(batch.row_ids(row)[..QWEN_IMAGE_DROPPED], numbers(&front));
    }
    let end = tokenizer.encode_one(QWEN_IMAGE_BEHIND).unwrap();
    let (tokens, cat) = (batch.tokens(0), tokenizer.encode_one("a cat").unwrap());
    // With an empty prompt nothing but the end is left.
    assert_eq!(batch.row_ids(0)[QWEN_IMAGE_DROPPED..tokens], end);
    assert_eq!(batch.row_ids(1)[QWEN_IMAGE_DROPPED..], [cat, end].concat());
}

#[test]
fn a_cut_prompt_of_qwen_image_says_where_in_the_prompt() {
    let tokenizer = tokenizer("qwen");
    let prompt = "word ".repeat(700);
    let batch = qwen_image(&tokenizer, &[&prompt]).unwrap();
    let cut = batch.cut[0].unwrap();
    assert!(prompt.is_char_boundary(cut.at) && cut.at > 0 && cut.at < prompt.len());
    let seen = qwen_image(&tokenizer, &[&prompt[..cut.at]]).unwrap();
    assert_eq!(seen.row_ids(0)[..1058], *batch.row_ids(0));
}

#[test]
fn a_vocabulary_that_makes_other_than_34_tokens_of_the_template_is_refused() {
    let folder = folder("qwen");
    let path = folder.path().join("merges.txt");
    let merges = std::fs::read_to_string(&path).unwrap();
    let fewer: Vec<&str> = merges.lines().take(40).collect();
    std::fs::write(&path, fewer.join("\n")).unwrap();
    let tokenizer = flow_tokenizer::Tokenizer::open(folder.path()).unwrap();
    let error = qwen_image(&tokenizer, &["a cat"]).unwrap_err();
    assert!(matches!(error, TokenizerError::Template { .. }));
    assert!(error.to_string().contains("Qwen-Image drops 34"), "{error}");
}

#[test]
fn clip_rows_are_77_long_and_t5_rows_as_long_as_asked() {
    let batch = clip(&tokenizer("clip-l"), &["a cat", &"cat ".repeat(200)]).unwrap();
    assert_eq!((batch.rows(), batch.length), (2, 77));
    assert_eq!(batch.row_ids(1)[76], 813);
    let t5_tokenizer = tokenizer("t5");
    assert_eq!(t5(&t5_tokenizer, &["a cat"], 256).unwrap().length, 256);
    let error = t5(&t5_tokenizer, &["a cat"], 513).unwrap_err();
    assert!(error.to_string().contains("at most 512"), "{error}");
    let error = t5(&t5_tokenizer, &["a cat"], 0).unwrap_err();
    assert!(error.to_string().contains("at least"), "{error}");
}

#[test]
fn prompts_of_wan_are_cleaned_as_pythons_html_and_re_do() {
    let cases = json(&fixture("wan-cleaned.json"));
    for case in cases.as_array().unwrap() {
        let (before, after) = (case[0].as_str().unwrap(), case[1].as_str().unwrap());
        assert_eq!(clean_for_wan(before), after, "{before:?}");
    }
    let tokenizer = tokenizer("umt5");
    assert_eq!(
        wan(&tokenizer, &["  the&nbsp;cat &amp;amp; dog\n"], 64).unwrap(),
        wan(&tokenizer, &["the cat & dog"], 64).unwrap()
    );
}

#[test]
fn a_tokenizer_of_another_class_is_refused_by_name() {
    let qwen = tokenizer("qwen");
    for error in [
        clip(&qwen, &["a"]).unwrap_err(),
        t5(&qwen, &["a"], 77).unwrap_err(),
        wan(&qwen, &["a"], 77).unwrap_err(),
        qwen_image(&tokenizer("clip-l"), &["a"]).unwrap_err(),
    ] {
        let words = error.to_string();
        assert!(
            words.contains("Qwen2Tokenizer") && words.contains("needs a tokenizer of the class"),
            "{words}"
        );
    }
}
