//! Pipelines' folders, from the fixtures, with small weights.
#![allow(dead_code, reason = "each test program uses some of it")]

use flow_diffusers::safetensors::{StoredDtype, write};
use flow_diffusers::{Kind, PipelineFolder};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub const PIPELINES: [&str; 5] = ["sd3", "flux-dev", "flux-schnell", "qwenimage", "wan"];

pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(path)
}

pub fn json_of(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Changes a JSON file.
pub fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = json_of(path);
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Two small tensors of one file.
pub fn weights(path: &Path, dtype: StoredDtype) {
    tensors(path, dtype, &["norm.weight", "to_q.weight"]);
}

pub fn tensors(path: &Path, dtype: StoredDtype, names: &[&str]) {
    let named = names
        .iter()
        .enumerate()
        .map(|(key, name)| ((*name).to_owned(), vec![2, 3], key));
    let values = |key: usize| (0..6).map(|at| key as f32 + at as f32 / 8.0).collect();
    write(named.collect(), &values, path, dtype, &BTreeMap::new()).unwrap();
}

/// A whole pipeline's folder: what the fixture has, and small weights for each model.
pub fn pipeline(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture(name), folder.path());
    let opened = PipelineFolder::open(folder.path()).unwrap();
    for component in opened.components() {
        match component.kind() {
            Kind::Model => {
                let file = match component.library.as_str() {
                    "diffusers" => "diffusion_pytorch_model.safetensors",
                    _ => "model.safetensors",
                };
                weights(&component.folder.join(file), StoredDtype::F32);
            }
            Kind::Tokenizer => {
                fs::create_dir_all(&component.folder).unwrap();
                fs::write(component.folder.join("tokenizer_config.json"), "{}").unwrap();
            }
            Kind::Scheduler | Kind::Other => {}
        }
    }
    folder
}

/// A file with tensors of one precision by its name in the header; all values are zero.
pub fn raw(path: &Path, tensors: &[(&str, &str, &[usize], usize)]) {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, dtype, shape, bits) in tensors {
        let start = end;
        end += shape.iter().product::<usize>() * bits / 8;
        header.insert(
            (*name).to_owned(),
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] }),
        );
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + end, 0);
    fs::write(path, bytes).unwrap();
}

pub fn expect(words: &str, parts: &[&str]) {
    for part in parts {
        assert!(words.contains(part), "`{part}` is not in: {words}");
    }
}
