//! A folder that cannot be used says what is wrong and what to do.

mod common;

use common::*;
use flow_tokenizer::{Length, Tokenizer};
use serde_json::json;
use std::fs;
use std::path::Path;

/// The error for a copy of the folder `name` that `change` was made to.
fn refused(name: &str, change: impl FnOnce(&Path)) -> String {
    let folder = folder(name);
    change(folder.path());
    Tokenizer::open(folder.path()).unwrap_err().to_string()
}

fn expect(words: &str, parts: &[&str]) {
    for part in parts {
        assert!(words.contains(part), "`{part}` is not in: {words}");
    }
}

#[test]
fn a_missing_vocabulary_is_named() {
    let words = refused("clip-l", |at| fs::remove_file(at.join("merges.txt")).unwrap());
    expect(&words, &["no `merges.txt`", "Download the folder again"]);
    let words = refused("t5", |at| {
        fs::rename(at.join("tokenizer.json"), at.join("spiece.model")).unwrap()
    });
    expect(&words, &["`spiece.model` alone is not read", "save_pretrained"]);
    let words = Tokenizer::open(Path::new("no-such-folder"))
        .unwrap_err()
        .to_string();
    expect(&words, &["there is no such folder"]);
    let file = folder("clip-l");
    let words = Tokenizer::open(&file.path().join("vocab.json"))
        .unwrap_err()
        .to_string();
    expect(&words, &["it is a file; name the folder"]);
    let empty = tempfile::tempdir().unwrap();
    let words = Tokenizer::open(empty.path()).unwrap_err().to_string();
    expect(
        &words,
        &["neither a `tokenizer.json` nor a `tokenizer_config.json`"],
    );
    fs::write(empty.path().join("model_index.json"), "{}").unwrap();
    let words = Tokenizer::open(empty.path()).unwrap_err().to_string();
    expect(&words, &["whole pipeline", "`tokenizer`"]);
}

#[test]
fn a_pointer_of_git_lfs_is_named() {
    let words = refused("umt5", |at| {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 16837417\n";
        fs::write(at.join("tokenizer.json"), pointer).unwrap();
    });
    expect(&words, &["tokenizer.json", "pointer of Git LFS", "git lfs pull"]);
}

#[test]
fn pages_of_servers_and_cut_files_are_named() {
    let words = refused("qwen", |at| {
        fs::write(at.join("vocab.json"), "<!doctype html><p>Access denied").unwrap()
    });
    expect(&words, &["vocab.json", "page of HTML", "log in"]);
    let words = refused("qwen", |at| fs::write(at.join("vocab.json"), "").unwrap());
    expect(&words, &["it is empty"]);
    let words = refused("qwen", |at| {
        fs::write(at.join("vocab.json"), b"{\"\xff\": 1}").unwrap()
    });
    expect(&words, &["byte 2 is no UTF-8"]);
    for name in ["qwen", "clip-l-v5", "t5"] {
        let file = if name == "qwen" {
            "vocab.json"
        } else {
            "tokenizer.json"
        };
        let words = refused(name, |at| {
            let text = fs::read_to_string(at.join(file)).unwrap();
            fs::write(at.join(file), &text[..text.len() / 2]).unwrap();
        });
        expect(&words, &[file, "if the file is cut off"]);
    }
}

#[test]
fn merges_of_another_vocabulary_are_refused_with_their_line() {
    let words = refused("clip-l", |at| {
        fs::copy(fixture("qwen/merges.txt"), at.join("merges.txt")).unwrap();
    });
    expect(
        &words,
        &[
            "merges.txt",
            "line ",
            "the vocabulary has no `",
            "different models",
        ],
    );
    let words = refused("clip-l", |at| {
        fs::write(at.join("merges.txt"), "#version: 0.2\nt h\nin\n").unwrap()
    });
    expect(&words, &["line 3 is `in`", "two parts"]);
    let words = refused("qwen-v5", |at| {
        let mut file = json(&at.join("tokenizer.json"));
        file["model"]["merges"] = json!(["q zz"]);
        fs::write(at.join("tokenizer.json"), file.to_string()).unwrap();
    });
    expect(&words, &["merge 1 joins `q` and `zz`"]);
}

