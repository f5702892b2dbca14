//! Tokens are those of transformers 5.24, id by id.

mod common;

use common::*;
use flow_tokenizer::{Length, Side, Tokenizer, TokenizerClass};
use serde_json::json;
use std::fs;

#[test]
fn every_text_has_the_tokens_that_transformers_makes_of_it() {
    for name in NAMES {
        let (tokenizer, oracle) = (tokenizer(name), oracle(name));
        let rows = oracle["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 50);
        for row in rows {
            let text = row["text"].as_str().unwrap();
            let ids = tokenizer.encode_one(text).unwrap();
            assert_eq!(ids, numbers(&row["ids"]), "{name}: {text:?}");
        }
    }
}

#[test]
fn rows_are_cut_and_padded_as_transformers_does() {
    for name in NAMES {
        let (tokenizer, oracle) = (tokenizer(name), oracle(name));
        assert_eq!(u64::from(tokenizer.pad_id()), oracle["pad_id"], "{name}");
        let length = oracle["max_length"].as_u64().unwrap() as usize;
        let rows = oracle["rows"].as_array().unwrap();
        let texts: Vec<&str> = rows.iter().map(|row| row["text"].as_str().unwrap()).collect();
        let batch = tokenizer.encode(&texts, Length::Exactly(length)).unwrap();
        for (index, row) in rows.iter().enumerate() {
            assert_eq!(
                batch.row_ids(index),
                numbers(&row["padded_ids"]),
                "{name}: {:?}",
                texts[index]
            );
            assert_eq!(
                batch.row_mask(index),
                bits(&row["padded_mask"]),
                "{name}: {:?}",
                texts[index]
            );
            let whole = numbers(&row["ids"]).len();
            let lost = batch.cut[index].map_or(0, |cut| cut.tokens);
            assert_eq!(lost, whole.saturating_sub(length), "{name}: {:?}", texts[index]);
        }
        let longest = &oracle["batch_of_first_12_padding_longest"];
        let batch = tokenizer
            .encode(&texts[..12], Length::LongestUpTo(length))
            .unwrap();
        for index in 0..12 {
            assert_eq!(batch.row_ids(index), numbers(&longest["ids"][index]), "{name}");
            assert_eq!(batch.row_mask(index), bits(&longest["mask"][index]), "{name}");
        }
    }
}

#[test]
fn ids_of_openais_vocabulary_are_the_real_ones() {
    let tokenizer = tokenizer("clip-openai");
    assert_eq!(
        (tokenizer.begin_id(), tokenizer.end_id()),
        (Some(49406), Some(49407))
    );
    assert_eq!(tokenizer.vocabulary_size(), 49408);
    let rows = json(&fixture("clip-openai/ids.json"));
    for row in rows.as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        assert_eq!(
            tokenizer.encode_one(text).unwrap(),
            numbers(&row["ids"]),
            "{text:?}"
        );
    }
}

#[test]
fn openclip_big_g_pads_with_its_exclamation_mark() {
    let tokenizer = tokenizer("clip-g");
    assert_eq!(tokenizer.pad_id(), 0);
    assert_eq!(tokenizer.id_of("!"), Some(0));
    let batch = tokenizer.encode(&["a cat"], Length::Exactly(77)).unwrap();
    assert_eq!(batch.row_ids(0)[batch.tokens(0)..], vec![0; 77 - batch.tokens(0)]);
}

#[test]
fn what_a_file_says_of_byte_fallback_changes_nothing() {
    let folder = folder("umt5");
    let path = folder.path().join("tokenizer.json");
    let mut file = json(&path);
    file["model"]["byte_fallback"] = json!(true);
    fs::write(&path, file.to_string()).unwrap();
    let changed = Tokenizer::open(folder.path()).unwrap();
    for row in oracle("umt5")["rows"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        assert_eq!(changed.encode_one(text).unwrap(), numbers(&row["ids"]));
    }
}

