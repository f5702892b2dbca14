//! Which files of a repository are needed.
//!
//! Names are those of diffusers and transformers, as `flow_diffusers::WeightFiles` reads them: `diffusion_pytorch_model` or
//! `model`, then the variant behind a dot, then `.safetensors`; of shards the index is `NAME.safetensors.index.json`, with a
//! variant `NAME.safetensors.index.VARIANT.json` or an older name.

use crate::RemoteFile;
use crate::paths::relative_path;
use flow_diffusers::WeightFiles;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Names of weights, the one that counts first in front.
const STEMS: [&str; 2] = ["diffusion_pytorch_model", "model"];
const WEIGHTS: &str = ".safetensors";
/// Endings of files that are programs to Python.
const PICKLES: [&str; 5] = [".bin", ".pt", ".pth", ".ckpt", ".msgpack"];
/// Endings of configs, vocabularies and templates.
const TEXTS: [&str; 4] = [".json", ".txt", ".model", ".jinja"];
/// Beginnings of the names of licences, which go with the weights.
const LICENCES: [&str; 3] = ["LICENSE", "LICENCE", "NOTICE"];

/// The files that are needed, sorted by path.
pub(crate) type Wanted<'f> = Vec<&'f RemoteFile>;

/// The folders that a `model_index.json` names.
///
/// # Errors
/// A text with what is wrong with it.
pub(crate) fn component_names(index: &[u8]) -> Result<Vec<String>, String> {
    let index: Map<String, Value> =
        serde_json::from_slice(index).map_err(|error| format!("it is no JSON object ({error})"))?;
    let is_component = |value: &Value| {
        let pair = value.as_array().map(Vec::as_slice);
        matches!(pair, Some([Value::String(_), Value::String(_)]))
    };
    let names = index
        .into_iter()
        .filter(|(key, value)| !key.starts_with('_') && is_component(value));
    names
        .map(|(name, _)| {
            if name.contains('/') || relative_path(&name).is_none() {
                return Err(format!(
                    "it names a component {name:?}, which is no name of a folder"
                ));
            }
            Ok(name)
        })
        .collect()
}

/// The files that are needed of a pipeline with the folders `components`, or of a model at the top of the repository.
///
/// # Errors
/// A text with what is missing and what is there instead.
pub(crate) fn select<'f>(
    files: &'f [RemoteFile],
    components: Option<&[String]>,
    variant: Option<&str>,
) -> Result<Wanted<'f>, String> {
    let mut folders: BTreeMap<&str, Vec<Named<'f>>> = BTreeMap::new();
    for file in files {
        let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        if !name.starts_with('.') {
            folders.entry(folder).or_default().push(Named { name, file });
        }
    }
    let mut wanted = Vec::new();
    let top = folders.get("").map(Vec::as_slice).unwrap_or_default();
    wanted.extend(top.iter().filter(|it| is_licence(it.name)).map(|it| it.file));
    let mut variants = BTreeSet::new();
    match components {
        Some(names) => {
            wanted.extend(
                top.iter()
                    .filter(|it| it.name == "model_index.json")
                    .map(|it| it.file),
            );
            for name in names {
                if let Some(folder) = folders.get(name.as_str()) {
                    wanted.extend(of_folder(name, folder, variant)?);
                    variants.extend(variants_of(folder));
                }
            }
        }
        None => {
            wanted.extend(of_folder("the top of the repository", top, variant)?);
            variants.extend(variants_of(top));
        }
    }
    if let Some(asked) = variant.filter(|asked| !variants.contains(asked)) {
        let there = match variants.is_empty() {
            true => "it has weights without a variant only; leave the variant out".to_owned(),
            false => format!("it has {}", listed(variants)),
        };
        return Err(format!("no weights are of the variant `{asked}`; {there}"));
    }
    if wanted.iter().all(|file| is_licence(&file.path)) {
        return Err(
            "no file of it is a model of diffusers (`model_index.json`, `config.json`, `*.safetensors`)"
                .into(),
        );
    }
    wanted.sort_by(|a, b| a.path.cmp(&b.path));
    wanted.dedup_by(|a, b| a.path == b.path);
    Ok(wanted)
}

/// A file by its name in its folder.
struct Named<'f> {
    name: &'f str,
    file: &'f RemoteFile,
}

fn is_licence(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    LICENCES.iter().any(|start| upper.starts_with(start))
}