#[test]
fn a_vocabulary_that_is_cut_off_is_noticed_by_the_ids_of_added_tokens() {
    let words = refused("qwen", |at| {
        let mut vocabulary = json(&at.join("vocab.json"));
        let object = vocabulary.as_object_mut().unwrap();
        object.retain(|_, id| id.as_u64().unwrap() < 470);
        fs::write(at.join("vocab.json"), vocabulary.to_string()).unwrap();
        let merges = fs::read_to_string(at.join("merges.txt")).unwrap();
        let kept: Vec<&str> = merges.lines().take(200).collect();
        fs::write(at.join("merges.txt"), kept.join("\n")).unwrap();
    });
    expect(&words, &["`<|endoftext|>` has the id 470", "say 480", "cut off"]);
}

#[test]
fn a_vocabulary_without_its_bytes_or_unknown_token_is_refused() {
    let words = refused("qwen", |at| {
        fs::write(at.join("vocab.json"), "{\"a\": 0}").unwrap()
    });
    expect(&words, &["joins"]);
    let words = refused("qwen", |at| {
        fs::write(at.join("vocab.json"), "{\"a\": 0}").unwrap();
        fs::write(at.join("merges.txt"), "").unwrap();
    });
    expect(&words, &["merges.txt", "it is empty"]);
    let words = refused("qwen", |at| {
        fs::write(at.join("vocab.json"), "{\"a\": 0}").unwrap();
        fs::write(at.join("merges.txt"), "#version: 0.2\n").unwrap();
    });
    expect(&words, &["lacks the byte"]);
    let words = refused("clip-l", |at| {
        fs::write(at.join("vocab.json"), "{\"a\": 0}").unwrap();
        fs::write(at.join("merges.txt"), "#version: 0.2\n").unwrap();
    });
    expect(&words, &["no `<|endoftext|>`", "unknown token"]);
}

#[test]
fn classes_that_are_not_read_are_named_with_the_nearest() {
    let class = |name: &str| {
        refused("clip-l", |at| {
            let mut config = json(&at.join("tokenizer_config.json"));
            config["tokenizer_class"] = json!(name);
            fs::write(at.join("tokenizer_config.json"), config.to_string()).unwrap();
        })
    };
    expect(
        &class("LlamaTokenizer"),
        &["`LlamaTokenizer` are not read", "T5TokenizerFast"],
    );
    expect(&class("ClipTokenizer"), &["the nearest is `CLIPTokenizer`"]);
    let words = refused("t5", |at| {
        fs::copy(fixture("clip-l-v5/tokenizer.json"), at.join("tokenizer.json")).unwrap();
    });
    expect(&words, &["vocabulary of BPE", "another model"]);
    let words = refused("clip-l-v5", |at| {
        fs::copy(
            folder("t5").path().join("tokenizer.json"),
            at.join("tokenizer.json"),
        )
        .unwrap();
    });
    expect(&words, &["no merges of BPE", "CLIPTokenizer"]);
}

#[test]
fn a_damaged_table_of_replacements_is_refused() {
    for (table, part) in [
        ("AAAA", "is cut off"),
        ("!", "is no base64"),
        ("/////w==", "is cut off"),
    ] {
        let words = refused("t5", |at| {
            let mut file = json(&at.join("tokenizer.json"));
            file["normalizer"]["precompiled_charsmap"] = json!(table);
            fs::write(at.join("tokenizer.json"), file.to_string()).unwrap();
        });
        expect(&words, &["`precompiled_charsmap`", part]);
    }
}

#[test]
fn a_row_too_short_for_begin_and_end_is_refused() {
    let tokenizer = tokenizer("clip-l");
    let words = tokenizer
        .encode(&["a"], Length::Exactly(1))
        .unwrap_err()
        .to_string();
    expect(
        &words,
        &["a row of 1 tokens", "begin and end of a text alone are 2"],
    );
    assert_eq!(
        tokenizer.encode(&["a cat"], Length::Exactly(2)).unwrap().ids,
        [812, 813]
    );
}

#[test]
fn a_text_of_the_size_of_a_file_is_refused() {
    let text = " ".repeat(flow_tokenizer::LONGEST_TEXT + 1);
    for name in NAMES {
        let tokenizer = tokenizer(name);
        let words = tokenizer.encode_one(&text).unwrap_err().to_string();
        expect(&words, &["262145 bytes"]);
        // The longest that is taken is cut by patterns to its end.
        tokenizer.encode_one(&text[1..]).unwrap();
        let ids = tokenizer.encode_one(&format!("{}cat", &text[4..])).unwrap();
        let cat = tokenizer.encode_one(" cat").unwrap();
        assert!(
            ids.ends_with(&cat[usize::from(tokenizer.begin_id().is_some())..]),
            "{name}"
        );
    }
}
