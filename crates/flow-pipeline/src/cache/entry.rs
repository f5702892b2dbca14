//! One prompt's file.

use crate::{EncodedPrompt, PipelineError};
use flow_diffusers::safetensors::{Named, Parsed, StoredDtype, WriteError, parse, write as write_tensors};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// Changes when what an entry holds does.
pub(super) const FORMAT: &str = "flow-pipeline prompt 2";
/// The key of the metadata that holds a hash of the values.
const HASH: &str = "blake3";

/// Writes an entry, whose values are rounded to `stored`. Padding is left out.
pub(super) fn write(path: &Path, prompt: &EncodedPrompt, stored: StoredDtype) -> Result<(), PipelineError> {
    let mut tensors: Vec<Named> = vec![("text".into(), vec![prompt.length, prompt.channels], 0)];
    if let Some(pooled) = &prompt.pooled {
        tensors.push(("pooled".into(), vec![pooled.len()], 1));
    }
    let values = |key: usize| match key {
        0 => prompt.text[..prompt.length * prompt.channels].to_vec(),
        _ => prompt.pooled.clone().unwrap_or_default(),
    };
    // What is read back is hashed: the rounded values.
    let rounded: Vec<Vec<u8>> = (0..tensors.len())
        .map(|key| stored.encode(&values(key)).unwrap_or_default())
        .collect();
    let rounded: Vec<&[u8]> = rounded.iter().map(Vec::as_slice).collect();
    let metadata = BTreeMap::from([(HASH.to_owned(), hash_of(&rounded))]);
    write_tensors(tensors, &values, path, stored, &metadata).map_err(|error| match error {
        WriteError::Io { path, source } => PipelineError::Io {
            action: "write",
            path,
            source,
        },
        beyond => PipelineError::Entry {
            path: path.to_owned(),
            problem: beyond.to_string(),
        },
    })
}

/// A hash of the bytes of an entry's tensors, one after the other.
pub(crate) fn hash_of(tensors: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    for bytes in tensors {
        hasher.update(bytes);
    }
    hasher.finalize().to_hex().to_string()
}

/// Whether an entry is as long as it says itself; none if there is no such file. Its values are looked at when they are read.
pub(crate) fn is_whole(path: &Path) -> Option<bool> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let whole = (|| {
        let mut size = [0; 8];
        file.read_exact(&mut size).ok()?;
        let header = u64::from_le_bytes(size);
        // No entry's header comes near to a megabyte.
        let mut text = vec![0; usize::try_from(header).ok().filter(|size| *size < 1 << 20)?];
        file.read_exact(&mut text).ok()?;
        let header_of: serde_json::Value = serde_json::from_slice(&text).ok()?;
        let ends = header_of
            .as_object()?
            .values()
            .filter_map(|tensor| tensor["data_offsets"][1].as_u64());
        Some(length == 8 + header + ends.max()?)
    })();
    Some(whole == Some(true))
}

/// Reads an entry and compares its values with their hash.
pub(super) fn read(path: &Path) -> Result<EncodedPrompt, PipelineError> {
    let wrong = |problem: String| PipelineError::Entry {
        path: path.to_owned(),
        problem: format!(
            "{problem}; remove it, and it is made again when the run is resumed or started anew"
        ),
    };
    let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let parsed = parse(&bytes).map_err(wrong)?;
    values(&parsed).ok_or_else(|| wrong("its values are not those that were written".into()))
}

fn values(parsed: &Parsed<'_>) -> Option<EncodedPrompt> {
    let find = |name: &str| parsed.tensors.iter().find(|tensor| tensor.name == name);
    let (text, pooled) = (find("text")?, find("pooled"));
    let tensors: Vec<&[u8]> = [Some(text), pooled]
        .into_iter()
        .flatten()
        .map(|it| it.bytes)
        .collect();
    if *parsed.metadata.get(HASH)? != hash_of(&tensors) {
        return None;
    }
    let [tokens, channels] = *text.shape.as_slice() else {
        return None;
    };
    Some(EncodedPrompt {
        tokens,
        length: tokens,
        channels,
        text: text.to_f32()?,
        pooled: match pooled {
            Some(pooled) => Some(pooled.to_f32()?),
            None => None,
        },
    })
}
