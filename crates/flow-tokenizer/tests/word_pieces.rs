//! BERT's tokenizer, against the examples that it was published with, and the folders that it is read from.

use flow_tokenizer::{Length, Tokenizer, TokenizerClass};
use serde_json::json;
use std::fs;
use std::path::Path;

/// The vocabulary of google-research/bert's `tokenization_test.py`, with the special tokens that a row needs behind it.
const WORDS: [&str; 13] = [
    "[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ",", "[PAD]", "[MASK]",
];

fn folder_of(words: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("vocab.txt"), words.join("\n")).unwrap();
    folder
}

fn open(folder: &Path) -> Result<Tokenizer, String> {
    Tokenizer::open_as(folder, TokenizerClass::Bert).map_err(|error| error.to_string())
}

/// The words of a text, without the tokens around it.
fn pieces(tokenizer: &Tokenizer, words: &[&str], text: &str) -> String {
    let ids = tokenizer.encode_one(text).unwrap();
    let (first, last) = (ids[0], ids[ids.len() - 1]);
    assert_eq!(
        (Some(first), Some(last)),
        (tokenizer.begin_id(), tokenizer.end_id())
    );
    let words: Vec<&str> = ids[1..ids.len() - 1]
        .iter()
        .map(|id| words[*id as usize])
        .collect();
    words.join(" ")
}

#[test]
fn the_published_example_has_its_pieces() {
    let folder = folder_of(&WORDS);
    let tokenizer = open(folder.path()).unwrap();
    // `test_full_tokenizer`.
    assert_eq!(
        pieces(&tokenizer, &WORDS, "UNwant\u{e9}d,running"),
        "un ##want ##ed , runn ##ing"
    );
    assert_eq!(
        tokenizer.encode_one("UNwant\u{e9}d,running").unwrap(),
        [1, 7, 4, 5, 10, 8, 9, 2]
    );
    // `test_wordpiece_tokenizer`: a word of which a part is unknown is unknown as a whole.
    assert_eq!(
        pieces(&tokenizer, &WORDS, "unwanted running"),
        "un ##want ##ed runn ##ing"
    );
    assert_eq!(
        pieces(&tokenizer, &WORDS, "unwantedX running"),
        "[UNK] runn ##ing"
    );
    assert_eq!(pieces(&tokenizer, &WORDS, ""), "");
}

#[test]
fn chinese_characters_accents_case_and_odd_spaces_are_as_in_the_published_tests() {
    let words = [
        "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "ah", "\u{535a}", "\u{63a8}", "zz", "hello", "how",
        "are", "you", "?", "!", "\u{e4}h", "Hello",
    ];
    let folder = folder_of(&words);
    let tokenizer = open(folder.path()).unwrap();
    // `test_chinese` and `test_basic_tokenizer_lower`.
    assert_eq!(
        pieces(&tokenizer, &words, "ah\u{535a}\u{63a8}zz"),
        "ah \u{535a} \u{63a8} zz"
    );
    assert_eq!(
        pieces(&tokenizer, &words, " \tHeLLo!how  \n Are yoU?  "),
        "hello ! how are you ?"
    );
    assert_eq!(pieces(&tokenizer, &words, "H\u{e9}llo"), "hello");
    // `test_basic_tokenizer_no_lower`.
    fs::write(
        folder.path().join("tokenizer_config.json"),
        json!({ "do_lower_case": false }).to_string(),
    )
    .unwrap();
    let cased = open(folder.path()).unwrap();
    assert_eq!(
        pieces(&cased, &words, "Hello \u{e4}h hello HELLO"),
        "Hello \u{e4}h hello [UNK]"
    );
}

#[test]
fn rows_are_cut_and_padded_with_their_mask() {
    let folder = folder_of(&WORDS);
    let tokenizer = open(folder.path()).unwrap();
    let batch = tokenizer
        .encode(&["want", "unwanted running wa"], Length::Exactly(6))
        .unwrap();
    assert_eq!(batch.row_ids(0), [1, 3, 2, 11, 11, 11]);
    assert_eq!(batch.row_mask(0), [true, true, true, false, false, false]);
    assert_eq!(batch.row_ids(1), [1, 7, 4, 5, 8, 2]);
    assert_eq!(batch.cut[1].map(|cut| cut.tokens), Some(2));
}

#[test]
fn a_tokenizer_file_gives_the_same_and_says_its_class() {
    let plain = folder_of(&WORDS);
    let ids: serde_json::Map<String, serde_json::Value> = (0_u32..)
        .zip(WORDS)
        .map(|(id, word)| (word.to_owned(), id.into()))
        .collect();
    let special = |id: u32| json!({ "id": id, "content": WORDS[id as usize], "special": true });
    let file = json!({
        "added_tokens": [special(0), special(1), special(2), special(11), special(12)],
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": ids },
    });
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    let tokenizer = Tokenizer::open(folder.path()).unwrap();
    assert_eq!(tokenizer.class(), TokenizerClass::Bert);
    let text = "UNwant\u{e9}d, running [MASK]";
    let alone = open(plain.path()).unwrap();
    assert_eq!(
        tokenizer.encode_one(text).unwrap(),
        alone.encode_one(text).unwrap()
    );
    assert_eq!(tokenizer.encode_one("[MASK]").unwrap(), [1, 12, 2]);
}

#[test]
fn folders_of_something_else_are_refused() {
    let empty = tempfile::tempdir().unwrap();
    let problem = open(empty.path()).unwrap_err();
    assert!(problem.contains("`vocab.txt`"), "{problem}");
    let cut = folder_of(&WORDS[1..]);
    let problem = open(cut.path()).unwrap_err();
    assert!(problem.contains("`[UNK]`"), "{problem}");
    let t5 = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/t5");
    let problem = open(&t5).unwrap_err();
    assert!(problem.contains("WordPiece"), "{problem}");
}
