//! Folders of tokenizers, from the fixtures.
#![allow(dead_code, reason = "each test program uses some of it")]

use flow_tokenizer::Tokenizer;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders that transformers 5.24 wrote; see `fixtures/README.md`.
pub const NAMES: [&str; 7] = ["clip-l", "clip-g", "clip-l-v5", "qwen", "qwen-v5", "t5", "umt5"];

pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(path)
}

pub fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A copy of a fixture's folder as it is on a disk of users. Files that several fixtures share are put together.
pub fn folder(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    if name == "clip-g" {
        for file in ["vocab.json", "merges.txt"] {
            fs::copy(fixture("clip-l").join(file), folder.path().join(file)).unwrap();
        }
    }
    let file = folder.path().join("tokenizer.json");
    if file.exists() {
        let table = fs::read_to_string(fixture("nmt_nfkc.base64")).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("@nmt_nfkc@", table.trim_end())).unwrap();
    }
    folder
}

pub fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::open(folder(name).path()).unwrap()
}

/// What transformers made of the awkward texts with this vocabulary.
pub fn oracle(name: &str) -> Value {
    json(&fixture(name.strip_suffix("-v5").unwrap_or(name)).join("ids.json"))
}

pub fn numbers(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap().iter();
    list.map(|it| it.as_u64().unwrap() as u32).collect()
}

pub fn bits(value: &Value) -> Vec<bool> {
    value.as_str().unwrap().chars().map(|c| c == '1').collect()
}