/// Texts and weights of one folder.
fn of_folder<'f>(folder: &str, files: &[Named<'f>], variant: Option<&str>) -> Result<Wanted<'f>, String> {
    let is_text = |name: &str| TEXTS.iter().any(|ending| name.ends_with(ending)) && !name.contains(".index.");
    let texts = files.iter().filter(|it| is_text(it.name));
    let mut wanted: Wanted<'f> = texts.map(|it| it.file).collect();
    if let Some(found) = variant.and_then(|variant| weights(files, Some(variant))) {
        wanted.extend(found);
        return Ok(wanted);
    }
    if let Some(found) = weights(files, None) {
        wanted.extend(found);
        return Ok(wanted);
    }
    let variants = variants_of(files);
    if !variants.is_empty() {
        return Err(format!(
            "`{folder}` has weights of {} only; name the variant, by `--variant`",
            listed(variants)
        ));
    }
    let others = files.iter().filter(|it| it.name.ends_with(WEIGHTS));
    let others: Wanted<'f> = others.map(|it| it.file).collect();
    let pickle = files
        .iter()
        .find(|it| PICKLES.iter().any(|ending| it.name.ends_with(ending)));
    match pickle {
        Some(pickle) if others.is_empty() => Err(format!(
            "`{folder}` has no `*.safetensors`; `{}` is a pickle, which is a program and is not run: in Python, load the model and \
             `save_pretrained(FOLDER, safe_serialization=True)`",
            pickle.name
        )),
        _ => {
            wanted.extend(others);
            Ok(wanted)
        }
    }
}

/// The weights of a variant under one of the usual names; an index and its shards count before a single file.
fn weights<'f>(files: &[Named<'f>], variant: Option<&str>) -> Option<Wanted<'f>> {
    STEMS.iter().find_map(|stem| {
        let of_variant = |is_shard: bool| -> Wanted<'f> {
            let wanted = Some((*stem, variant, is_shard));
            let found = files.iter().filter(|it| weights_name(it.name) == wanted);
            found.map(|it| it.file).collect()
        };
        let names = WeightFiles::index_names(stem, variant);
        let index = names
            .iter()
            .find_map(|name| files.iter().find(|it| it.name == name));
        let (mut shards, single) = (of_variant(true), of_variant(false));
        match index {
            Some(index) if !shards.is_empty() => {
                shards.push(index.file);
                Some(shards)
            }
            _ if !single.is_empty() => Some(single),
            _ => (!shards.is_empty()).then_some(shards),
        }
    })
}

/// Letters of `-00001-of-00002`.
const SHARD_LENGTH: usize = 15;

/// Stem, variant, and whether it is a shard, of a file of weights under one of the usual names.
fn weights_name(name: &str) -> Option<(&'static str, Option<&str>, bool)> {
    let body = name.strip_suffix(WEIGHTS)?;
    let (stem, rest) = STEMS
        .iter()
        .find_map(|stem| Some((*stem, body.strip_prefix(stem)?)))?;
    let (variant, is_shard) = without_shard_number(rest);
    match variant.strip_prefix('.') {
        None if variant.is_empty() => Some((stem, None, is_shard)),
        Some(variant) if is_variant(variant) => Some((stem, Some(variant), is_shard)),
        _ => None,
    }
}

/// What is left of `.fp16-00001-of-00002`, as diffusers writes it, or of `-00001-of-00002.fp16`, as it did before, and whether
/// there was such a number.
fn without_shard_number(text: &str) -> (&str, bool) {
    let last = text.len().saturating_sub(SHARD_LENGTH);
    match (text.get(..SHARD_LENGTH), text.get(last..)) {
        (_, Some(end)) if is_shard_number(end) => (&text[..last], true),
        (Some(start), _) if is_shard_number(start) => (&text[SHARD_LENGTH..], true),
        _ => (text, false),
    }
}

fn is_shard_number(text: &str) -> bool {
    let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    let bytes = text.as_bytes();
    bytes.len() == SHARD_LENGTH
        && bytes[0] == b'-'
        && digits(&bytes[1..6])
        && &bytes[6..10] == b"-of-"
        && digits(&bytes[10..])
}

fn is_variant(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// The variants that a folder has weights of.
fn variants_of<'f>(files: &[Named<'f>]) -> BTreeSet<&'f str> {
    files.iter().filter_map(|it| weights_name(it.name)?.1).collect()
}

fn listed(names: BTreeSet<&str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [one] => format!("the variant {one}"),
        several => format!("the variants {}", several.join(", ")),
    }
}

#[cfg(test)]
mod tests;
