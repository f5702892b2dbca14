//! The weight files of an encoder's folder.

use crate::EncoderError;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// What holds the weights of `folder` in `variant` (`fp16`, `bf16`; `None` for the plain ones): a file or an index, of which all
/// shards are there.
pub(super) fn weights_of(folder: &Path, variant: Option<&str>) -> Result<PathBuf, EncoderError> {
    let wrong = |problem: String| EncoderError::Folder {
        path: folder.to_owned(),
        problem,
    };
    if !folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let (single, index) = match variant {
        None => (SINGLE.to_owned(), INDEX.to_owned()),
        Some(variant) => (
            format!("model.{variant}.safetensors"),
            format!("model.safetensors.index.{variant}.json"),
        ),
    };
    let (single, index) = (folder.join(single), folder.join(index));
    if single.is_file() {
        return Ok(single);
    }
    if index.is_file() {
        let missing = missing_shards(&index);
        if !missing.is_empty() {
            let names: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
            return Err(wrong(format!(
                "it is not whole: {} named by `{}` and not there. Fetch the folder again",
                match names.as_slice() {
                    [one] => format!("{one} is"),
                    several => format!("{} are", several.join(", ")),
                },
                index.file_name().unwrap_or_default().to_string_lossy()
            )));
        }
        return Ok(index);
    }
    match variant {
        // Other names, and the reasons why there is nothing, are known to the reader of folders.
        None => Ok(folder.to_owned()),
        Some(variant) => Err(wrong(format!(
            "it holds no weights of the variant `{variant}`, neither `model.{variant}.safetensors` nor \
             `model.safetensors.index.{variant}.json`; {}",
            others(folder)
        ))),
    }
}

/// Files that `index` names and that are not beside it. A damaged index is for its reader to refuse.
fn missing_shards(index: &Path) -> BTreeSet<String> {
    let text = fs::read(index).unwrap_or_default();
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    let Some(Value::Object(map)) = value.get("weight_map") else {
        return BTreeSet::new();
    };
    let named: BTreeSet<String> = map
        .values()
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect();
    let is_missing = |name: &String| !index.with_file_name(name).is_file();
    named.into_iter().filter(is_missing).collect()
}

/// The weight files that are there.
fn others(folder: &Path) -> String {
    let names = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = names
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| name.contains(".safetensors"))
        .map(|name| format!("`{name}`"))
        .collect();
    names.sort();
    match names.as_slice() {
        [] => "there are no `*.safetensors` in it at all".into(),
        names => format!("there are: {}", names.join(", ")),
    }
}