#[test]
fn older_folders_without_a_list_of_added_tokens_give_the_same_ids() {
    let folder = folder("clip-l");
    let path = folder.path().join("tokenizer_config.json");
    let mut config = json(&path);
    let object = config.as_object_mut().unwrap();
    object.remove("added_tokens_decoder");
    fs::write(&path, config.to_string()).unwrap();
    let token = |content: &str, normalized: bool| json!({"content": content, "lstrip": false, "normalized": normalized, "rstrip": false, "single_word": false});
    let map = json!({
        "bos_token": token("<|startoftext|>", true), "eos_token": token("<|endoftext|>", false),
        "pad_token": "<|endoftext|>", "unk_token": token("<|endoftext|>", false),
    });
    fs::write(folder.path().join("special_tokens_map.json"), map.to_string()).unwrap();
    let tokenizer = Tokenizer::open(folder.path()).unwrap();
    for row in oracle("clip-l")["rows"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        assert_eq!(
            tokenizer.encode_one(text).unwrap(),
            numbers(&row["ids"]),
            "{text:?}"
        );
    }
}

#[test]
fn older_folders_of_qwen_have_their_added_tokens_in_a_file_of_their_own() {
    let folder = folder("qwen");
    let path = folder.path().join("tokenizer_config.json");
    let mut config = json(&path);
    config.as_object_mut().unwrap().remove("added_tokens_decoder");
    fs::write(&path, config.to_string()).unwrap();
    let tokenizer = Tokenizer::open(folder.path()).unwrap();
    for row in oracle("qwen")["rows"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        assert_eq!(
            tokenizer.encode_one(text).unwrap(),
            numbers(&row["ids"]),
            "{text:?}"
        );
    }
}

#[test]
fn the_class_may_come_from_the_pipeline() {
    let folder = folder("umt5");
    let path = folder.path().join("tokenizer_config.json");
    let mut config = json(&path);
    config["tokenizer_class"] = json!("TokenizersBackend");
    fs::write(&path, config.to_string()).unwrap();
    let class = TokenizerClass::from_name("T5TokenizerFast").unwrap();
    for tokenizer in [
        Tokenizer::open_as(folder.path(), class).unwrap(),
        Tokenizer::open(folder.path()).unwrap(),
    ] {
        let ids = tokenizer.encode_one("a photo of a cat").unwrap();
        let rows = oracle("umt5");
        let rows = rows["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["text"] == "a photo of a cat").unwrap();
        assert_eq!(ids, numbers(&row["ids"]));
    }
}

#[test]
fn padding_and_cutting_on_the_left_are_obeyed() {
    let folder = folder("qwen");
    let path = folder.path().join("tokenizer_config.json");
    let mut config = json(&path);
    config["padding_side"] = json!("left");
    config["truncation_side"] = json!("left");
    fs::write(&path, config.to_string()).unwrap();
    let tokenizer = Tokenizer::open(folder.path()).unwrap();
    assert_eq!(tokenizer.padding_side(), Side::Left);
    let whole = tokenizer.encode_one("one two three").unwrap();
    let batch = tokenizer
        .encode(&["one two three", "a"], Length::Exactly(4))
        .unwrap();
    assert_eq!(batch.row_ids(0), &whole[whole.len() - 4..]);
    assert_eq!(batch.row_mask(1), [false, false, false, true]);
    let lost = batch.cut[0].unwrap();
    let rest = tokenizer.encode_one(&"one two three"[lost.at..]).unwrap();
    assert_eq!((lost.tokens, rest.len()), (whole.len() - 4, 4));
}

#[test]
fn a_cut_says_where_the_text_ends_that_the_model_sees() {
    let tokenizer = tokenizer("clip-l");
    let text = "a photo of a cat ".repeat(30);
    let batch = tokenizer.encode(&[&text], Length::Exactly(77)).unwrap();
    let cut = batch.cut[0].unwrap();
    let seen = tokenizer.encode_one(&text[..cut.at]).unwrap();
    assert_eq!(seen, batch.row_ids(0));
    assert_eq!(cut.tokens, tokenizer.encode_one(&text).unwrap().len() - 77);
}
