//! Models as diffusers' `from_pretrained` opens them: `config.json`, and weights in one file or in shards with an index.

use crate::FolderError;
use crate::safetensors::{Named, StoredDtype, WriteError, replace, write};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// What diffusers calls a file of weights.
const STEM: &str = "diffusion_pytorch_model";

/// Writes JSON, whole or not at all.
///
/// # Errors
/// [`FolderError::Write`].
pub fn write_json(path: &Path, value: &Value) -> Result<(), FolderError> {
    let text = format!("{value:#}\n");
    let written = replace(path, &mut |out| out.write_all(text.as_bytes()));
    written.map_err(|source| {
        FolderError::Write(WriteError::Io {
            path: path.to_owned(),
            source,
        })
    })
}

/// Writes a model of diffusers into `folder`, which is there: `config`, with its `_class_name`, and tensors whose values are
/// found under their keys. Files have at most `shard_bytes`, but for a tensor that is larger by itself; tensors stay in the
/// order in which they are given.
///
/// The index is written last: where it is, all shards are.
///
/// # Errors
/// [`FolderError::Write`].
pub fn write_model(
    folder: &Path,
    config: &Map<String, Value>,
    tensors: &[Named],
    values: &dyn Fn(usize) -> Vec<f32>,
    dtype: StoredDtype,
    shard_bytes: usize,
) -> Result<(), FolderError> {
    let bytes_of = |tensor: &Named| tensor.1.iter().product::<usize>() * dtype.bytes();
    let mut shards: Vec<Vec<Named>> = vec![Vec::new()];
    let mut filled = 0;
    for tensor in tensors {
        let bytes = bytes_of(tensor);
        if filled > 0 && filled + bytes > shard_bytes {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        if let Some(shard) = shards.last_mut() {
            shard.push(tensor.clone());
        }
    }
    let metadata = BTreeMap::new();
    write_json(&folder.join("config.json"), &Value::Object(config.clone()))?;
    if let [only] = shards.as_slice() {
        let path = folder.join(format!("{STEM}.safetensors"));
        return Ok(write(only.clone(), values, &path, dtype, &metadata)?);
    }
    let count = shards.len();
    let mut map: BTreeMap<String, String> = BTreeMap::new();
    for (number, shard) in shards.into_iter().enumerate() {
        let file = format!("{STEM}-{:05}-of-{count:05}.safetensors", number + 1);
        map.extend(shard.iter().map(|(name, ..)| (name.clone(), file.clone())));
        write(shard, values, &folder.join(file), dtype, &metadata)?;
    }
    let total: usize = tensors.iter().map(bytes_of).sum();
    let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
    write_json(&folder.join(format!("{STEM}.safetensors.index.json")), &index)
}
